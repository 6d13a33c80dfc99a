"""flowshard bench collectives on ranks that are processes."""
import json
import sys

import pytest

from conftest import BIN, BUILD, COMMUNICATION, USAGE, free_port, run

FLOWSHARD = BUILD / "flowshard"
BENCH = ["bench", "collectives", "--device", "cpu", "--repeats", 2]


@pytest.mark.parametrize("launcher", [
    [FLOWSHARD, "launch", "--nproc_per_node", 2, "--"],
    [sys.executable, BIN / "torchrun", "--no-python", "--nproc_per_node", 2, FLOWSHARD],
])
def test_numbers_as_json(launcher):
    done = run([*launcher, *BENCH, "--max-mib", 2, "--json"])
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["num_ranks"], report["device"], report["dtype"]) == (2, "cpu", "bf16")
    rows = report["results"]
    assert [(row["operation"], row["bytes"]) for row in rows] == [
        (operation, size << 20) for size in (1, 2) for operation in ("all_gather", "reduce_scatter", "all_reduce")]
    for row in rows:
        assert 0 < row["seconds_low"] <= row["seconds"] <= row["seconds_high"]
        assert row["algorithm_bytes_per_second"] == pytest.approx(row["bytes"] / row["seconds"])
        factor = 1 if row["operation"] == "all_reduce" else 0.5
        assert row["bus_bytes_per_second"] == pytest.approx(factor * row["bytes"] / row["seconds"])


def test_table_states_its_formulas():
    done = run([FLOWSHARD, "launch", "--nproc_per_node", 3, "--", *BENCH, "--max-mib", 0.5, "--dtype", "fp32"])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("3 ranks, Gloo on the CPU, fp32")
    assert "S / t" in lines[1] and "2 (n - 1) / n" in lines[2]
    assert [line.split()[0] for line in lines[-3:]] == ["all_gather", "reduce_scatter", "all_reduce"]


@pytest.mark.parametrize("arguments, words", [
    (["--device", "cpu"], "one rank has nobody to exchange with"),
    (["--device", "cuda"], "no CUDA device is visible"),
    (["--repeats", 0], "--repeats"),
    (["--max-mib", -1], "--max-mib"),
    (["--dtype", "fp8"], "--dtype"),
])
def test_mistakes(arguments, words):
    done = run([FLOWSHARD, "bench", "collectives", *arguments])
    assert done.returncode == USAGE
    assert done.stderr.startswith("flowshard bench collectives: error: ") and words in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not done.stdout


def test_rank_that_does_not_come_is_named_within_the_timeout():
    done = run([FLOWSHARD, *BENCH, "--timeout", 2], RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2,
               MASTER_ADDR="localhost", MASTER_PORT=free_port())
    assert done.returncode == COMMUNICATION and done.seconds < 20
    assert "rank 1 did not come" in done.stderr
