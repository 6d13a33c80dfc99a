"""Real processes as ranks: rank_program of the build, started by hand, by torchrun, by accelerate or by our launcher."""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

BUILD = pathlib.Path(__file__).resolve().parents[2] / "build/release"
RANK_PROGRAM = BUILD / "tests/distributed/rank_program"
LAUNCH_PROGRAM = BUILD / "tests/distributed/launch_program"
BIN = pathlib.Path(sys.executable).parent
COMMUNICATION, USAGE = 3, 2


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def clean_environment(**variables):
    """Ours, without what a launcher around the tests may have set."""
    prefixes = ("SLURM_", "TORCHELASTIC_", "MASTER_", "GLOO_")
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes) and k not in names}
    return {**kept, "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in variables.items()}}


class Rank:
    """One rank started by hand, as `RANK=0 WORLD_SIZE=2 MASTER_ADDR=... rank_program ...` would."""

    def __init__(self, *arguments, **variables):
        self.process = subprocess.Popen([RANK_PROGRAM, *map(str, arguments)], env=clean_environment(**variables),
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for_step(self):
        for line in self.process.stdout:
            if line.startswith("step"):
                return
        raise AssertionError("ended before the first step: " + self.process.stderr.read())

    def send(self, number):
        self.process.send_signal(number)

    def end(self, timeout):
        """Exit code and stderr lines; fails if it is not over by then."""
        _, errors = self.process.communicate(timeout=timeout)
        return self.process.returncode, errors.splitlines()


@pytest.fixture
def start_ranks():
    """start_ranks(ranks, world_size, arguments, **variables) -> list of Rank; all are ended after the test."""
    started = []

    def start(ranks, world_size, arguments, **variables):
        variables = {"MASTER_ADDR": "localhost", "MASTER_PORT": free_port(), "WORLD_SIZE": world_size, **variables}
        new = [Rank(*arguments, RANK=rank, **variables) for rank in ranks]
        started.extend(new)
        return new

    yield start
    for rank in started:
        if rank.process.poll() is None:
            rank.send(signal.SIGKILL)
            rank.process.wait()


def run(command, timeout=60, **variables):
    """Runs a launcher to its end."""
    start = time.monotonic()
    done = subprocess.run([*map(str, command)], env=clean_environment(**variables), capture_output=True, text=True,
                          timeout=timeout)
    done.seconds = time.monotonic() - start
    return done
