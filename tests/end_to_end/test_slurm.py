"""flowshard train as a step and as a batch job of a real Slurm of two nodes."""
import pytest

import slurm_cluster
from processes import BIN, end, eventually, free_port, num_records, start
from training_run import PROGRAM, ROOT, lay_out, metrics, steps_saved

pytestmark = pytest.mark.skipif(bool(slurm_cluster.why_not()), reason=f"not run: {slurm_cluster.why_not()}")
SCRIPT = ROOT / "deploy/slurm/train.sbatch"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster.Cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def train_by_hand(folder, dataset, steps):
    """The records of two ranks that nobody interrupted."""
    folder.mkdir()
    lay_out(folder, dataset)
    job = start(folder, PROGRAM, "launch", "--nproc_per_node", "2", "--", "train", "run.toml", "--set", f"train.steps={steps}",
                "--set", "checkpoint.every_steps=1000000")
    code, stderr = end(job, timeout=120)
    assert code == 0, stderr
    return metrics(folder / "out/metrics.jsonl")


def test_srun(cluster, tiny_run, shapes_dataset):
    code, stderr = end(cluster.srun(tiny_run, "-N2", "-n2", PROGRAM, "train", "run.toml"))
    assert code == 0, stderr
    assert metrics(tiny_run / "out/metrics.jsonl") == train_by_hand(tiny_run / "by_hand", shapes_dataset, 4)


def test_torchrun_agents_inside_srun(cluster, tiny_run, shapes_dataset):
    code, stderr = end(cluster.srun(tiny_run, "-N2", "-n2", BIN / "torchrun", "--no-python", "--nnodes=2", "--nproc_per_node=1",
                                    "--rdzv_backend=c10d", "--rdzv_id=job", f"--rdzv_endpoint=localhost:{free_port()}", PROGRAM,
                                    "train", "run.toml"))
    assert code == 0, stderr
    assert num_records(tiny_run / "out") == 4


def test_contradiction_inside_srun(cluster, tiny_run):
    code, stderr = end(cluster.srun(tiny_run, "-N2", "-n2", PROGRAM, "train", "run.toml", RANK=0, WORLD_SIZE=1))
    assert code == 2 and "RANK=0 of WORLD_SIZE=1, but SLURM_PROCID=1 of SLURM_NTASKS=2" in stderr, stderr
    assert not (tiny_run / "out").exists()


def test_batch_script_without_srun(cluster, tiny_run):
    script = tiny_run / "job.sh"
    script.write_text(f"#!/bin/sh\nexec {PROGRAM} train run.toml\n")
    job = cluster.sbatch(tiny_run, "-N2", "--ntasks-per-node=1", "--output=log", script)
    cluster.wait_for_end(job, 30)
    assert "SLURM_NTASKS=2, but nothing says which rank" in (tiny_run / "log").read_text()
    assert not (tiny_run / "out").exists()


def test_batch_job_saves_before_its_time_is_over_and_goes_on(cluster, tiny_run, shapes_dataset):
    """The script of deploy/ with a limit of a minute: signal, checkpoint, requeue, resume; then scancel, with a checkpoint."""
    job = cluster.sbatch(tiny_run, "--ntasks-per-node=1", "--gpus-per-node=0", "--cpus-per-task=1", "--time=1",
                         "--signal=TERM@20", "--output=log", SCRIPT, "run.toml", "--set", "train.steps=1000000", "--set",
                         "checkpoint.every_steps=1000000", FLOWSHARD=PROGRAM)
    output, log = tiny_run / "out", tiny_run / "log"
    eventually(lambda: log.exists() and "back into the queue" in log.read_text(), "the signal before the end", 70)
    stopped_at = num_records(output)
    assert steps_saved(output) == [f"step-{stopped_at:08}"]
    assert "stopped by signal 15: go on with --resume auto" in log.read_text()
    expected = train_by_hand(tiny_run / "by_hand", shapes_dataset, stopped_at + 20)  # while the job waits in the queue
    eventually(lambda: num_records(output) >= stopped_at + 20, "the second run of the job", 90)
    cluster.ask("scancel", job)
    cluster.wait_for_end(job, 30)
    cancelled_at = num_records(output)
    assert metrics(output / "metrics.jsonl")[:stopped_at + 20] == expected
    assert steps_saved(output)[-1] == f"step-{cancelled_at:08}"
