"""Checkpoints that are written while training goes on: slow, full and killed storage, resumes, signals."""
import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from processes import environment, eventually, num_records, ranks_below, start
from test_bad_input import assert_refused, files_below
from test_interruptions import can_mount, mounted
from training_run import PROGRAM, damage, lay_out, metrics, steps_saved

STEPS = 6


@pytest.fixture(scope="session")
def slow_fsync(tmp_path_factory):
    """slow_fsync(files, seconds): variables of a process for which syncing such files takes that long."""
    library = tmp_path_factory.mktemp("slow") / "slow_fsync.so"
    source = pathlib.Path(__file__).with_name("slow_fsync.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return lambda files, seconds: {"LD_PRELOAD": str(library), "SLOW_FSYNC_FILES": files, "SLOW_FSYNC_SECONDS": str(seconds)}


def launch(folder, *arguments, ranks=2, **environment):
    return start(folder, PROGRAM, "launch", "--nproc_per_node", str(ranks), "--", "train", "run.toml", "--resume", "auto", "--set",
                 f"train.steps={STEPS}", *map(str, arguments), **environment)


def finish(job, code=0):
    _, stderr = job.communicate(timeout=120)
    assert job.returncode == code, stderr
    return stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory, shapes_dataset):
    """The output of two ranks that nobody interrupted, each save done before training goes on."""
    folder = tmp_path_factory.mktemp("whole")
    lay_out(folder, shapes_dataset)
    stderr = finish(launch(folder, "--set", "checkpoint.async=false"))
    assert stderr.index("saved step-00000002") < stderr.index("step 3/6")
    return folder / "out"


def assert_same_run(output, whole):
    assert metrics(output / "metrics.jsonl") == metrics(whole / "metrics.jsonl")
    last = f"checkpoints/step-{STEPS:08}"
    for rank in range(2):
        name = f"{last}/rank-0000{rank}-of-00002.safetensors"
        assert (output / name).read_bytes() == (whole / name).read_bytes()
    assert not [path for path in output.rglob("*") if "tmp" in path.name or "deleted" in path.name]


@pytest.mark.parametrize("files", ["rank-00001-of-00002.safetensors.tmp-", "manifest.json.tmp-"], ids=["a shard", "rank 0 alone"])
def test_a_save_slower_than_the_timeout_of_collectives(tiny_run, whole, slow_fsync, files):
    stderr = finish(launch(tiny_run, "--set", "distributed.timeout_seconds=2", "--set", "checkpoint.every_steps=4",
                           **slow_fsync(files, 4)))
    assert stderr.index("step 5/6") < stderr.index("saved step-00000004"), "training went on while it was written"
    assert_same_run(tiny_run / "out", whole)


def test_what_training_stood_still_is_recorded(tiny_run, slow_fsync):
    """Saves after each step: each waits for the one before."""
    finish(launch(tiny_run, "--set", "train.steps=3", "--set", "checkpoint.every_steps=1", ranks=1,
                  **slow_fsync("rank-00000-of-00001.safetensors.tmp-", 3)))
    records = [json.loads(line) for line in (tiny_run / "out/metrics.jsonl").read_text().splitlines()]
    assert records[0]["save_seconds"] < 1 < min(record["save_seconds"] for record in records[1:])
    assert all(record["step_seconds"] < 2 for record in records)


def test_killed_while_a_save_is_written(tiny_run, whole, slow_fsync):
    """One checkpoint is kept: the one being written does not count as one."""
    job = launch(tiny_run, "--set", "checkpoint.keep=1", **slow_fsync("step-00000004.tmp/rank-00001-of-00002.safetensors.", 60))
    folder = tiny_run / "out/checkpoints"
    eventually(lambda: (folder / "step-00000004.tmp/rank-00000-of-00002.safetensors").exists(), "the save of step 4")
    eventually(lambda: num_records(tiny_run / "out") >= 5, "step 5")
    for pid in [job.pid, *ranks_below(job.pid).values()]:
        os.kill(pid, signal.SIGKILL)
    job.communicate()
    assert steps_saved(tiny_run / "out") == ["step-00000002", "step-00000004.tmp"]
    stderr = finish(launch(tiny_run, "--set", "checkpoint.keep=1"))
    assert "step 3/6" in stderr and "step 2/6" not in stderr
    assert_same_run(tiny_run / "out", whole)
    assert steps_saved(tiny_run / "out") == [f"step-{STEPS:08}"]


def test_a_stop_waits_for_the_save_in_flight(tiny_run, whole, slow_fsync):
    job = launch(tiny_run, "--set", "checkpoint.every_steps=2", **slow_fsync("step-00000002.tmp/rank-", 2))
    eventually(lambda: num_records(tiny_run / "out") >= 2, "step 2")
    job.send_signal(signal.SIGTERM)
    finish(job, 128 + signal.SIGTERM)
    assert steps_saved(tiny_run / "out") == ["step-00000002", f"step-{num_records(tiny_run / 'out'):08}"]
    finish(launch(tiny_run))
    assert_same_run(tiny_run / "out", whole)


@pytest.mark.skipif(not can_mount(), reason="only root can mount a small disk")
def test_a_disk_that_becomes_full(tiny_run, whole):
    size = sum(path.stat().st_size for path in (whole / "checkpoints/step-00000002").iterdir())
    with mounted(tiny_run / "out", f"size={size * 7 // 4}"):
        stderr = finish(launch(tiny_run, "--set", "run.output_dir=out", ranks=1), 5)
        assert "(saving a checkpoint): cannot save out/checkpoints/step-00000004: it takes " in stderr
        assert "step 5" in stderr or "step 6" in stderr
        assert steps_saved(tiny_run / "out") == ["step-00000002"]
        subprocess.run(["cp", "-a", tiny_run / "out", tiny_run / "saved"], check=True)
    shutil.copytree(tiny_run / "saved", tiny_run / "out", dirs_exist_ok=True)
    finish(launch(tiny_run))
    assert steps_saved(tiny_run / "out") == ["step-00000002", "step-00000004", "step-00000006"]


def test_resumed_twice_the_step_is_that_of_the_whole_run(tiny_run):
    arguments = ["--set", "checkpoint.every_steps=100", "--set", "schedule.warmup_steps=6", "--set", "optimizer.lr=6e-4"]
    for steps in (4, 8, 12):
        finish(launch(tiny_run, *arguments, "--set", f"train.steps={steps}", ranks=1))
    records = metrics(tiny_run / "out/metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, 13))
    assert [record["lr"] for record in records] == pytest.approx([min(step, 6) * 1e-4 for step in range(1, 13)])
    assert [record["samples_seen"] for record in records] == list(range(2, 26, 2))
    assert steps_saved(tiny_run / "out") == ["step-00000004", "step-00000008", "step-00000012"]


def test_a_resume_in_bf16_goes_on_from_the_fp32_weights(tiny_run):
    arguments = ["--set", "precision.mode=bf16", "--set", "ema.decay=0.9"]
    for output, all_steps in (("whole", [4]), ("parts", [2, 4])):
        for steps in all_steps:
            finish(launch(tiny_run, *arguments, "--set", f"run.output_dir={output}", "--set", f"train.steps={steps}"))
    assert metrics(tiny_run / "parts/metrics.jsonl") == metrics(tiny_run / "whole/metrics.jsonl")
    for rank in range(2):
        name = f"checkpoints/step-00000004/rank-0000{rank}-of-00002.safetensors"
        assert (tiny_run / "parts" / name).read_bytes() == (tiny_run / "whole" / name).read_bytes()


@pytest.mark.parametrize("rank", [0, 1, None], ids=["SIGUSR1 to rank 0", "SIGUSR1 to rank 1", "the file"])
def test_a_request_saves_and_training_goes_on(tiny_run, rank):
    arguments = ["--set", "checkpoint.every_steps=1000", "--set", "train.steps=100000"]
    job = launch(tiny_run, *arguments)
    output = tiny_run / "out"
    eventually(lambda: num_records(output) >= 2, "step 2")
    for num_saved in (1, 2):
        if rank is None:
            (output / "save").touch()
            eventually(lambda: not (output / "save").exists(), "the removal of the file")
            assert len(steps_saved(output)) == num_saved
        else:
            os.kill(ranks_below(job.pid)[rank], signal.SIGUSR1)
            eventually(lambda: len(list(output.glob("checkpoints/step-????????"))) == num_saved, "a checkpoint")
        done = num_records(output)
        eventually(lambda: num_records(output) > done + 1, "the next steps")
    job.send_signal(signal.SIGTERM)
    stderr = finish(job, 128 + signal.SIGTERM)
    assert stderr.count("saved step-") == 3 and len(steps_saved(output)) == 3


def from_arguments(source, output):
    return ["train", "run.toml", "--resume", source, "--set", f"train.steps={STEPS}", "--set", f"run.output_dir={output}"]


def train_from(flowshard, source, output, *arguments):
    return flowshard("launch", "--nproc_per_node", 2, "--", *from_arguments(source, output), *arguments, env=environment())


def run_id(checkpoint):
    return json.loads((checkpoint / "state.json").read_text())["run_id"]


def test_a_run_that_starts_from_another_one(flowshard, tiny_run, whole):
    before = files_below(whole)
    source = whole / "checkpoints/step-00000002"
    result = train_from(flowshard, source, "new", "--set", "train.steps=4", "--set", "checkpoint.every_steps=1")
    assert result.returncode == 0, result.stderr
    again = train_from(flowshard, source, "new")
    assert again.returncode == 0 and "step 5/6" in again.stderr and "step 4/6" not in again.stderr, again.stderr
    assert metrics(tiny_run / "new/metrics.jsonl") == metrics(whole / "metrics.jsonl")[2:]
    last = f"checkpoints/step-{STEPS:08}"
    shard = f"{last}/rank-00001-of-00002.safetensors"
    assert (tiny_run / "new" / shard).read_bytes() == (whole / shard).read_bytes()
    assert run_id(tiny_run / "new" / last) == run_id(tiny_run / "new/checkpoints/step-00000004") != run_id(whole / last)
    assert files_below(whole) == before

    before = files_below(tiny_run)
    assert_refused(flowshard(*from_arguments(whole, "new")), 2, "new/checkpoints/step-00000006", "was started from")
    assert_refused(flowshard(*from_arguments("new/checkpoints/step-00000004", "new")), 2, "was started from", "run.output_dir")
    assert_refused(flowshard(*from_arguments("nothing", "other")), 2, "--resume: nothing is neither", "auto")
    assert files_below(tiny_run) == before


def test_a_run_that_starts_from_an_output_folder(flowshard, tiny_run, whole):
    shutil.copytree(whole, tiny_run / "old")
    damage(tiny_run / "old/checkpoints/step-00000006/rank-00000-of-00002.safetensors")
    result = train_from(flowshard, "old", "new")
    assert result.returncode == 0 and "step 5/6" in result.stderr and "step 4/6" not in result.stderr, result.stderr
    assert "warning: skipped a checkpoint: old/checkpoints/step-00000006: damaged: rank-00000-of-00002.safetensors" in result.stderr
    assert metrics(tiny_run / "new/metrics.jsonl") == metrics(whole / "metrics.jsonl")[4:]

    result = train_from(flowshard, "new/checkpoints/step-00000006", "new", "--set", "train.steps=7")
    assert result.returncode == 0, result.stderr
    assert [record["step"] for record in metrics(tiny_run / "new/metrics.jsonl")] == [5, 6, 7]
    assert run_id(tiny_run / "new/checkpoints/step-00000007") == run_id(tiny_run / "new/checkpoints/step-00000006")


def test_what_is_no_checkpoint_is_refused(flowshard, tiny_run):
    for path in ["run.toml", "model", "nowhere"]:
        result = flowshard("train", "run.toml", "--resume", path)
        assert result.returncode == 2 and f"--resume: {path} is neither" in result.stderr, result.stderr
