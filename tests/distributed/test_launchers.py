"""The same program under flowshard launch, torchrun, accelerate and by two launchers at once."""
import concurrent.futures
import os
import pty
import re
import signal
import subprocess
import time

import pytest
from conftest import BIN, COMMUNICATION, LAUNCH_PROGRAM, RANK_PROGRAM, clean_environment, free_port, run

TORCHRUN = [BIN / "torchrun", "--no-python", "--nproc_per_node=2"]


def finished(done):
    return sum(line.endswith("done") for line in done.stdout.splitlines())


@pytest.mark.parametrize("options", [
    [],
    ["--nnodes=1", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"],
])
def test_torchrun(options):
    options = options or [f"--master_port={free_port()}"]
    done = run([*TORCHRUN, *options, RANK_PROGRAM, 3, 0, 20])
    assert done.returncode == 0, done.stderr
    assert finished(done) == 2


def test_two_torchrun_agents_with_a_restart(tmp_path):
    """The agent's store keeps the keys of the first attempt, and only one agent counts the restart."""
    port = free_port()
    script = tmp_path / "rank.sh"
    script.write_text(f'''#!/bin/sh
if [ "$RANK" = 1 ] && [ ! -e {tmp_path}/died ]; then
  touch {tmp_path}/died
  {RANK_PROGRAM} 1000 0.02 20 & sleep 2; kill -9 $!; exit 1
fi
exec {RANK_PROGRAM} 100 0.02 20
''')
    script.chmod(0o755)
    command = [BIN / "torchrun", "--no-python", "--nproc_per_node=1", "--nnodes=2", "--rdzv_backend=c10d",
               f"--rdzv_endpoint=localhost:{port}", "--rdzv_id=job", "--max_restarts=3", script]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for done in pool.map(lambda _: run(command, timeout=120), range(2)):
            assert done.returncode == 0, done.stderr
            assert finished(done) == 1


def test_accelerate():
    command = [BIN / "accelerate", "launch", "--multi_gpu", "--no_python", "--num_processes", 2, "--num_machines", 1,
               "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", free_port(), RANK_PROGRAM, 3,
               0, 20]
    done = run(command, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert finished(done) == 2


def test_accelerate_that_starts_one_process_without_a_rank_is_refused():
    command = [BIN / "accelerate", "launch", "--cpu", "--no_python", "--num_processes", 2, "--main_process_port",
               free_port(), RANK_PROGRAM, 3, 0, 20]
    done = run(command)
    assert done.returncode != 0
    assert "MASTER_ADDR is set, but RANK is not" in done.stderr
    assert finished(done) == 0


def test_two_jobs_at_once_do_not_meet():
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for done in pool.map(lambda _: run([LAUNCH_PROGRAM, 2, 0, RANK_PROGRAM, 20, 0.02, 20]), range(2)):
            assert done.returncode == 0, done.stderr
            assert finished(done) == 2


class Launched:
    """launch_program with its output read until every rank has made a step."""

    def __init__(self, ranks, restarts, *rank_arguments):
        self.process = subprocess.Popen([*map(str, [LAUNCH_PROGRAM, ranks, restarts, RANK_PROGRAM, *rank_arguments])],
                                        env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.pids = self.read_pids(ranks)

    def read_pids(self, ranks):
        pids = {}
        stepped = set()
        while len(stepped) < ranks:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            rank, what, number = re.fullmatch(r"(?:\[rank (\d)\] )?(\w+) ?(\d*)\n", line).groups()
            if what == "pid":
                pids[int(rank or 0)] = int(number)
            stepped.add(int(rank or 0)) if what == "step" else None
        return [pids[rank] for rank in range(ranks)]

    def end(self, timeout=30):
        _, errors = self.process.communicate(timeout=timeout)
        return self.process.returncode, errors


def all_gone(pids):
    for _ in range(200):
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.02)
    return False


def test_killed_rank_is_named_and_all_are_restarted():
    job = Launched(3, 1, 60, 0.05, 20)
    os.kill(job.pids[1], signal.SIGKILL)
    code, errors = job.end()
    assert "rank 1 on " in errors and "was killed by signal 9 (KILL)" in errors
    assert "restarting all ranks (1 of 1)" in errors
    assert code == 0, errors


def test_frozen_rank_ends_the_job_with_the_word_of_a_living_one():
    job = Launched(3, 0, 1000, 0.02, 2)
    os.kill(job.pids[1], signal.SIGSTOP)
    code, errors = job.end()
    assert code == COMMUNICATION
    assert "exited with code 3; its last line: rank " in errors.splitlines()[-1]
    assert "no sign of rank 1" in errors.splitlines()[-1]
    assert all_gone(job.pids)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_to_the_launcher_ends_all_ranks(number, code):
    job = Launched(2, 3, 1000, 0.02, 20)
    job.process.send_signal(number)
    assert job.end()[0] == code
    assert all_gone(job.pids)


def test_killed_launcher_leaves_no_orphan():
    job = Launched(2, 0, 1000, 0.02, 20)
    job.process.kill()
    job.process.wait()
    assert all_gone(job.pids)


def test_rank_zero_owns_the_terminal():
    ours, theirs = pty.openpty()
    script = 'test -t 2 || exit 9; [ $RANK = 0 ] && printf "\\r50 %%\\r100 %%\\n" >&2; exit 0'
    done = subprocess.run([LAUNCH_PROGRAM, "1", "0", "/bin/sh", "-c", script], env=clean_environment(), stderr=theirs)
    os.close(theirs)
    assert done.returncode == 0
    assert os.read(ours, 1000).replace(b"\r\n", b"\n") == b"\r50 %\r100 %\n"
