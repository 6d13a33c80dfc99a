"""Ranks and launchers that die, are told to stop, never come, or cannot write: how the others end and what is left."""
import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import time

import pytest

from processes import eventually, free_port, is_running, num_records, ranks_below, start
from test_bad_input import assert_refused, files_below
from training_run import PROGRAM, lay_out, metrics, steps_saved

STEPS = 9


def train_arguments(*arguments):
    return ["train", "run.toml", "--resume", "auto", "--set", f"train.steps={STEPS}", *map(str, arguments)]


def launch(folder, *arguments):
    return start(folder, PROGRAM, "launch", "--nproc_per_node", "2", "--", *train_arguments(*arguments))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, shapes_dataset):
    """The records of two ranks that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    lay_out(folder, shapes_dataset)
    job = launch(folder)
    _, stderr = job.communicate(timeout=120)
    assert job.returncode == 0, stderr
    return metrics(folder / "out/metrics.jsonl")


def assert_goes_on(folder, whole):
    """--resume auto ends with what an uninterrupted run has, and with nothing else."""
    job = launch(folder)
    _, stderr = job.communicate(timeout=120)
    assert job.returncode == 0, stderr
    assert metrics(folder / "out/metrics.jsonl") == whole
    assert not [path for path in (folder / "out").rglob("*") if "tmp" in path.name or "deleted" in path.name]


def test_killed_rank(tiny_run, whole):
    job = launch(tiny_run)
    eventually(lambda: num_records(tiny_run / "out") >= 5, "step 5")
    os.kill(ranks_below(job.pid)[1], signal.SIGKILL)
    _, stderr = job.communicate(timeout=60)
    assert job.returncode == 128 + signal.SIGKILL, stderr
    assert "rank 1" in stderr.splitlines()[-1], stderr
    assert_goes_on(tiny_run, whole)


def test_the_other_ranks_say_who_is_gone(tiny_run):
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "LOCAL_WORLD_SIZE": "2"}
    first, second = [start(tiny_run, PROGRAM, *train_arguments(), RANK=str(rank), LOCAL_RANK=str(rank), **world) for rank in (0, 1)]
    eventually(lambda: num_records(tiny_run / "out") >= 3, "step 3")
    second.kill()
    began = time.monotonic()
    _, stderr = first.communicate(timeout=60)
    assert first.returncode == 3, stderr
    assert time.monotonic() - began < 20 + 10  # distributed.timeout_seconds and some
    last = stderr.splitlines()[-1]
    assert last.startswith("flowshard train [rank 0 of 2 on ") and "error: step " in last and "rank 1" in last.split("]", 1)[1], last
    second.communicate()


def test_killed_launcher_in_a_save(tiny_run, whole):
    job = launch(tiny_run, "--set", "checkpoint.every_steps=1", "--set", "checkpoint.keep=2")
    eventually(lambda: num_records(tiny_run / "out") >= 4, "step 4")
    ranks = ranks_below(job.pid)
    eventually(lambda: any(path.name.endswith(".tmp") for path in (tiny_run / "out/checkpoints").iterdir()), "a save")
    job.kill()
    job.communicate()
    eventually(lambda: not any(map(is_running, ranks.values())), "the end of the ranks", 30)
    assert len(ranks) == 2
    assert_goes_on(tiny_run, whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_with_a_checkpoint(tiny_run, whole, number):
    job = launch(tiny_run, "--set", "checkpoint.every_steps=1000")
    eventually(lambda: num_records(tiny_run / "out") >= 3, "step 3")
    job.send_signal(number)
    _, stderr = job.communicate(timeout=60)
    assert job.returncode == 128 + number, stderr
    step = num_records(tiny_run / "out")
    assert 3 <= step < STEPS and steps_saved(tiny_run / "out") == [f"step-{step:08}"]
    assert "--resume auto" in stderr
    assert stderr.splitlines()[-1].startswith("flowshard launch: stopped: rank "), stderr
    if number == signal.SIGTERM:
        assert_goes_on(tiny_run, whole)


def test_all_ranks_end_by_the_signal_that_one_got(tiny_run):
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "LOCAL_WORLD_SIZE": "2"}
    ranks = [start(tiny_run, PROGRAM, *train_arguments(), RANK=str(rank), LOCAL_RANK=str(rank), **world) for rank in (0, 1)]
    eventually(lambda: num_records(tiny_run / "out") >= 3, "step 3")
    ranks[1].send_signal(signal.SIGINT)
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [130, 130], errors
    assert errors[0].splitlines()[-1].startswith("stopped by signal 2:"), errors


def test_a_rank_that_does_not_start(tiny_run):
    job = start(tiny_run, PROGRAM, *train_arguments("--set", "distributed.timeout_seconds=4"), RANK="0", WORLD_SIZE="2", LOCAL_RANK="0",
                LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29417")
    _, stderr = job.communicate(timeout=60)
    assert job.returncode == 3 and "rank 1" in stderr and stderr.count("\n") == 1, stderr
    assert not (tiny_run / "out").exists()


def test_a_rank_with_a_mistake_ends_all(flowshard, tiny_run):
    """Two GPUs' worth of ranks where there is none."""
    result = flowshard("launch", "--nproc_per_node", 2, "--", *train_arguments("--device", "cuda"))
    assert result.returncode == 2, result.stderr
    assert "no CUDA device is visible" in result.stderr
    assert not (tiny_run / "out").exists()


def test_a_taken_port(flowshard, tiny_run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = flowshard("launch", "--nproc_per_node", 2, "--rdzv_endpoint", f"127.0.0.1:{port}", "--", *train_arguments())
    assert result.returncode in (2, 3) and str(port) in result.stderr, result.stderr
    assert not (tiny_run / "out").exists()


def test_half_an_environment(flowshard, tiny_run, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    assert_refused(flowshard(*train_arguments()), 2, "RANK is set, but WORLD_SIZE is not")


def test_divergence_ends_before_the_weights_are_spoilt(flowshard, tiny_run):
    arguments = ["--set", "train.max_grad_norm=0", "--set", "train.steps=60"]
    assert flowshard("train", "run.toml", "--set", "train.steps=2").returncode == 0
    before = files_below(tiny_run / "out/checkpoints")
    result = flowshard("train", "run.toml", "--resume", "auto", *arguments, "--set", "optimizer.lr=10",
                       "--set", "checkpoint.every_steps=1000")
    assert result.returncode == 4, result.stderr
    last = result.stderr.splitlines()[-1]
    assert "error: step " in last and "diverged" in last and "optimizer.lr" in last
    assert files_below(tiny_run / "out/checkpoints") == before
    assert metrics(tiny_run / "out/metrics.jsonl")[-1]["skipped_steps"] >= 9


def limit_files(size_bytes):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


def test_no_space_for_a_checkpoint(flowshard, tiny_run):
    assert flowshard("train", "run.toml", "--set", "train.steps=2").returncode == 0
    before = files_below(tiny_run / "out/checkpoints")
    result = flowshard("train", "run.toml", "--resume", "auto", preexec_fn=limit_files(100_000))
    assert result.returncode == 5, result.stderr
    assert "error: step 4 (saving a checkpoint): cannot write " in result.stderr.splitlines()[-1]
    assert files_below(tiny_run / "out/checkpoints") == before
    assert num_records(tiny_run / "out") == 4


def test_no_space_for_metrics(flowshard, tiny_run):
    result = flowshard("train", "run.toml", preexec_fn=limit_files(400))
    assert result.returncode == 4, result.stderr
    assert "error: step 2 (metrics): cannot write out/metrics.jsonl: " in result.stderr.splitlines()[-1]
    assert len(metrics(tiny_run / "out/metrics.jsonl")) == 1


@contextlib.contextmanager
def mounted(folder, options):
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def can_mount():
    return shutil.which("unshare") and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="only root can mount a small disk")
def test_a_full_disk(flowshard, tiny_run):
    with mounted(tiny_run / "out", "size=1m"):
        result = flowshard("train", "run.toml")
        assert result.returncode == 5, result.stderr
        assert "(saving a checkpoint): cannot save out/checkpoints/step-00000002: it takes " in result.stderr
        assert steps_saved(tiny_run / "out") == [] and 2 <= num_records(tiny_run / "out") <= 4


def test_a_folder_that_cannot_be_written(flowshard, tiny_run):
    (tiny_run / "out").write_text("")
    assert_refused(flowshard("train", "run.toml"), 2, "run.output_dir", "out", "a file")
    assert_refused(flowshard("train", "run.toml", "--set", "run.output_dir=out/b"), 2, "run.output_dir", "out is a file")
    (tiny_run / "out").unlink()
    with contextlib.ExitStack() as stack:
        if can_mount():
            stack.enter_context(mounted(tiny_run / "out", "ro"))
        else:
            (tiny_run / "out").mkdir(mode=0o555)
        assert_refused(flowshard("train", "run.toml"), 2, "run.output_dir", "nothing can be written to out")
        assert_refused(flowshard("generate", "--model", "model", "--prompt", "x", "--output", "out/x.png"), 2, "--output",
                       "nothing can be written to out")
