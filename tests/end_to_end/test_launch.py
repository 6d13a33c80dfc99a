"""flowshard launch as a user meets it. What it does to processes is tested in src/launcher and tests/distributed."""
import socket

import pytest


@pytest.mark.parametrize("options", [
    ["--nproc_per_node", 2, "--max_restarts", 1, "--rdzv_endpoint", "localhost:0", "--"],
    ["--nproc-per-node=2", "--max-restarts=1", "--rdzv-endpoint=localhost:0", "--node-rank=0", "--grace=0.5", "--"],
    ["--nproc_per_node", 2],
])
def test_both_spellings_and_the_separator(flowshard, options):
    done = flowshard("launch", *options, "dataset", "--help")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    ours = [line for line in lines if not line.startswith("[rank 1] ")]
    theirs = [line.removeprefix("[rank 1] ") for line in lines if line.startswith("[rank 1] ")]
    assert ours and ours == theirs


def test_options_of_the_ranks_are_not_the_launchers(flowshard):
    done = flowshard("launch", "--nproc_per_node=1", "--", "train", "nosuch.toml", "--set", "run.seed=3")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("flowshard launch: error: rank 0 on ")
    assert "exited with code 2; its last line: flowshard train: error: " in last and "nosuch.toml" in last


@pytest.mark.parametrize("arguments, words", [
    (["--nproc", 2, "--", "train"], "launch has no option --nproc"),
    (["--nproc", 2, "train"], "launch has no option --nproc"),
    ([], "what the ranks shall run is missing"),
    (["--nproc_per_node", "two", "--", "train"], "--nproc_per_node 'two'"),
    (["--nproc_per_node", 0, "--", "train"], "--nproc_per_node '0'"),
    (["--nproc_per_node", 1_000_000_000, "--", "train"], "--nproc_per_node '1000000000' is neither a number from 1 to 1024"),
    (["--nnodes", 0, "--", "train"], "--nnodes 0 is not between 1 and 65536"),
    (["--nnodes", 2_000_000_000, "--node_rank", 1, "--rdzv_endpoint", "gpu-1:29500", "--", "train"], "--nnodes 2000000000"),
    (["--grace", "nan", "--", "train"], "--grace: nan is no number from 0 to 86400"),
    (["--rdzv_endpoint", "gpu-1", "--", "train"], "'gpu-1' is not HOST:PORT"),
    (["--nnodes", 2, "--", "train"], "needs --rdzv_endpoint"),
    (["--nnodes", 2, "--node_rank", 2, "--rdzv_endpoint", "gpu-1:29500", "--", "train"], "--node_rank 2"),
    (["--max_restarts", -1, "--", "train"], "--max_restarts"),
])
def test_mistakes_are_refused_before_a_rank_starts(flowshard, arguments, words):
    done = flowshard("launch", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("flowshard launch: error: ") and words in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not done.stdout


def test_taken_port_is_named(flowshard):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = flowshard("launch", "--nproc_per_node=2", f"--rdzv_endpoint=localhost:{port}", "--", "train", "x.toml")
    assert done.returncode == 2
    assert f"port {port} is taken" in done.stderr
