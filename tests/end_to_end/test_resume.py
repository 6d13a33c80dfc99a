"""A run that was interrupted goes on as if it had not been."""
import shutil

import pytest

from test_bad_input import assert_refused, files_below
from training_run import damage, lay_out, metrics, rewrite_tar, steps_saved

STEPS = 6


def launch(flowshard_at, folder, ranks, *arguments):
    return flowshard_at(folder, "launch", "--nproc_per_node", ranks, "--", "train", "run.toml", "--resume", "auto",
                        "--set", f"train.steps={STEPS}", *arguments)


@pytest.fixture(scope="module")
def whole(flowshard_at, tmp_path_factory, shapes_dataset):
    """A folder where two ranks have trained without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    lay_out(folder, shapes_dataset)
    result = launch(flowshard_at, folder, 2)
    assert result.returncode == 0, result.stderr
    assert steps_saved(folder / "out") == ["step-00000002", "step-00000004", "step-00000006"]
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def test_a_damaged_checkpoint_is_skipped_by_all_ranks(flowshard_at, whole, copy):
    damage(copy / "out/checkpoints/step-00000006/rank-00000-of-00002.safetensors")
    result = launch(flowshard_at, copy, 2)
    assert result.returncode == 0, result.stderr
    warnings = [line for line in result.stderr.splitlines() if "warning" in line]
    assert any("step-00000006" in line and "rank-00000-of-00002.safetensors has other bytes" in line for line in warnings)
    assert "step 5/6" in result.stderr and "step 4/6" not in result.stderr
    assert metrics(copy / "out/metrics.jsonl") == metrics(whole / "out/metrics.jsonl")
    newest = "out/checkpoints/step-00000006/rank-00000-of-00002.safetensors"
    assert (copy / newest).read_bytes() == (whole / newest).read_bytes()


def test_a_run_without_a_sound_checkpoint_is_refused(flowshard_at, copy):
    for step in [2, 4, 6]:
        path = copy / f"out/checkpoints/step-0000000{step}/rank-00001-of-00002.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
    before = files_below(copy)
    result = launch(flowshard_at, copy, 1)
    assert result.returncode == 5
    assert "none of the 3 checkpoints in out/checkpoints can be read; the newest: " in result.stderr.splitlines()[-1]
    assert "step-00000006: damaged: rank-00001-of-00002.safetensors has" in result.stderr.splitlines()[-1]
    assert files_below(copy) == before


def test_other_numbers_of_ranks(flowshard_at, whole, copy):
    for step in [4, 6]:
        shutil.rmtree(copy / f"out/checkpoints/step-0000000{step}")
    for ranks, batch_size, steps in [(1, 4, 4), (2, 2, 6)]:
        result = launch(flowshard_at, copy, ranks, "--set", f"train.steps={steps}", "--set", f"train.batch_size={batch_size}")
        assert result.returncode == 0, result.stderr
    expected, found = metrics(whole / "out/metrics.jsonl"), metrics(copy / "out/metrics.jsonl")
    assert [record["step"] for record in found] == list(range(1, STEPS + 1))
    for one, other in zip(expected, found):
        assert one["samples_seen"] == other["samples_seen"]
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)


def test_what_is_kept_in_memory_changes_nothing(flowshard_at, tmp_path, shapes_dataset):
    """40 pictures in batches of 3: the batches that end an epoch hold 1 or 2 pictures that were not encoded before."""
    lay_out(tmp_path, shapes_dataset)
    for kept in ["true", "false"]:
        result = flowshard_at(tmp_path, "train", "run.toml", "--set", "train.steps=28", "--set", "train.batch_size=3",
                              "--set", f"data.cache_in_memory={kept}", "--set", f"run.output_dir={kept}")
        assert result.returncode == 0, result.stderr
    assert metrics(tmp_path / "true/metrics.jsonl") == metrics(tmp_path / "false/metrics.jsonl")


def test_other_data_is_refused(flowshard_at, copy):
    rewrite_tar(copy / "data/shapes-000001.tar", lambda name, old: None if name.startswith("000000025") else old)
    before = files_below(copy)
    result = flowshard_at(copy, "train", "run.toml", "--resume", "auto", "--set", "train.steps=8")
    assert_refused(result, 2, "data.shards hold other samples", "step 6")
    assert files_below(copy) == before


def test_another_model_is_refused(flowshard_at, copy):
    config = copy / "model/transformer/config.json"
    config.write_text(config.read_text().replace('"num_layers": 2', '"num_layers": 3'))
    before = files_below(copy)
    result = flowshard_at(copy, "train", "run.toml", "--resume", "auto", "--set", "train.steps=8")
    assert result.returncode == 5
    assert "double_blocks.2" in result.stderr.splitlines()[-1]
    assert files_below(copy) == before


def test_a_new_run_does_not_mix_with_an_old_one(flowshard_at, copy):
    before = files_below(copy)
    assert_refused(flowshard_at(copy, "train", "run.toml"), 2, "out/checkpoints/step-00000006", "--resume auto")
    assert files_below(copy) == before


def test_a_finished_run_stays_as_it_is(flowshard_at, copy):
    before = files_below(copy)
    for steps in (6, 2, 0):
        result = flowshard_at(copy, "train", "run.toml", "--resume", "auto", "--set", f"train.steps={steps}")
        assert result.returncode == 0, result.stderr
        assert f"nothing to do: step 6 is saved, and train.steps is {steps}" in result.stderr
        assert files_below(copy) == before
