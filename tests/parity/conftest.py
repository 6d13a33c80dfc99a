"""What every parity test needs: the program that runs one piece of Flowshard on given tensors."""
import json
import os
import pathlib
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The models are tiny: threads would only wait for each other, and on a busy machine for long.
torch.set_num_threads(1)
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
RUNNER = pathlib.Path(os.environ.get("FLOWSHARD_PARITY", ROOT / "build/release/tests/parity/flowshard_parity"))


class RunnerError(Exception):
    """The program ended with `exit_code` and said `message` on its last line."""

    def __init__(self, exit_code, message):
        super().__init__(f"exit code {exit_code}: {message}")
        self.exit_code = exit_code
        self.message = message


def run_files(subcommand, source, target, *args, options=None, folder=None):
    """Runs `subcommand` from one safetensors file to another, in `folder`."""
    command = [RUNNER, subcommand, source, target, json.dumps(options or {}), *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=ENVIRONMENT, cwd=folder)
    if result.returncode != 0:
        raise RunnerError(result.returncode, (result.stderr.strip().splitlines() or [""])[-1])


@pytest.fixture
def run(tmp_path):
    """run(subcommand, *args, inputs={name: tensor}, options={...}) -> {name: tensor}.

    `args` are words such as a model folder; `options` reaches the subcommand as a JSON object."""

    def run_tensors(subcommand, *args, inputs=None, options=None):
        source, target = tmp_path / "parity-in.safetensors", tmp_path / "parity-out.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in (inputs or {}).items()}, source)
        run_files(subcommand, source, target, *args, options=options)
        return load_file(target)

    return run_tensors


def relative_error(ours, theirs):
    """The largest difference over the largest reference value."""
    assert ours.shape == theirs.shape, f"{tuple(ours.shape)} is not {tuple(theirs.shape)}"
    ours, theirs = ours.double(), theirs.double()
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(torch.finfo(torch.double).tiny))
