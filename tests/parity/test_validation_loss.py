"""The validation loss beside diffusers: encoders, transformer after training, times and noise, all from Python."""
import io
import json
import tarfile

import numpy as np
import pytest
import torch
from diffusers import FluxTransformer2DModel
from PIL import Image

from test_training_fsdp2 import CONFIG, PROGRAM, SIDE, run
from tiny_flux import make_tiny_flux

SAMPLES, RANKS, STEPS, GUIDANCE = 11, 2, 3, 1.5
MASK = 2 ** 64 - 1


def mix(x):
    """SplitMix64 (https://prng.di.unimi.it/splitmix64.c)."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def noise_seed(sample):
    seed, epoch, purpose = 0, 0, 2
    return mix(mix(mix(mix(seed) ^ sample) ^ epoch) ^ purpose)


def read_samples(path, count):
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}
    keys = sorted(name.removesuffix(".png") for name in files if name.endswith(".png"))[:count]
    return [(np.asarray(Image.open(io.BytesIO(files[key + ".png"])).convert("RGB")), files[key + ".txt"].decode())
            for key in keys]


@torch.no_grad()
def sample_loss(pipeline, number, picture, caption, t):
    vae = pipeline.vae
    image = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
    latents = (vae.encode(image).latent_dist.mean - vae.config.shift_factor) * vae.config.scaling_factor
    x0 = pipeline._pack_latents(latents, *latents.shape)
    txt, y, txt_ids = pipeline.encode_prompt(caption, None, max_sequence_length=12)
    ids = pipeline._prepare_latent_image_ids(1, latents.shape[2] // 2, latents.shape[3] // 2, "cpu", torch.float32)
    noise = torch.randn(x0.shape[1:], generator=torch.Generator().manual_seed(noise_seed(number)))[None]
    velocity = pipeline.transformer(
        hidden_states=(1 - t) * x0 + t * noise, timestep=torch.tensor([t]), guidance=torch.tensor([GUIDANCE]),
        encoder_hidden_states=txt, pooled_projections=y, txt_ids=txt_ids, img_ids=ids, return_dict=False)[0]
    return float((velocity - (noise - x0)).double().square().mean())


@pytest.mark.parametrize("timesteps, times", [
    ("midpoints", [1 / 16, 3 / 16, 5 / 16, 7 / 16, 9 / 16, 11 / 16, 13 / 16, 15 / 16]),
    ("mlperf", [0, 1 / 8, 2 / 8, 3 / 8, 4 / 8, 5 / 8, 6 / 8, 7 / 8]),
])
def test_is_that_of_diffusers(tmp_path, timesteps, times):
    pipeline = make_tiny_flux(tmp_path / "model", seed=3)
    run(tmp_path, PROGRAM, "dataset", "shapes", "--output", "data", "--num-samples", 40, "--samples-per-shard", 20)
    held_out = tmp_path / "data/shapes-000001.tar"
    (tmp_path / "run.toml").write_text(CONFIG.replace("{000000..000001}", "000000") + f"""
[validation]
shards = ["{held_out}"]
samples = {SAMPLES}
timesteps = "{timesteps}"
""")
    run(tmp_path, PROGRAM, "launch", "--nproc_per_node", RANKS, "--", "train", "run.toml", "--set", f"train.steps={STEPS}")
    record = json.loads((tmp_path / "out/metrics.jsonl").read_text().splitlines()[-1])

    run(tmp_path, PROGRAM, "export", f"out/checkpoints/step-{STEPS:08}", "--to", "diffusers", "--output", "trained")
    pipeline.transformer = FluxTransformer2DModel.from_pretrained(tmp_path / "trained/transformer").eval()
    samples = read_samples(held_out, SAMPLES)
    assert len(samples) == SAMPLES and samples[0][0].shape == (SIDE, SIDE, 3)
    losses = [sample_loss(pipeline, i, *sample, times[i % 8]) for i, sample in enumerate(samples)]
    by_time = [np.mean(losses[k::8]) for k in range(8)]
    assert [record[f"validation_loss_{k}"] for k in range(8)] == pytest.approx(by_time, rel=1e-5)
    assert record["validation_loss"] == pytest.approx(np.mean(by_time), rel=1e-5)
    assert max(by_time) > 1.01 * min(by_time)
