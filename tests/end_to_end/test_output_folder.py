"""The output folder of a run in the hands of others: a second run, moved and foreign files, what is in the way."""
import ctypes
import json
import os
import shutil
import signal

import pytest

from processes import end, eventually, num_records, start
from test_bad_input import assert_refused, files_below
from training_run import PROGRAM, metrics, steps_saved


def xxh3(data):
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_64bits.restype, library.XXH3_64bits.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]
    return f"{library.XXH3_64bits(data, len(data)):016x}"


def train(folder, *settings, ranks=1):
    words = [word for setting in settings for word in ("--set", setting)]
    return start(folder, PROGRAM, "launch", "--nproc_per_node", ranks, "--", "train", "run.toml", "--resume", "auto", *words)


def test_a_second_run_in_the_folder_is_refused(tiny_run):
    """By a run of as many ranks and of more; the first one is not disturbed."""
    settings = ["train.steps=100000", "checkpoint.every_steps=20"]
    first = train(tiny_run, *settings)
    eventually(lambda: num_records(tiny_run / "out") >= 25, "step 25")
    for ranks in (1, 2):
        code, stderr = end(train(tiny_run, *settings, ranks=ranks))
        assert code == 2 and "metrics.jsonl: another run is writing it" in stderr, stderr
    done = num_records(tiny_run / "out")
    eventually(lambda: num_records(tiny_run / "out") > done + 40, "the next steps")
    first.send_signal(signal.SIGTERM)
    assert end(first)[0] == 128 + signal.SIGTERM
    records = metrics(tiny_run / "out/metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))


def test_a_folder_moved_under_a_run(tiny_run):
    """What was moved is whole and stays as it is; the run goes on where its configuration says, records included."""
    job = train(tiny_run, "train.steps=100000", "checkpoint.every_steps=20")
    output, moved = tiny_run / "out", tiny_run / "moved"
    eventually(lambda: num_records(output) >= 45, "step 45")
    output.rename(moved)
    eventually(lambda: num_records(output) >= 45, "step 45 after it")
    before = files_below(moved)
    job.send_signal(signal.SIGTERM)
    code, stderr = end(job)
    assert code == 128 + signal.SIGTERM and stderr.count("metrics.jsonl was moved or removed") == 1, stderr
    assert files_below(moved) == before
    steps = [[record["step"] for record in metrics(folder / "metrics.jsonl")] for folder in (moved, output)]
    assert steps[0] + steps[1] == list(range(1, steps[1][-1] + 1))
    assert steps_saved(output)[-1] == f"step-{steps[1][-1]:08}"


def test_foreign_folders_and_leftovers(flowshard, tiny_run):
    assert flowshard("train", "run.toml").returncode == 0
    folder = tiny_run / "out/checkpoints"
    foreign = ["notes", "step-abc", "step-4", "step-00000004 (copy)", "step-000000009", "step-99999999999999999999", "x.tmp"]
    for name in foreign:
        shutil.copytree(folder / "step-00000002", folder / name)
    for step in range(1000):
        (folder / f"step-{step:08}.tmp").mkdir()
    shutil.copytree(folder / "step-00000004", folder / "step-00000050")  # not what its name says
    result = flowshard("train", "run.toml", "--resume", "auto", "--set", "train.steps=6", "--set", "checkpoint.keep=1")
    assert result.returncode == 0 and "step 5/6" in result.stderr, result.stderr
    assert "warning: skipped a checkpoint: out/checkpoints/step-00000050: it holds step 4" in result.stderr
    assert steps_saved(tiny_run / "out") == sorted([*foreign, "step-00000006", "step-00000050"])
    assert_refused(flowshard("export", folder / "step-00000050", "--to", "bfl", "--output", "x"), 5, "step-00000004")


def test_a_checkpoint_of_somebody_else_is_named(flowshard, tiny_run):
    """Whose folder cannot be looked into. Root may look everywhere, unless it gives that up."""
    assert flowshard("train", "run.toml").returncode == 0
    newest = tiny_run / "out/checkpoints/step-00000004"
    newest.chmod(0o000)
    powers = "-dac_override,-dac_read_search"
    command = ["setpriv", f"--bounding-set={powers}", f"--inh-caps={powers}"] if os.geteuid() == 0 else []
    code, stderr = end(start(tiny_run, *command, PROGRAM, "train", "run.toml", "--resume", "auto", "--set", "train.steps=3"))
    newest.chmod(0o755)
    assert code == 0 and "step 3/3" in stderr, stderr
    assert "warning: skipped a checkpoint: cannot read out/checkpoints/step-00000004/manifest.json: Permission denied" in stderr


@pytest.mark.parametrize("change", [
    {"samples_seen": -5}, {"samples_seen": 1.5}, {"step": "4"}, {"extra": []}, {"extra": {"skipped_steps": "x"}},
    {"extra": {"skipped_steps": 5}}, {"extra": {"data_fingerprint": "x"}}, {"extra": {"started_from": 7}},
    {"extra": {"loss_scale": "x"}}], ids=str)
def test_a_state_that_cannot_be_is_skipped(flowshard, tiny_run, change):
    """Written by another program, its checksum right."""
    assert flowshard("train", "run.toml", "--set", "checkpoint.every_steps=3").returncode == 0
    checkpoint = tiny_run / "out/checkpoints/step-00000004"
    state = json.loads((checkpoint / "state.json").read_text())
    extra = {**state["extra"], **change["extra"]} if isinstance(change.get("extra"), dict) else change.get("extra", state["extra"])
    text = json.dumps({**state, **change, "extra": extra}).encode()
    (checkpoint / "state.json").write_bytes(text)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"]["state.json"] = {"size_bytes": len(text), "xxh3": xxh3(text)}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    result = flowshard("train", "run.toml", "--resume", "auto")
    assert result.returncode == 0 and "step 4/4" in result.stderr and "step 3/4" not in result.stderr, result.stderr
    assert "warning: skipped a checkpoint: out/checkpoints/step-00000004" in result.stderr


def test_a_path_that_no_checkpoint_can_hold_is_told_before_work(flowshard_at, tiny_run):
    folder = tiny_run / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    for name in ("model", "data", "run.toml"):
        (tiny_run / name).rename(folder / name)
    before = files_below(folder)
    assert_refused(flowshard_at(folder, "train", "run.toml"), 2, "model.path", "not UTF-8")
    assert files_below(folder) == before


@pytest.mark.parametrize("in_the_way", ["checkpoints is a file", "checkpoints leads nowhere", "metrics.jsonl is a folder",
                                        "metrics.jsonl is a pipe"])
def test_what_is_in_the_way_is_told_before_work(flowshard, tiny_run, in_the_way):
    """Not after the steps up to the first checkpoint."""
    name, _, what = in_the_way.partition(" ")
    (tiny_run / "out").mkdir()
    path = tiny_run / "out" / name
    if what == "is a file":
        path.write_text("")
    elif what == "is a folder":
        path.mkdir()
    elif what == "is a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/nowhere/at/all")
    before = files_below(tiny_run)
    for resume in ("never", "auto"):
        assert_refused(flowshard("train", "run.toml", "--resume", resume), 2, "run.output_dir", f"out/{name}")
    assert files_below(tiny_run) == before


def test_changed_settings_are_those_of_the_run_from_there_on(flowshard, tiny_run):
    """The table of docs/operations.md: position and weights go on, averages begin anew where there were none."""
    assert flowshard("train", "run.toml", "--set", "ema.decay=0.9").returncode == 0
    for steps, change in ((6, "ema.decay=0"), (8, "train.batch_size=3"), (10, "ema.decay=0.9")):
        result = flowshard("train", "run.toml", "--resume", "auto", "--set", f"train.steps={steps}", "--set", change)
        assert result.returncode == 0, result.stderr
    assert [record["samples_seen"] for record in metrics(tiny_run / "out/metrics.jsonl")] == [2, 4, 6, 8, 10, 12, 15, 18, 20, 22]
    states = json.loads((tiny_run / "out/checkpoints/step-00000010/layout.json").read_text())["groups"][0]["states"]
    assert [state["name"] for state in states] == ["model", "exp_avg", "exp_avg_sq", "ema"]
