"""The validation loss: when it is measured, that it is one number for every layout, and that training does not feel it."""
import os
import re
import signal
import statistics
import subprocess

import pytest

from processes import end, environment, ranks_below, start
from test_bad_input import assert_refused, files_below
from training_run import PROGRAM, lay_out, metrics, rewrite_tar, steps_saved

HELD_OUT = 'validation.shards=["data/shapes-000001.tar"]'
TRAINED = 'data.shards=["data/shapes-000000.tar"]'
GLOBAL_BATCH = 12


def words(settings):
    return [word for setting in settings for word in ("--set", setting)]


def train(flowshard_at, folder, *settings, ranks=1):
    result = flowshard_at(folder, "launch", "--nproc_per_node", ranks, "--", "train", "run.toml", "--resume", "auto",
                          *words(settings), env=environment())
    assert result.returncode == 0, result.stderr
    return result.stderr


def validation_losses(records):
    return [{key: value for key, value in record.items() if key.startswith("validation_loss")} for record in records]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, shapes_dataset):
    folder = tmp_path_factory.mktemp("validation")
    lay_out(folder, shapes_dataset)
    return folder


def test_is_measured_when_due_and_at_the_end(flowshard_at, folder):
    stderr = train(flowshard_at, folder, 'validation.shards=["data/shapes-{000000..000001}.tar"]', "validation.every_steps=2",
                   "train.steps=5", "train.batch_size=1", "run.output_dir=due")
    records = metrics(folder / "due/metrics.jsonl")
    assert [record["step"] for record in records if "validation_loss" in record] == [2, 4, 5]
    for record in records:
        by_time = [record[f"validation_loss_{k}"] for k in range(8) if f"validation_loss_{k}" in record]
        if "validation_loss" in record:
            assert record["validation_loss"] == pytest.approx(statistics.mean(by_time), rel=1e-12)
            assert f"step {record['step']}: validation loss {record['validation_loss']:.6f}" in stderr
        else:
            assert not by_time
    seconds = re.findall(r'"step_seconds":([^,]+),.*"validation_seconds":([^,}]+)', (folder / "due/metrics.jsonl").read_text())
    assert len(seconds) == 3
    assert all(float(step) < float(validation) for step, validation in seconds)  # a step trains one sample, not 40


LAYOUTS = {  # ranks, passes, settings
    "a rank less": (3, 1, []),
    "batches of one": (2, 6, []),
    "four ranks, one of them without a sample": (4, 1, ["validation.samples=9"]),
    "no_shard": (2, 1, ["parallel.strategy=no_shard"]),
    "shard_grad_op": (3, 1, ["parallel.strategy=shard_grad_op", "train.no_sync=true"]),
    "hybrid_shard": (4, 1, ["parallel.strategy=hybrid_shard", "parallel.shard_size=2"]),
    "full checkpointing": (2, 1, ["memory.activation_checkpointing=full"]),
    "offloaded": (2, 1, ["memory.activation_checkpointing=selective", "memory.offload_parameters=true"]),
}


def layout(flowshard_at, folder, ranks, passes, settings, output):
    train(flowshard_at, folder, TRAINED, HELD_OUT, "validation.samples=13", "validation.every_steps=1", "train.steps=3",
          f"train.batch_size={GLOBAL_BATCH // ranks // passes}", f"train.gradient_accumulation_steps={passes}",
          "checkpoint.every_steps=1000", f"run.output_dir={output}", *settings, ranks=ranks)
    return validation_losses(metrics(folder / output / "metrics.jsonl"))


@pytest.fixture(scope="module")
def one_rank(flowshard_at, folder):
    """one_rank(samples): the losses of all of them at once, measured once."""
    known = {}

    def losses(samples):
        if samples not in known:
            known[samples] = layout(flowshard_at, folder, 1, 1, [f"validation.samples={samples}"], f"one-{samples}")
        return known[samples]

    return losses


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_measures_the_same(flowshard_at, folder, one_rank, name):
    ranks, passes, settings = LAYOUTS[name]
    found = layout(flowshard_at, folder, ranks, passes, settings, f"layout-{list(LAYOUTS).index(name)}")
    expected = one_rank(9 if "validation.samples=9" in settings else 13)
    assert len(expected) == len(found) == 3 and len({losses["validation_loss"] for losses in expected}) == 3
    for one, other in zip(expected, found):
        assert other == pytest.approx(one, rel=1e-6)


def test_a_sample_that_cannot_be_read_is_replaced_for_every_layout(flowshard_at, folder, tmp_path):
    lay_out(tmp_path, folder / "data")
    rewrite_tar(tmp_path / "data/shapes-000001.tar", lambda name, old: b"none" if name == "000000023.png" else old)
    losses = []
    for ranks in (1, 3):
        output = f"out-{ranks}"
        stderr = train(flowshard_at, tmp_path, TRAINED, HELD_OUT, "data.max_bad_fraction=0.1", "train.steps=1",
                       f"train.batch_size={GLOBAL_BATCH // ranks}", f"run.output_dir={output}", ranks=ranks)
        assert "shapes-000001.tar:000000023" in stderr and "replaced by the next sample" in stderr
        losses += validation_losses(metrics(tmp_path / output / "metrics.jsonl"))
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


@pytest.mark.parametrize("settings", [
    ["data.cache_in_memory=true"],
    ["precision.mode=bf16_pure", "ema.decay=0.9", "parallel.strategy=shard_grad_op"],
    ["precision.mode=bf16", "memory.offload_parameters=true", "train.gradient_accumulation_steps=2", "train.no_sync=true"],
], ids=["fp32", "bf16_pure", "offloaded"])
def test_training_does_not_feel_it(flowshard_at, folder, tmp_path, settings):
    """Validated after every step on the shards that are trained, in another order, so that a number is another sample:
    whatever one left to the other would show."""
    lay_out(tmp_path, folder / "data")
    for output, extra in [("without", []), ("with", ['validation.shards=["data/shapes-{000001,000000}.tar"]',
                                                     "validation.every_steps=1", "validation.samples=21"])]:
        train(flowshard_at, tmp_path, *settings, *extra, "text.caption_dropout=0.5", f"run.output_dir={output}", ranks=2)
    found = metrics(tmp_path / "with/metrics.jsonl")
    assert all(losses for losses in validation_losses(found))
    stripped = [{key: value for key, value in record.items() if not key.startswith("validation_")} for record in found]
    assert stripped == metrics(tmp_path / "without/metrics.jsonl")
    for path in (tmp_path / "without/checkpoints/step-00000004").glob("*.safetensors"):
        assert (tmp_path / "with/checkpoints/step-00000004" / path.name).read_bytes() == path.read_bytes()


def test_a_run_that_goes_on_measures_what_one_without_a_break_does(flowshard_at, folder):
    settings = [TRAINED, HELD_OUT, "validation.every_steps=2"]
    train(flowshard_at, folder, *settings, "train.steps=4", "run.output_dir=whole", ranks=2)
    for steps in (2, 4):
        train(flowshard_at, folder, *settings, f"train.steps={steps}", "run.output_dir=broken", ranks=2)
    whole = metrics(folder / "whole/metrics.jsonl")
    assert [record["step"] for record in whole if "validation_loss" in record] == [2, 4]
    assert metrics(folder / "broken/metrics.jsonl") == whole


@pytest.fixture(scope="module")
def many_samples(folder):
    """Of which a validation takes seconds."""
    subprocess.run([PROGRAM, "dataset", "shapes", "--output", folder / "many", "--num-samples", "2000",
                    "--samples-per-shard", "2000"], check=True, capture_output=True, timeout=120)
    return ['validation.shards=["many/shapes-000000.tar"]', "validation.every_steps=3", "train.batch_size=1",
            "checkpoint.every_steps=1000"]


def signal_rank_1_in_a_validation(folder, number, settings):
    """Exit code and the rest of stderr."""
    job = start(folder, PROGRAM, "launch", "--nproc_per_node", 2, "--", "train", "run.toml", *words(settings), "--set",
                "run.log_phases=true", OMP_NUM_THREADS=1)
    while "step 3 (validation)" not in (line := job.stderr.readline()):
        assert line, "it ended before"
    os.kill(ranks_below(job.pid)[1], number)
    return end(job)


def test_a_stop_of_one_rank_ends_it_within_a_batch(flowshard_at, folder, many_samples):
    settings = [*many_samples, "run.output_dir=stopped"]
    code, stderr = signal_rank_1_in_a_validation(folder, signal.SIGTERM, settings)
    assert code == 128 + signal.SIGTERM, stderr
    records = metrics(folder / "stopped/metrics.jsonl")
    assert len(records) == 3 and validation_losses(records) == [{}, {}, {}]
    assert steps_saved(folder / "stopped") == ["step-00000003"]
    train(flowshard_at, folder, *settings, "validation.samples=8", ranks=2)
    assert "validation_loss" in metrics(folder / "stopped/metrics.jsonl")[3]


def test_a_rank_killed_in_it_is_named_by_the_other(folder, many_samples):
    code, stderr = signal_rank_1_in_a_validation(folder, signal.SIGKILL, [*many_samples, "run.output_dir=killed"])
    assert code == 128 + signal.SIGKILL, stderr
    assert re.search(r"rank 0 of 2 on .*error: step 3 \(validation\): .*rank 1", stderr), stderr


# name: (settings, what the message says)
MISTAKES = {
    "missing shards": (['validation.shards=["a.tar", "data/shapes-000001.tar"]'],
                       ["1 of 2 shards are missing", "check validation.shards", "a.tar"]),
    "a shard twice": (['validation.shards=["data/shapes-000001.tar", "data/../data/shapes-000001.tar"]'],
                      ["named twice in validation.shards"]),
    "malformed pattern": (['validation.shards=["data/{0..x}.tar"]'], ["is malformed"]),
    "more samples than there are": ([HELD_OUT, "validation.samples=21"],
                                    ["validation.shards hold 20 samples: validation.samples = 21 are needed"]),
    "no sample for each timestep": ([HELD_OUT, "validation.samples=7"], ["validation.samples is 7: give 8 or more"]),
    "never": ([HELD_OUT, "validation.every_steps=0"], ["validation.every_steps is the integer 0; allowed: integer, 1 to"]),
    "unknown timesteps": ([HELD_OUT, "validation.timesteps=uniform"], ['"midpoints", "mlperf"']),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(flowshard, tiny_run, mistake):
    settings, fragments = MISTAKES[mistake]
    before = files_below(tiny_run)
    assert_refused(flowshard("train", "run.toml", *words(settings)), 2, *fragments)
    assert files_below(tiny_run) == before


def test_shards_of_few_samples_are_refused(flowshard, tiny_run):
    rewrite_tar(tiny_run / "data/shapes-000001.tar", lambda name, old: old if name < "000000027" else None)
    assert_refused(flowshard("train", "run.toml", *words([TRAINED, HELD_OUT])), 2,
                   "validation.shards hold 7 samples: at least 8 are needed")
    assert not (tiny_run / "out").exists()
