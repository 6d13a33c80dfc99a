"""Programs that a test starts, watches, signals and kills."""
import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time

from training_run import PROGRAM

BIN = pathlib.Path(sys.executable).parent  # of torchrun and accelerate


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def environment(**variables):
    """Ours, without what a launcher around the tests may have set."""
    prefixes = ("SLURM_", "TORCHELASTIC_", "MASTER_", "GLOO_", "OMPI_", "PMI", "MPI_", "PET_")
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes) and k not in names}
    return {**kept, "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in variables.items()}}


def start(folder, *command, **variables):
    """A running process with text pipes."""
    return subprocess.Popen([*map(str, command)], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment(**variables))


def end(process, timeout=60):
    """Exit code and stderr; fails if it is not over by then."""
    _, stderr = process.communicate(timeout=timeout)
    return process.returncode, stderr


def eventually(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds} s"
        time.sleep(0.002)


def num_records(output):
    path = output / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def ranks_below(launcher):
    """The processes of the ranks that `launcher` (a process id) started, however deep, by rank."""
    parents, ranks = {}, {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
    for pid in parents:
        ancestor = parents[pid]
        while ancestor not in (0, launcher):
            ancestor = parents.get(ancestor, 0)
        with contextlib.suppress(OSError, StopIteration):
            if ancestor == launcher and os.readlink(f"/proc/{pid}/exe") == str(PROGRAM.resolve()):
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                ranks[next(int(v[5:]) for v in variables if v.startswith(b"RANK="))] = pid
    return ranks


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
