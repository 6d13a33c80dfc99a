"""The same steps, whatever the number of ranks, accumulation passes and samples of a pass: samples, rate, loss, gradient."""
import math

import pytest

from processes import environment
from training_run import lay_out, metrics

STEPS, WARMUP, PEAK, FINAL, GLOBAL_BATCH, SAMPLES = 5, 2, 2e-3, 0.1, 24, 40
LAYOUTS = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (3, 1), (3, 2), (3, 4)]  # ranks, passes


def train(flowshard_at, folder, ranks, passes):
    settings = {"train.batch_size": GLOBAL_BATCH // ranks // passes, "train.gradient_accumulation_steps": passes,
                "train.steps": STEPS, "train.max_grad_norm": 0.5, "schedule.warmup_steps": WARMUP, "schedule.decay": "cosine",
                "schedule.decay_start_fraction": 0, "schedule.final_fraction": FINAL, "checkpoint.every_steps": 1000,
                "run.output_dir": f"out-{ranks}-{passes}"}
    arguments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    result = flowshard_at(folder, "launch", "--nproc_per_node", ranks, "--", "train", "run.toml", *arguments,
                          env=environment())
    assert result.returncode == 0, result.stderr
    return metrics(folder / f"out-{ranks}-{passes}/metrics.jsonl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, shapes_dataset):
    folder = tmp_path_factory.mktemp("layouts")
    lay_out(folder, shapes_dataset)
    return folder


@pytest.fixture(scope="module")
def one_pass(flowshard_at, folder):
    """One rank that takes all samples of a step at once."""
    return train(flowshard_at, folder, 1, 1)


def test_position_and_rate_are_what_is_documented(one_pass):
    for step, record in enumerate(one_pass, 1):
        assert record["step"] == step
        assert record["samples_seen"] == GLOBAL_BATCH * step
        assert record["epoch"] == record["samples_seen"] / SAMPLES
        decay = (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2
        rate = PEAK * step / WARMUP if step <= WARMUP else PEAK * (FINAL + (1 - FINAL) * decay)
        assert record["lr"] == pytest.approx(rate, rel=1e-12)
    assert one_pass[-1]["lr"] == pytest.approx(PEAK * FINAL, rel=1e-12)
    assert all(record["grad_norm"] > 0.5 for record in one_pass[:2])  # so that clipping has work


@pytest.mark.parametrize("ranks, passes", LAYOUTS[1:])
def test_every_layout_makes_the_same_steps(flowshard_at, folder, one_pass, ranks, passes):
    for expected, found in zip(one_pass, train(flowshard_at, folder, ranks, passes), strict=True):
        for name in ("step", "samples_seen", "epoch", "lr"):
            assert found[name] == expected[name]
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6), expected["step"]
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-6), expected["step"]
