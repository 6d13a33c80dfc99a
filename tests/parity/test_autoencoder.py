"""Our autoencoder against diffusers' AutoencoderKL, from the files that it saves."""
import json

import pytest
import torch
from conftest import RunnerError, relative_error
from diffusers import AutoencoderKL

TOLERANCE = 1e-5
BF16_DISTANCE = 0.06  # of the largest value; measured: at most 0.030, where diffusers has the same

CONFIGS = [
    dict(block_out_channels=(8, 16, 32, 64), layers_per_block=1, norm_num_groups=2, latent_channels=16),
    dict(block_out_channels=(12, 18), layers_per_block=2, norm_num_groups=6, latent_channels=4,
         use_quant_conv=True, use_post_quant_conv=True),
    dict(block_out_channels=(8, 8, 24), layers_per_block=3, norm_num_groups=4, latent_channels=5,
         mid_block_add_attention=False, use_post_quant_conv=True),
    dict(block_out_channels=(32,), layers_per_block=2, norm_num_groups=8, latent_channels=3, use_quant_conv=True),
    dict(block_out_channels=(16, 8, 4, 4), layers_per_block=2, norm_num_groups=1, latent_channels=16),
]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "model"


def autoencoder(seed=0, **sizes):
    levels = len(sizes["block_out_channels"])
    torch.manual_seed(seed)
    model = AutoencoderKL(**{"down_block_types": ("DownEncoderBlock2D",) * levels,
                             "up_block_types": ("UpDecoderBlock2D",) * levels,
                             "use_quant_conv": False, "use_post_quant_conv": False,
                             "scaling_factor": 0.3611, "shift_factor": 0.1159} | sizes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.randn(parameter.shape) * 0.3 + ("norm" in name and name.endswith("weight")))
    return model.eval()


def encode(model, pictures):
    with torch.no_grad():
        posteriors = {name: model.encode(batch).latent_dist for name, batch in pictures.items()}
    return {f"{name}.{what}": getattr(posterior, what)
            for name, posterior in posteriors.items() for what in ["mean", "logvar"]}


def decode(model, latents):
    with torch.no_grad():
        return {name: model.decode(batch).sample for name, batch in latents.items()}


def pictures_and_latents(model):
    f = 2 ** (len(model.config.block_out_channels) - 1)
    generator = torch.Generator().manual_seed(1)
    sizes = [(2, 3, 5), (1, 8, 4), (3, 2, 1)]
    pictures = {f"{batch}x{width}x{height}": torch.rand((batch, 3, f * height, f * width), generator=generator) * 2 - 1
                for batch, width, height in sizes}
    latents = {f"{batch}x{width}x{height}":
               torch.randn((batch, model.config.latent_channels, height, width), generator=generator) * 2
               for batch, width, height in sizes}
    return pictures, latents


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert relative_error(ours[name], theirs[name]) < TOLERANCE, name


@pytest.mark.parametrize("sizes", CONFIGS)
def test_encode_and_decode(sizes, run, folder):
    model = autoencoder(**sizes)
    model.save_pretrained(folder)
    pictures, latents = pictures_and_latents(model)
    assert_equal(run("vae-encode", folder, inputs=pictures), encode(model, pictures))
    assert_equal(run("vae-decode", folder, inputs=latents), decode(model, latents))


def test_log_variance_is_clamped_on_both_sides(run, folder):
    model = autoencoder(**CONFIGS[0])
    with torch.no_grad():
        model.encoder.conv_out.weight.mul_(100)
    model.save_pretrained(folder)
    pictures, _ = pictures_and_latents(model)
    theirs = encode(model, pictures)
    logvar = torch.cat([value.flatten() for name, value in theirs.items() if name.endswith("logvar")])
    assert logvar.max() == 20 and logvar.min() == -30
    assert_equal(run("vae-encode", folder, inputs=pictures), theirs)


@pytest.mark.parametrize("sizes", CONFIGS)
def test_bf16_stays_near_fp32(sizes, run, folder):
    model = autoencoder(**sizes)
    model.save_pretrained(folder)
    pictures, latents = pictures_and_latents(model)
    exact = encode(model, pictures) | decode(model, latents)
    bf16 = {"dtype": "bfloat16"}
    ours = (run("vae-encode", folder, inputs=pictures, options=bf16)
            | run("vae-decode", folder, inputs=latents, options=bf16))
    model.to(torch.bfloat16)
    theirs = (encode(model, {name: batch.bfloat16() for name, batch in pictures.items()})
              | decode(model, {name: batch.bfloat16() for name, batch in latents.items()}))
    distance = max(relative_error(ours[name], exact[name]) for name in exact)
    peer = max(relative_error(theirs[name], exact[name]) for name in exact)
    print(f"bf16 distance from fp32 {distance:.4f}, of diffusers {peer:.4f}")
    assert all(tensor.dtype == torch.bfloat16 for tensor in ours.values())
    assert distance < BF16_DISTANCE and distance < 1.5 * peer


@pytest.mark.parametrize("key, value", [
    ("_class_name", "AutoencoderTiny"), ("norm_num_groups", 5), ("latents_mean", [0.5]), ("act_fn", "relu"),
    ("block_out_channels", [8, 16]), ("use_quant_conv", "no"), ("scaling_factor", None),
    ("down_block_types", ["AttnDownEncoderBlock2D"] * 4)])
def test_unsupported_configurations_are_named(key, value, run, folder):
    autoencoder(**CONFIGS[0]).save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(RunnerError, match=f"{file}: .*{key}") as error:
        run("vae-encode", folder, inputs={"x": torch.zeros(1, 3, 8, 8)})
    assert error.value.exit_code == 2


def test_weights_of_another_configuration_are_refused(run, folder):
    autoencoder(**CONFIGS[0]).save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"layers_per_block": 2}))
    with pytest.raises(RunnerError, match="missing") as error:
        run("vae-encode", folder, inputs={"x": torch.zeros(1, 3, 8, 8)})
    assert error.value.exit_code == 5
