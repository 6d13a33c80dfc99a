"""Steps whose gradient is not finite, the loss scale of fp16, and every precision on one and on two ranks."""
import math

import pytest
import torch
from diffusers import FluxTransformer2DModel
from training_run import metrics



def save_transformer(folder, change):
    """Weights of PyTorch's own initialization, changed."""
    torch.manual_seed(0)
    model = FluxTransformer2DModel.from_config(FluxTransformer2DModel.load_config(folder / "model/transformer"))
    with torch.no_grad():
        change(model)
    model.save_pretrained(folder / "model/transformer")


def train(flowshard, ranks, *settings):
    words = [word for setting in settings for word in ("--set", setting)]
    return flowshard("launch", "--nproc_per_node", ranks, "--", "train", "run.toml", "--resume", "auto",
                     "--set", "model.initialization=pretrained", *words)


@pytest.mark.parametrize("mode", ["bf16", "fp16", "bf16_pure"])
def test_a_low_precision_follows_fp32(flowshard, tiny_run, mode):
    save_transformer(tiny_run, lambda model: None)
    losses = {}
    for name, ranks in [("fp32", 1), (mode, 1), (mode, 2)]:
        result = train(flowshard, ranks, f"precision.mode={name}", f"train.batch_size={4 // ranks}", f"run.output_dir={name}-{ranks}")
        assert result.returncode == 0, result.stderr
        losses[name, ranks] = [record["loss"] for record in metrics(tiny_run / f"{name}-{ranks}/metrics.jsonl")]
    assert losses[mode, 1] == pytest.approx(losses["fp32", 1], rel=2e-2)
    assert losses[mode, 2] == pytest.approx(losses[mode, 1], rel=5e-3)
    assert losses[mode, 1] != losses["fp32", 1]


def test_an_overflow_in_fp16_halves_the_loss_scale_on_all_ranks(flowshard, tiny_run):
    """Velocities of about ten: their gradients times 65536 are beyond fp16."""
    save_transformer(tiny_run, lambda model: model.proj_out.weight.mul_(20))
    settings = ["precision.mode=fp16", "train.steps=8", "optimizer.lr=0"]
    assert train(flowshard, 2, *settings).returncode == 0
    records = metrics(tiny_run / "out/metrics.jsonl")
    skipped = [record for record in records if not math.isfinite(record["grad_norm"] or math.nan)]
    assert 1 <= len(skipped) < 8 and records[-1]["skipped_steps"] == len(skipped), records
    assert records[-1]["loss_scale"] == 65536 / 2 ** len(skipped)
    assert [record["samples_seen"] for record in records] == [4 * step for step in range(1, 9)]

    for step in [4, 6, 8]:  # the scale and the count go on
        result = train(flowshard, 2, *settings, f"train.steps={step}", "run.output_dir=again")
        assert result.returncode == 0, result.stderr
    assert metrics(tiny_run / "again/metrics.jsonl") == records


def test_fp16_after_another_precision_begins_with_its_own_loss_scale(flowshard, tiny_run):
    """A run without a loss scale has none to hand on."""
    save_transformer(tiny_run, lambda model: None)
    for mode, steps in (("bf16", 2), ("fp16", 4), ("fp32", 6), ("fp16", 8)):
        result = train(flowshard, 1, f"precision.mode={mode}", f"train.steps={steps}")
        assert result.returncode == 0, result.stderr
    scales = [record["loss_scale"] for record in metrics(tiny_run / "out/metrics.jsonl")]
    assert scales == [1, 1, 65536, 65536, 1, 1, 65536, 65536]


def test_steps_without_a_finite_gradient_end_the_run(flowshard, tiny_run):
    save_transformer(tiny_run, lambda model: model.transformer_blocks[0].attn.to_q.weight.fill_(math.inf))
    result = train(flowshard, 2, "train.max_skipped_steps=3", "train.steps=9", "checkpoint.every_steps=1000")
    assert result.returncode == 4, result.stderr
    lines = result.stderr.splitlines()
    assert any("step 1 skipped: the gradient of img_in.weight is not finite" in line for line in lines), result.stderr
    assert any("error: step 3 (optimizer step): 3 steps in a row were skipped" in line and "diverged" in line for line in lines)
    records = metrics(tiny_run / "out/metrics.jsonl")
    assert [record["loss"] for record in records] == [None, None] and records[-1]["skipped_steps"] == 2
    assert not (tiny_run / "out/checkpoints").exists()


@pytest.mark.parametrize("settings", [
    ["optimizer.state_dtype=int8", "ema.decay=0.9"],
    ["precision.mode=bf16_pure", "optimizer.state_dtype=int8", "parallel.strategy=shard_grad_op"],
    ["precision.mode=bf16", "memory.offload_parameters=true", "memory.offload_optimizer=true", "memory.host_gib=0.001"],
], ids=["int8", "bf16_pure", "offloaded"])
def test_a_run_that_goes_on_equals_one_without_a_break(flowshard, tiny_run, settings):
    """Codes, stochastic rounding and what lies in host memory come back bit by bit."""
    save_transformer(tiny_run, lambda model: None)
    assert train(flowshard, 2, *settings, "run.output_dir=whole").returncode == 0
    for steps in [2, 4]:
        result = train(flowshard, 2, *settings, f"train.steps={steps}")
        assert result.returncode == 0, result.stderr
    assert metrics(tiny_run / "out/metrics.jsonl") == metrics(tiny_run / "whole/metrics.jsonl")
    for path in (tiny_run / "whole/checkpoints/step-00000004").glob("*.safetensors"):
        assert (tiny_run / "out/checkpoints/step-00000004" / path.name).read_bytes() == path.read_bytes()
