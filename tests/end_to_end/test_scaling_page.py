"""docs/scaling.md and the program that makes its tables."""
import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tools/scaling.py"


@pytest.fixture(scope="module")
def scaling():
    spec = importlib.util.spec_from_file_location("scaling", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tables(*options):
    return subprocess.run([sys.executable, PROGRAM, *options], check=True, capture_output=True, text=True).stdout


def test_page_holds_the_tables_that_the_program_prints():
    page = (ROOT / "docs/scaling.md").read_text()
    for block in tables().strip().split("\n\n"):
        assert block in page


def test_closed_forms(scaling):
    machine = scaling.parse(["--nvlink-hop-us", "0", "--network-hop-us", "0"])
    parameters = 11_901_408_320
    assert scaling.PARAMETERS == parameters
    full = scaling.communication("full_shard", 8, machine)
    assert full.sharded == pytest.approx(8 * parameters * 7 / 8) and full.replicated == 0
    assert full.seconds == pytest.approx(parameters * 7 / 8 * (4 / 270e9 + 4 / 265e9))
    hybrid = scaling.communication("hybrid_shard", 64, machine)
    assert hybrid.replicated == pytest.approx(2 * 4 * parameters / 8 * 7 / 8)
    assert hybrid.seconds == pytest.approx(full.seconds + hybrid.replicated / 50e9)
    ddp = scaling.communication("no_shard", 64, machine)
    assert ddp.sharded == 0 and ddp.seconds == pytest.approx(2 * 4 * parameters * 63 / 64 / 265e9)
    # A network card of each GPU slower than its share of NVLink is what limits a ring over hosts.
    slow = scaling.parse(["--nic", "10", "--nvlink-hop-us", "0", "--network-hop-us", "0"])
    assert scaling.communication("full_shard", 64, slow).seconds == pytest.approx(8 * parameters * 63 / 64 / 80e9)


def test_last_size_of_which_communication_is_hidden(scaling):
    machine = scaling.parse([])
    for strategy in scaling.STRATEGIES:
        bound = scaling.largest_hidden(strategy, 0.498, machine)
        assert scaling.communication(strategy, bound, machine).seconds <= 0.498
        assert scaling.communication(strategy, bound + 8, machine).seconds > 0.498
    assert scaling.largest_hidden("full_shard", 0.001, machine) == 0
    assert scaling.largest_hidden("full_shard", 1e9, machine) is None


def test_takes_the_bandwidths_of_the_benchmark(flowshard, tmp_path, scaling):
    done = flowshard("launch", "--nproc_per_node", 2, "--", "bench", "collectives", "--device", "cpu", "--max-mib", 1,
                     "--repeats", 1, "--json")
    assert done.returncode == 0, done.stderr
    report = tmp_path / "one_host.json"
    report.write_text(done.stdout)
    machine = scaling.parse(["--bandwidths", str(report)])
    assert 1e6 < machine.all_gather < 1e11 and 1e6 < machine.reduce_scatter < 1e11
    assert "| full_shard | 8 | 83.3 |" in tables("--bandwidths", str(report))
