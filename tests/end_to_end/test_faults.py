"""What fails around a job: the network, the disk, one rank's data, the clock; and signals to some of its ranks."""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

from processes import end, eventually, free_port, num_records, start
from test_interruptions import can_mount
from training_run import PROGRAM, lay_out, metrics, rewrite_tar, steps_saved

needs_root = pytest.mark.skipif(not can_mount(), reason="not run: this needs root")
LONG = ["--set", "train.steps=100000", "--set", "checkpoint.every_steps=100000"]


def by_hand(folder, *arguments, prefixes=((), ()), **variables):
    """Two ranks, each after its own prefix."""
    world = {"MASTER_ADDR": "localhost", "MASTER_PORT": free_port(), "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, **variables}
    return [start(folder, *prefixes[rank], PROGRAM, "train", "run.toml", *arguments, RANK=rank, LOCAL_RANK=rank, **world)
            for rank in (0, 1)]


def run(*command):
    subprocess.run([*map(str, command)], check=True, capture_output=True, timeout=30)


@contextlib.contextmanager
def two_hosts(name):
    """Two network namespaces NAME1 and NAME2 with a cable between them: 10.77.0.1 and 10.77.0.2."""
    hosts = [f"{name}{i}" for i in (1, 2)]
    try:
        for host in hosts:
            run("ip", "netns", "add", host)
            run("ip", "-n", host, "link", "set", "lo", "up")
        run("ip", "link", "add", "e0", "netns", hosts[0], "type", "veth", "peer", "name", "e0", "netns", hosts[1])
        for i, host in enumerate(hosts, 1):
            run("ip", "-n", host, "addr", "add", f"10.77.0.{i}/24", "dev", "e0")
            run("ip", "-n", host, "link", "set", "e0", "up")
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host], capture_output=True)


@pytest.fixture
def hosts():
    if not can_mount() or not shutil.which("ip"):
        pytest.skip("not run: network namespaces need root and iproute2")
    with two_hosts(f"fs{os.getpid() % 10000}-") as hosts:
        yield hosts


def across(folder, hosts, *arguments):
    return by_hand(folder, *arguments, prefixes=[("ip", "netns", "exec", host) for host in hosts], MASTER_ADDR="10.77.0.1",
                   GLOO_SOCKET_IFNAME="e0")


def test_a_cut_network(tiny_run, hosts):
    ranks = across(tiny_run, hosts, *LONG, "--set", "distributed.timeout_seconds=4")
    eventually(lambda: num_records(tiny_run / "out") >= 3, "step 3")
    run("ip", "-n", hosts[1], "link", "set", "e0", "down")
    began = time.monotonic()
    for rank, process in enumerate(ranks):
        code, stderr = end(process, timeout=30)
        assert code == 3, stderr
        assert f"rank {1 - rank}" in stderr.splitlines()[-1].split("]", 1)[1] and "timeout 4 s" in stderr, stderr
    assert time.monotonic() - began < 4 + 10


def test_a_network_that_comes_back_in_time(tiny_run, hosts, whole):
    ranks = across(tiny_run, hosts, "--set", "train.steps=12")
    eventually(lambda: num_records(tiny_run / "out") >= 3, "step 3")
    run("ip", "-n", hosts[1], "link", "set", "e0", "down")
    time.sleep(2)
    stopped_at = num_records(tiny_run / "out")
    run("ip", "-n", hosts[1], "link", "set", "e0", "up")
    for process in ranks:
        code, stderr = end(process)
        assert code == 0, stderr
    assert stopped_at < 12 and metrics(tiny_run / "out/metrics.jsonl") == whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory, shapes_dataset):
    """The records of two ranks to whom nothing happened."""
    folder = tmp_path_factory.mktemp("whole")
    lay_out(folder, shapes_dataset)
    for process in by_hand(folder, "--set", "train.steps=12"):
        assert end(process)[0] == 0
    return metrics(folder / "out/metrics.jsonl")


def assert_goes_on(folder, whole):
    for process in by_hand(folder, "--set", "train.steps=12", "--resume", "auto"):
        code, stderr = end(process)
        assert code == 0, stderr
    assert metrics(folder / "out/metrics.jsonl") == whole


@pytest.mark.parametrize("to", [[0], [1], [0, 1]], ids=["rank 0", "rank 1", "all"])
def test_a_signal_to_some_ranks_ends_all_with_one_checkpoint(tiny_run, whole, to):
    ranks = by_hand(tiny_run, "--set", "train.steps=12", "--set", "checkpoint.every_steps=1000")
    eventually(lambda: num_records(tiny_run / "out") >= 3, "step 3")
    for rank in to:
        ranks[rank].send_signal(signal.SIGTERM)
    for process in ranks:
        code, stderr = end(process, timeout=20)
        assert code == 128 + signal.SIGTERM, stderr
    step = num_records(tiny_run / "out")
    assert 3 <= step < 12 and steps_saved(tiny_run / "out") == [f"step-{step:08}"]
    assert_goes_on(tiny_run, whole)


def test_bad_data_of_one_rank_ends_all(tiny_run):
    """The host of rank 1 has a copy of the shards whose pictures cannot be decoded."""
    shutil.copytree(tiny_run, tiny_run / "one")
    folders = [tiny_run, tiny_run / "one"]
    for shard in (folders[1] / "data").glob("*.tar"):
        rewrite_tar(shard, lambda name, old: old if name.endswith(".txt") else b"x" * len(old))
    world = {"MASTER_ADDR": "localhost", "MASTER_PORT": free_port(), "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    first, second = [start(folder, PROGRAM, "train", "run.toml", "--set", "distributed.timeout_seconds=5", RANK=rank, LOCAL_RANK=rank,
                           **world) for rank, folder in enumerate(folders)]
    code, stderr = end(second)
    assert code == 4 and "shapes-00000" in stderr.splitlines()[-1], stderr
    code, stderr = end(first, timeout=20)
    assert code == 3 and "rank 1" in stderr.splitlines()[-1].split("]", 1)[1], stderr


@contextlib.contextmanager
def small_disk(folder):
    """A file system of its own, in a file, that can be frozen as a server that does not answer."""
    image = folder.with_name(folder.name + ".image")
    image.write_bytes(b"")
    os.truncate(image, 96 << 20)
    run("mkfs.ext4", "-q", image)
    folder.mkdir()
    run("mount", "-o", "loop,errors=remount-ro", image, folder)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", folder], capture_output=True)
        run("umount", folder)


@needs_root
def test_storage_that_stands_still_for_a_while(tiny_run, whole):
    """For less than the timeout, from before a save on."""
    with small_disk(tiny_run / "out"):
        ranks = by_hand(tiny_run, "--set", "train.steps=12")
        eventually(lambda: num_records(tiny_run / "out") >= 3, "step 3")
        run("fsfreeze", "-f", tiny_run / "out")
        time.sleep(3)
        stopped_at = num_records(tiny_run / "out")
        run("fsfreeze", "-u", tiny_run / "out")
        for process in ranks:
            code, stderr = end(process)
            assert code == 0, stderr
        assert stopped_at < 12 and metrics(tiny_run / "out/metrics.jsonl") == whole
        assert subprocess.run([PROGRAM, "inspect", "out/checkpoints/step-00000012"], cwd=tiny_run, capture_output=True).returncode == 0


@needs_root
def test_storage_that_becomes_read_only(tiny_run):
    """As the kernel does after an error of the disk."""
    with small_disk(tiny_run / "out"):
        ranks = by_hand(tiny_run, *LONG[:2], "--set", "distributed.timeout_seconds=5")
        eventually(lambda: num_records(tiny_run / "out") >= 5, "step 5")
        device = pathlib.Path(subprocess.run(["findmnt", "-n", "-o", "SOURCE", tiny_run / "out"], capture_output=True, text=True,
                                             check=True).stdout.strip())
        pathlib.Path(f"/sys/fs/ext4/{device.name}/trigger_fs_error").write_text("1")
        (code, stderr), (other, _) = [end(process, timeout=30) for process in ranks]
        # What is being written at that moment gets EIO, what comes after it EROFS.
        last = stderr.splitlines()[-1]
        assert code in (4, 5) and ("Read-only file system" in last or "Input/output error" in last), stderr
        assert "out/" in last
        assert other in (3, 5)
        saved = steps_saved(tiny_run / "out")
        assert "step-00000002" in saved or "step-00000004" in saved
        for name in saved:
            if name.startswith("step-") and not name.endswith(".tmp"):
                assert subprocess.run([PROGRAM, "inspect", f"out/checkpoints/{name}"], cwd=tiny_run, capture_output=True).returncode == 0


STEPPED_CLOCK = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long jump(long seconds) { return access("FILE", F_OK) == 0 ? seconds : seconds + BEFORE; }
int clock_gettime(clockid_t id, struct timespec* now) {
  int result = syscall(SYS_clock_gettime, id, now);
  if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) now->tv_sec = jump(now->tv_sec);
  return result;
}
int gettimeofday(struct timeval* now, void* zone) {
  struct timespec at;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &at);
  now->tv_sec = at.tv_sec;
  now->tv_usec = at.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* out) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  if (out) *out = at.tv_sec;
  return at.tv_sec;
}
"""


@pytest.fixture(params=[-86400, 86400], ids=["forward", "back"])
def steppable_clock(request, tmp_path):
    """A library that makes the clock of the day wrong by a day, until set_right() steps it."""
    source, library, file = tmp_path / "clock.c", tmp_path / "clock.so", tmp_path / "right"
    source.write_text(STEPPED_CLOCK.replace("FILE", str(file)).replace("BEFORE", str(request.param)))
    run("gcc", "-shared", "-fPIC", "-O1", "-o", library, source)

    def day():
        return subprocess.run(["date", "+%j"], env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True, text=True).stdout

    def set_right():
        before = day()
        file.touch()
        assert day() != before

    return library, set_right


def test_a_clock_that_is_set_during_a_wait(tiny_run, steppable_clock):
    """A frozen rank is found in the time that was set."""
    library, set_right = steppable_clock
    ranks = by_hand(tiny_run, *LONG, "--set", "distributed.timeout_seconds=4", LD_PRELOAD=library)
    eventually(lambda: num_records(tiny_run / "out") >= 3, "step 3")
    ranks[1].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    time.sleep(1)
    set_right()
    code, stderr = end(ranks[0], timeout=40)
    ranks[1].kill()
    assert code == 3 and "no sign of rank 1" in stderr.splitlines()[-1], stderr
    assert 3 < time.monotonic() - began < 4 + 10
    ranks[1].communicate()


def test_a_clock_that_is_set_while_training(tiny_run, whole, steppable_clock):
    library, set_right = steppable_clock
    ranks = by_hand(tiny_run, "--set", "train.steps=12", LD_PRELOAD=library)
    eventually(lambda: num_records(tiny_run / "out") >= 3, "step 3")
    set_right()
    for process in ranks:
        code, stderr = end(process)
        assert code == 0, stderr
    assert metrics(tiny_run / "out/metrics.jsonl") == whole
