"""A rank is killed or frozen in every phase of training, again and again: the others end in time and say who, and the run
goes on each time to end as if nothing had happened."""
import fcntl
import os
import re
import select
import signal
import subprocess
import threading
import time

import pytest

from processes import end, environment, free_port, num_records, start
from training_run import PROGRAM, lay_out, metrics

STEPS = 24
LINES_BEFORE = {  # of each phase, in step N
    "encoding a batch": "N (loading a batch)",
    "forward pass": "N (encoding a batch)",
    "backward pass": "N (forward pass)",
    "gradient norm": "N (backward pass)",
    "optimizer step": "N (gradient norm)",
    "saving a checkpoint": "N (optimizer step)",
    "validation": "N (optimizer step)",  # in a run that saves nothing
}
SETTINGS = ["--set", f"train.steps={STEPS}", "--set", "train.batch_size=8", "--set", "checkpoint.keep=100", "--set",
            "run.log_every_steps=1000", "--set", 'validation.shards=["data/shapes-000001.tar"]', "--set", "validation.every_steps=2"]
EXTRA_SETTINGS = {"validation": ["--set", "checkpoint.every_steps=1000"]}


class Rank:
    """A rank started by hand. Its stderr holds one line that nobody has read: it waits to write the next one, which says
    what it does then. So it is held in a phase when the line before that phase is the last that was read."""

    def __init__(self, folder, rank, port, timeout_seconds, hold="", extra_settings=()):
        ours, theirs = os.pipe2(os.O_DIRECT)  # each write is a packet
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)  # of which it holds one
        self.process = subprocess.Popen(
            [PROGRAM, "train", "run.toml", "--resume", "auto", *SETTINGS, *extra_settings, "--set", "run.log_phases=true",
             "--set", f"distributed.timeout_seconds={timeout_seconds}"], cwd=folder, stderr=theirs, env=environment(
                 RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2, MASTER_ADDR="localhost", MASTER_PORT=port))
        os.close(theirs)
        self.pipe, self.text, self.hold = ours, "", hold
        self.held, self.go_on = threading.Event(), threading.Event()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        while packet := os.read(self.pipe, 65536).decode():
            self.text += packet
            if self.hold and re.search(self.hold, packet):
                select.select([self.pipe], [], [], 60)  # the next line is there
                self.held.set()
                self.go_on.wait(60)
                self.hold = ""
        os.close(self.pipe)

    @property
    def lines(self):
        return self.text.splitlines()

    def end(self, timeout):
        self.process.wait(timeout)
        self.reader.join()
        return self.process.returncode

    def phase(self):
        """The last that began."""
        return next((line.split("(")[1].rstrip(")") for line in reversed(self.lines) if re.match(r"rank \d of 2: step", line)), "")


def assert_others_name(rank, victim):
    last = rank.lines[-1]
    assert rank.process.returncode == 3, rank.lines[-3:]
    assert last.startswith(f"flowshard train [rank {1 - victim} of 2 on ") and f"rank {victim}" in last.split("]", 1)[1], last


def lose(folder, victim, number, line_before, timeout_seconds, extra_settings):
    """Runs two ranks until one is hit; returns the phase in which that was."""
    port = free_port()
    ranks = [Rank(folder, rank, port, timeout_seconds, line_before if rank == victim else "", extra_settings)
             for rank in (0, 1)]
    try:
        if line_before:
            assert ranks[victim].held.wait(60), ranks[victim].lines[-3:]
        else:  # while it loads
            time.sleep(0.05)
        ranks[victim].process.send_signal(number)
        began = time.monotonic()
        ranks[1 - victim].end(timeout_seconds + 15)
        assert time.monotonic() - began < timeout_seconds + 10
        assert_others_name(ranks[1 - victim], victim)
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.go_on.set()
            rank.end(10)
    return ranks[victim].phase()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, shapes_dataset):
    folder = tmp_path_factory.mktemp("whole")
    lay_out(folder, shapes_dataset)
    return finish(folder)


def finish(folder):
    code, stderr = end(start(folder, PROGRAM, "launch", "--nproc_per_node", 2, "--", "train", "run.toml", "--resume", "auto",
                             *SETTINGS), timeout=120)
    assert code == 0, stderr
    return metrics(folder / "out/metrics.jsonl")


@pytest.mark.parametrize("number, timeout_seconds", [(signal.SIGKILL, 8), (signal.SIGSTOP, 3)], ids=["killed", "frozen"])
def test_every_phase(flowshard, tiny_run, whole, number, timeout_seconds):
    met, saved = [], set()
    for i, (phase, line_before) in enumerate({"": "", **LINES_BEFORE}.items()):
        step = (num_records(tiny_run / "out") + 4) // 2 * 2  # a checkpoint further on; it saves one itself
        line_before = line_before and re.escape(line_before.replace("N", f"step {step}"))
        met.append(lose(tiny_run, i % 2, number, line_before, timeout_seconds, EXTRA_SETTINGS.get(phase, ())))
        kept = {path.name for path in (tiny_run / "out/checkpoints").glob("step-????????")}
        assert saved <= kept
        saved = kept
    assert met == ["", *LINES_BEFORE] and len(saved) >= 5
    for name in saved:
        assert flowshard("inspect", f"out/checkpoints/{name}").returncode == 0
    assert finish(tiny_run) == whole
