"""50 training steps beside PyTorch: FSDP2, diffusers' transformer and torch.optim.AdamW on two ranks each, from the same
weights, samples and noise. With FLOWSHARD_TEST_DEVICE=cuda on GPUs, on one rank if there is one."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

from conftest import ENVIRONMENT, ROOT, run_files
from tiny_flux import make_tiny_flux

PROGRAM = pathlib.Path(os.environ.get("FLOWSHARD", ROOT / "build/release/flowshard"))
DEVICE = os.environ.get("FLOWSHARD_TEST_DEVICE", "cpu")
STEPS, RANKS, SIDE = 50, 2 if DEVICE == "cpu" else min(2, torch.cuda.device_count()), 64
CONFIG = f"""\
[run]
output_dir = "out"
device = "{DEVICE}"
seed = 5
[model]
path = "model"
[data]
shards = ["data/shapes-{{000000..000001}}.tar"]
height = {SIDE}
width = {SIDE}
num_threads = 1
[text]
max_sequence_length = 12
[train]
steps = {STEPS}
batch_size = {4 // RANKS}
max_grad_norm = 1.0
[parallel]
strategy = "full_shard"
[precision]
mode = "fp32"
[flow]
guidance = 1.5
[optimizer]
lr = 1e-3
beta2 = 0.99
weight_decay = 0.05
[schedule]
warmup_steps = 0
"""


def run(folder, *command, timeout=180):
    done = subprocess.run([*map(str, command)], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True,
                          timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """(ours, theirs), a record for each step."""
    folder = tmp_path_factory.mktemp("fsdp2")
    make_tiny_flux(folder / "model", seed=3)
    run(folder, PROGRAM, "dataset", "shapes", "--output", "data", "--num-samples", 40, "--samples-per-shard", 20)
    (folder / "run.toml").write_text(CONFIG)
    run(folder, PROGRAM, "launch", "--nproc_per_node", RANKS, "--", "train", "run.toml")
    ours = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]

    nothing = folder / "nothing.safetensors"
    nothing.write_bytes((2).to_bytes(8, "little") + b"{}")
    batches = [folder / f"batches.{rank}.safetensors" for rank in range(RANKS)]
    for rank, path in enumerate(batches):
        run_files("training-batches", nothing, path, "run.toml", folder=folder,
                  options={"rank": rank, "world_size": RANKS, "num_steps": STEPS})
    settings = {"transformer": str(folder / "model/transformer"), "batches": [str(path) for path in batches],
                "num_steps": STEPS, "lr": 1e-3, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.05,
                "max_grad_norm": 1.0, "guidance": 1.5, "grid": [SIDE // 16, SIDE // 16], "device": DEVICE,
                "output": str(folder / "theirs.json")}
    (folder / "settings.json").write_text(json.dumps(settings))
    run(folder, sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", RANKS,
        pathlib.Path(__file__).with_name("fsdp2_training.py"), "settings.json")
    return ours, json.loads((folder / "theirs.json").read_text())


@pytest.mark.parametrize("quantity, bound", [("loss", 1e-5), ("grad_norm", 1e-4)])
def test_every_step_is_that_of_pytorch(losses, quantity, bound):
    ours, theirs = losses
    assert len(ours) == len(theirs) == STEPS
    distances = [abs(a[quantity] - b[quantity]) / abs(b[quantity]) for a, b in zip(ours, theirs)]
    assert max(distances) < (bound if DEVICE == "cpu" else 10 * bound)
    print(f"{quantity} of {RANKS} ranks on {DEVICE}: at most {max(distances):.1e} apart")


def test_the_model_learns(losses):
    _, theirs = losses
    assert sum(record["loss"] for record in theirs[-10:]) < 0.9 * sum(record["loss"] for record in theirs[:10])
