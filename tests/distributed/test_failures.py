"""One rank is killed, frozen, absent or wrong: every other one ends in time, with exit code 3 and one line that says so."""
import re
import signal
import time

import pytest
from conftest import COMMUNICATION, USAGE, Rank, free_port

LONG = (1000, 0.02, 20)  # steps, seconds a step, timeout
SHORT = (1000, 0.02, 2)


def assert_names(lines, *words):
    assert len(lines) == 1, lines
    for word in words:
        assert word in lines[0]


def assert_misses(lines, victim):
    """The line names the victim; beside it perhaps a rank that had already ended because of it."""
    silent = re.search(r"no sign of ranks? ([0-9, ]+)", lines[0])
    assert silent and str(victim) in silent[1].split(", "), lines


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank_is_noticed_at_once(start_ranks, victim):
    ranks = start_ranks([0, 1, 2], 3, LONG)
    for rank in ranks:
        rank.wait_for_step()
    ranks[victim].send(signal.SIGKILL)
    start = time.monotonic()
    for number, rank in enumerate(ranks):
        if number != victim:
            code, lines = rank.end(timeout=10)
            assert code == COMMUNICATION
            assert_names(lines, f"rank {number} of 3: ", " failed after ", "timeout 20 s")
            assert_misses(lines, victim)
    assert time.monotonic() - start < 15  # not the 20 s of the timeout


@pytest.mark.parametrize("victim", [0, 1])
def test_frozen_rank_is_noticed_after_the_timeout(start_ranks, victim):
    ranks = start_ranks([0, 1, 2], 3, SHORT)
    for rank in ranks:
        rank.wait_for_step()
    ranks[victim].send(signal.SIGSTOP)
    start = time.monotonic()
    for number, rank in enumerate(ranks):
        if number != victim:
            code, lines = rank.end(timeout=12)
            assert code == COMMUNICATION
            assert_names(lines, f"rank {number} of 3: ", " failed after ", "timeout 2 s")
            assert_misses(lines, victim)
    assert 1.5 < time.monotonic() - start < 9


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_absent_rank_is_named_by_all(start_ranks, absent):
    present = [rank for rank in range(3) if rank != absent]
    start = time.monotonic()
    for number, rank in zip(present, start_ranks(present, 3, SHORT)):
        code, lines = rank.end(timeout=10)
        assert code == COMMUNICATION
        assert_names(lines, f"rank {number} of 3: rendezvous at localhost:", "timeout 2 s", f"rank {absent} did not come")
    assert time.monotonic() - start < 8


def test_name_that_does_not_resolve_is_named(start_ranks):
    [rank] = start_ranks([1], 2, SHORT, MASTER_ADDR="no-such-host.invalid")
    code, lines = rank.end(timeout=10)
    assert code == COMMUNICATION
    assert_names(lines, "rank 1 of 2: rendezvous", "rank 0 did not come", "no-such-host.invalid does not resolve")


@pytest.mark.parametrize("variables, words", [
    ({"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}, ["RANK"]),
    ({"RANK": "0", "WORLD_SIZE": "0"}, ["WORLD_SIZE=0"]),
    ({"RANK": "2", "WORLD_SIZE": "2"}, ["RANK=2"]),
    ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, ["MASTER_PORT"]),
])
def test_wrong_environment_is_refused_at_once(variables, words):
    rank = Rank(*LONG, **variables)
    code, lines = rank.end(timeout=5)
    assert code == USAGE
    assert_names(lines, *words)


def test_taken_port_is_named_and_the_other_job_goes_on(start_ranks):
    port = free_port()
    first = start_ranks([0, 1], 2, (160, 0.05, 10), MASTER_PORT=port)
    for rank in first:
        rank.wait_for_step()
    second = start_ranks([0, 1], 2, (5, 0, 4), MASTER_PORT=port)
    code, lines = second[0].end(timeout=8)
    assert code == COMMUNICATION
    assert_names(lines, f"port {port} is taken")
    code, lines = second[1].end(timeout=12)
    assert code == COMMUNICATION
    assert_names(lines, "rank 1 of 2: rendezvous", "another job")
    for rank in first:
        assert rank.end(timeout=20) == (0, [])


def test_gloo_interface_is_honoured(start_ranks):
    for rank in start_ranks([0, 1], 2, (3, 0, 5), GLOO_SOCKET_IFNAME="lo"):
        assert rank.end(timeout=20) == (0, [])
    for rank in start_ranks([0, 1], 2, (3, 0, 5), GLOO_SOCKET_IFNAME="nosuch0"):
        code, lines = rank.end(timeout=20)
        assert code == USAGE
        assert_names(lines, "GLOO_SOCKET_IFNAME=nosuch0")
