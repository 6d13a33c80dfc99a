"""flowshard bench step: measures a configuration without weights or data, and leaves nothing behind."""
import json

import pytest

from test_bad_input import assert_refused, files_below


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_is_measured(flowshard, tiny_run, ranks):
    for path in [*tiny_run.glob("data/*"), *tiny_run.glob("model/*/*.safetensors")]:
        path.unlink()
    before = files_below(tiny_run)
    result = flowshard("launch", "--nproc_per_node", ranks, "--", "bench", "step", "run.toml", "--steps", 3, "--json",
                       "--set", "train.gradient_accumulation_steps=2")
    assert result.returncode == 0, result.stderr
    measured = json.loads(result.stdout)
    assert 0 < measured["step_seconds_low"] <= measured["step_seconds"] <= measured["step_seconds_high"]
    assert {"forward pass", "backward pass", "gradient norm", "optimizer step"} <= measured["phase_seconds"].keys()
    assert 0 <= measured["waiting_seconds"] < measured["step_seconds_high"]
    assert (measured["waiting_seconds"] > 1e-4) == (ranks > 1)
    assert 0 < measured["loss"] < 10 and 0 < measured["tflops"]
    assert files_below(tiny_run) == before


def test_on_cpus_there_is_no_share_of_the_peak_of_a_gpu(flowshard, tiny_run):
    printed = flowshard("bench", "step", "run.toml", "--steps", 1, "--warm-up", 0).stdout.splitlines()
    assert printed[1].endswith("TFLOP/s a rank (three forward passes' work, docs/memory.md)") and float(printed[1].split()[0]) > 0


def test_what_cannot_be_measured_is_refused(flowshard, tiny_run):
    assert_refused(flowshard("bench", "step", "run.toml", "--steps", 0), 2, "flowshard bench step: error: --steps",
                   "see flowshard bench step --help")
    assert_refused(flowshard("bench", "nope"), 2, "flowshard bench: error: there is no subcommand 'nope' (see flowshard bench --help)")
    assert_refused(flowshard("bench", "step", "run.toml", "--peak-tflops", "nan"), 2, "--peak-tflops: nan")
    assert_refused(flowshard("bench", "collectives", "--max-mib", "nan"), 2, "flowshard bench collectives: error: --max-mib: nan")
    assert_refused(flowshard("bench", "step", "run.toml", "--set", "model.path=nowhere"), 2, "nowhere")
    assert_refused(flowshard("bench", "step", "run.toml", "--set", "run.device=tpu"), 2, "run.device")
