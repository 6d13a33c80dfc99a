"""flowshard train under the launchers that people have: torchrun, accelerate and mpirun, for real."""
import os
import shutil
import signal

import pytest

from processes import BIN, end, eventually, free_port, num_records, ranks_below, start
from training_run import PROGRAM, lay_out, metrics, steps_saved

STEPS = 16
USUAL_FLAGS = ["--use_fsdp", "--mixed_precision=bf16", "--gradient_accumulation_steps=4"]
TORCHRUN = [BIN / "torchrun", "--no-python", "--rdzv_backend=c10d"]


def train(*arguments):
    return ["train", "run.toml", "--set", f"train.steps={STEPS}", *arguments]


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory, shapes_dataset):
    """by_hand(*arguments): the records of two ranks that nobody launched: they are started with RANK and WORLD_SIZE."""

    def run(*arguments):
        folder = tmp_path_factory.mktemp("by_hand")
        lay_out(folder, shapes_dataset)
        world = {"WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": free_port(), "LOCAL_WORLD_SIZE": 2}
        for rank in [start(folder, PROGRAM, *train(*arguments), RANK=rank, LOCAL_RANK=rank, **world) for rank in (0, 1)]:
            code, stderr = end(rank)
            assert code == 0, stderr
        return metrics(folder / "out/metrics.jsonl")

    return run


@pytest.fixture(scope="module")
def two_ranks(by_hand):
    return by_hand()


def assert_trained(job, folder, expected):
    code, stderr = end(job, timeout=120)
    assert code == 0, stderr
    assert metrics(folder / "out/metrics.jsonl") == expected


def test_torchrun_on_one_node(tiny_run, by_hand):
    job = start(tiny_run, *TORCHRUN, "--nproc_per_node=2", "--nnodes=1", "--rdzv_endpoint=localhost:0", PROGRAM,
                *train(*USUAL_FLAGS))
    expected = by_hand("--set", "parallel.strategy=full_shard", "--set", "precision.mode=bf16", "--set",
                       "train.gradient_accumulation_steps=4")
    assert_trained(job, tiny_run, expected)
    assert [record["samples_seen"] for record in expected] == [16 * step for step in range(1, STEPS + 1)]


def test_torchrun_on_two_nodes(tiny_run, two_ranks):
    port = free_port()
    agents = [start(tiny_run, *TORCHRUN, "--nproc_per_node=1", "--nnodes=2", "--rdzv_id=job",
                    f"--rdzv_endpoint=localhost:{port}", PROGRAM, *train()) for _ in range(2)]
    for agent in agents:
        assert_trained(agent, tiny_run, two_ranks)


@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_restarts_from_the_last_checkpoint(tiny_run, two_ranks, victim):
    job = start(tiny_run, *TORCHRUN, "--nproc_per_node=2", "--nnodes=1", "--rdzv_endpoint=localhost:0", "--max_restarts=1",
                "--monitor_interval=0.1", PROGRAM, *train("--resume", "auto", "--set", "checkpoint.keep=10"))
    eventually((tiny_run / "out/checkpoints/step-00000002").exists, "a checkpoint")
    kept = {path: path.stat().st_ino for path in (tiny_run / "out/checkpoints").glob("step-00000002/*")}
    assert num_records(tiny_run / "out") < STEPS
    os.kill(ranks_below(job.pid)[victim], signal.SIGKILL)
    assert_trained(job, tiny_run, two_ranks)
    assert kept == {path: path.stat().st_ino for path in (tiny_run / "out/checkpoints").glob("step-00000002/*")}
    assert steps_saved(tiny_run / "out") == [f"step-{step:08}" for step in range(2, STEPS + 1, 2)]


def test_accelerate(tiny_run, two_ranks):
    job = start(tiny_run, BIN / "accelerate", "launch", "--multi_gpu", "--no_python", "--num_processes", 2, "--num_machines", 1,
                "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", free_port(), PROGRAM, *train(),
                CUDA_VISIBLE_DEVICES="")
    assert_trained(job, tiny_run, two_ranks)


MPIRUN = {
    "openmpi": ("mpirun.openmpi", ["--allow-run-as-root", "--oversubscribe", "-x", "MASTER_ADDR", "-x", "MASTER_PORT"]),
    "mpich": ("mpirun.mpich", []),
}


@pytest.fixture(params=MPIRUN)
def mpirun(request):
    program, options = MPIRUN[request.param]
    if not shutil.which(program):
        pytest.skip(f"not run: {program} is not installed")
    return [program, "-n", 2, *options]


def test_mpirun(tiny_run, two_ranks, mpirun):
    job = start(tiny_run, *mpirun, PROGRAM, *train(), MASTER_ADDR="localhost", MASTER_PORT=free_port())
    assert_trained(job, tiny_run, two_ranks)


def test_mpirun_without_a_meeting_point_is_refused(tiny_run, mpirun):
    code, stderr = end(start(tiny_run, *mpirun, PROGRAM, *train()))
    assert code == 2, stderr
    for rank in (0, 1):
        assert f"flowshard train [rank {rank} of 2 on " in stderr
    assert "error: mpirun started 2 ranks, but MASTER_ADDR and MASTER_PORT do not say where they meet" in stderr
    assert not (tiny_run / "out").exists()


@pytest.mark.parametrize("variables, words", [
    ({"RANK": 0, "WORLD_SIZE": 1, "SLURM_STEP_ID": 0, "SLURM_PROCID": 1, "SLURM_NTASKS": 2}, "SLURM_PROCID=1 of SLURM_NTASKS=2"),
    ({"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 2, "LOCAL_WORLD_SIZE": 2}, "LOCAL_RANK=2"),
    ({"PET_NNODES": 2, "PET_NODE_RANK": 0, "PET_NPROC_PER_NODE": 1}, "PET_NNODES=2"),
    ({"PMI_SIZE": 2, "PMI_RANK": 0}, "PMI_SIZE=2"),
    ({"PMIX_RANK": 1}, "PMIX_RANK=1"),
])
def test_contradictions_are_refused(tiny_run, variables, words):
    code, stderr = end(start(tiny_run, PROGRAM, *train(), **variables))
    assert code == 2 and words in stderr and stderr.count("\n") == 1, stderr
    assert not (tiny_run / "out").exists()
