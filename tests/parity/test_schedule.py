"""Sigmas against diffusers' scheduler, driven as FluxPipeline drives it."""
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

SCHEDULERS = {
    "dev": dict(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, shift=3.0),
    "schnell": dict(use_dynamic_shifting=False, shift=1.0),
    "static shift": dict(use_dynamic_shifting=False, shift=3.1582),
    "other line": dict(use_dynamic_shifting=True, base_shift=0.3, max_shift=1.6, base_image_seq_len=64,
                       max_image_seq_len=1000),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("steps,tokens", [(1, 16), (4, 256), (7, 1023), (28, 4096), (50, 16384)])
def test_sigmas_match_diffusers(run, tmp_path, name, steps, tokens):
    scheduler = FlowMatchEulerDiscreteScheduler(**SCHEDULERS[name])
    scheduler.save_pretrained(tmp_path / "scheduler")
    config = scheduler.config
    mu = calculate_shift(tokens, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    got = run("schedule", tmp_path / "scheduler", inputs={"unused": torch.zeros(1)},
              options={"steps": steps, "tokens": tokens})["sigmas"]
    assert got.shape == scheduler.sigmas.shape
    assert float((got - scheduler.sigmas).abs().max()) < 1e-6
