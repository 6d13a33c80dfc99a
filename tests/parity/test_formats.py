"""Single weights files against diffusers: those of the official code, all-in-one files of ComfyUI, scaled fp8."""
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import torch
from official_keys import diffusers_transformer, official_autoencoder, official_transformer
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_flux import make_tiny_flux

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLOWSHARD = ROOT / "build/release/flowshard"
PROMPT = "a red circle left of a blue square"
SIZE = dict(height=48, width=64)
TEXT_PARTS = ("scheduler", "tokenizer", "tokenizer_2", "text_encoder", "text_encoder_2")


def generate(output, *args):
    command = [FLOWSHARD, "generate", "--prompt", PROMPT, "--height", SIZE["height"], "--width", SIZE["width"],
               "--steps", 3, "--seed", 11, "--max-sequence-length", 24, "--output", output, *args]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)


def reference(pipeline):
    image = pipeline(PROMPT, generator=torch.Generator("cpu").manual_seed(11), num_inference_steps=3,
                     guidance_scale=3.5, max_sequence_length=24, **SIZE).images[0]
    return np.asarray(image).astype(int)


def assert_image(path, expected):
    got = np.asarray(Image.open(path).convert("RGB")).astype(int)
    assert got.shape == expected.shape and expected.std() > 5
    difference = np.abs(got - expected)
    assert difference.max() <= 1 and difference.mean() <= 0.01


class Files:
    """One random model: its diffusers folder, the official files of its transformer and autoencoder, its picture."""

    def __init__(self, root, seed, guidance=True, released_kind=True, metadata=None):
        self.folder = root / "diffusers"
        self.pipeline = make_tiny_flux(self.folder, seed=seed, guidance_embeds=guidance, released_kind=released_kind,
                                       dynamic_shifting=guidance)
        config = self.pipeline.transformer.config
        self.hidden = config.num_attention_heads * config.attention_head_dim
        self.transformer = official_transformer(self.pipeline.transformer.state_dict(), self.hidden)
        self.autoencoder = official_autoencoder(self.pipeline.vae.state_dict(), self.pipeline.vae.config)
        # Nothing but the text parts, as --text-encoders wants them.
        self.text = root / "text"
        for part in TEXT_PARTS:
            shutil.copytree(self.folder / part, self.text / part)
        self.flux, self.ae = root / "flux1.safetensors", root / "autoencoder.safetensors"
        save_file(self.transformer, self.flux, metadata)
        save_file(self.autoencoder, self.ae, metadata)
        self.image = reference(self.pipeline)


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("dev"), seed=3)


def test_official_files_make_the_image_of_diffusers(dev, tmp_path):
    result = generate(tmp_path / "a.png", "--model", dev.flux, "--vae", dev.ae, "--text-encoders", dev.text)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert_image(tmp_path / "a.png", dev.image)


def test_official_files_of_a_model_without_guidance(tmp_path):
    schnell = Files(tmp_path, seed=5, guidance=False)
    result = generate(tmp_path / "a.png", "--model", schnell.flux, "--vae", schnell.ae, "--text-encoders", schnell.text)
    assert result.returncode == 0, result.stderr
    assert_image(tmp_path / "a.png", schnell.image)


def test_what_shapes_do_not_tell_comes_from_metadata(tmp_path):
    metadata = dict(axes_dim="4,6,6", norm_num_groups="4", scaling_factor="0.7", shift_factor="0.1")
    files = Files(tmp_path, seed=7, released_kind=False, metadata=metadata)
    args = ["--text-encoders", files.text, "--vae"]
    result = generate(tmp_path / "a.png", "--model", files.flux, *args, files.ae)
    assert result.returncode == 0, result.stderr
    assert_image(tmp_path / "a.png", files.image)
    for key, words in (("axes_dim", "heads have 16 dimensions"), ("norm_num_groups", "32 norm groups"),
                       ("scaling_factor", "4 latent channels")):
        fewer = {name: value for name, value in metadata.items() if name != key}
        save_file(files.transformer, tmp_path / "t.safetensors", fewer)
        save_file(files.autoencoder, tmp_path / "v.safetensors", fewer)
        result = generate(tmp_path / "b.png", "--model", tmp_path / "t.safetensors", *args, tmp_path / "v.safetensors")
        assert result.returncode == 5 and words in result.stderr and key in result.stderr
    for axes in ("4,6", "4,6,7", "4,6,6,", "4;6;6", "4,6,8", "", "-4,10,10"):
        save_file(files.transformer, tmp_path / "t.safetensors", {"axes_dim": axes})
        result = generate(tmp_path / "b.png", "--model", tmp_path / "t.safetensors", *args, files.ae)
        assert result.returncode == 5 and "add up to 16" in result.stderr


def test_parts_beside_a_file_are_found_and_named(dev, tmp_path):
    """As the published repository lies: flux1-dev.safetensors, ae.safetensors and the folders of diffusers."""
    for part in TEXT_PARTS:
        shutil.copytree(dev.folder / part, tmp_path / part)
    shutil.copy(dev.flux, tmp_path / "flux1-dev.safetensors")
    shutil.copy(dev.ae, tmp_path / "ae.safetensors")
    result = generate(tmp_path / "a.png", "--model", tmp_path / "flux1-dev.safetensors")
    assert result.returncode == 0, result.stderr
    assert f"tokenizers and scheduler from {tmp_path}" in result.stderr
    assert f"autoencoder from {tmp_path / 'ae.safetensors'}" in result.stderr
    assert_image(tmp_path / "a.png", dev.image)

    (tmp_path / "ae.safetensors").unlink()
    result = generate(tmp_path / "b.png", "--model", tmp_path / "flux1-dev.safetensors")
    assert result.returncode == 2 and "--vae" in result.stderr
    shutil.copytree(dev.folder / "vae", tmp_path / "vae")
    result = generate(tmp_path / "b.png", "--model", tmp_path / "flux1-dev.safetensors")
    assert result.returncode == 0 and f"autoencoder from {tmp_path / 'vae'}" in result.stderr
    assert np.array_equal(Image.open(tmp_path / "a.png"), Image.open(tmp_path / "b.png"))


def test_single_file_with_diffusers_keys_reads_the_configuration_beside_it(dev, tmp_path):
    file = dev.folder / "transformer/diffusion_pytorch_model.safetensors"
    result = generate(tmp_path / "a.png", "--model", file)
    assert result.returncode == 0, result.stderr
    assert f"from {dev.folder}" in result.stderr
    assert_image(tmp_path / "a.png", dev.image)


def all_in_one(dev, vae_prefix="vae."):
    tensors = {f"model.diffusion_model.{key}": tensor for key, tensor in dev.transformer.items()}
    tensors |= {f"{vae_prefix}{key}": tensor for key, tensor in dev.autoencoder.items()}
    for name, part in (("clip_l", "text_encoder"), ("t5xxl", "text_encoder_2")):
        for key, tensor in load_file(dev.folder / part / "model.safetensors").items():
            if name == "clip_l" and not key.startswith("text_model."):
                key = f"text_model.{key}"
            tensors[f"text_encoders.{name}.transformer.{key}"] = tensor
    tensors["text_encoders.clip_l.transformer.text_projection.weight"] = torch.eye(32)
    tensors["text_encoders.clip_l.logit_scale"] = torch.tensor(4.6)
    return tensors


@pytest.mark.parametrize("vae_prefix", ["vae.", "first_stage_model."])
def test_all_in_one_file(dev, tmp_path, vae_prefix):
    save_file(all_in_one(dev, vae_prefix), tmp_path / "all.safetensors")
    # Only tokenizers, scheduler and the text encoders' configurations beside it: the weights are its own.
    for part in TEXT_PARTS:
        shutil.copytree(dev.folder / part, tmp_path / part, ignore=shutil.ignore_patterns("*.safetensors"))
    result = generate(tmp_path / "a.png", "--model", tmp_path / "all.safetensors")
    assert result.returncode == 0, result.stderr
    assert f"flowshard generate: tokenizers and scheduler from {tmp_path}\n" == result.stderr
    assert_image(tmp_path / "a.png", dev.image)


def test_all_in_one_file_with_other_text_encoders_wants_a_folder(dev, tmp_path):
    tensors = {key.replace("t5xxl.transformer.encoder", "t5xxl.blocks"): tensor
               for key, tensor in all_in_one(dev).items()}
    save_file(tensors, tmp_path / "all.safetensors")
    result = generate(tmp_path / "a.png", "--model", tmp_path / "all.safetensors")
    assert result.returncode == 2 and "--text-encoders" in result.stderr
    result = generate(tmp_path / "a.png", "--model", tmp_path / "all.safetensors", "--text-encoders", dev.text)
    assert result.returncode == 0, result.stderr
    assert_image(tmp_path / "a.png", dev.image)


def scaled_fp8(tensors, dtype_of_scale_key, per_row=False):
    """The linear weights as fp8 with scales, and what they stand for in fp32."""
    stored, meaning = {}, {}
    for key, tensor in tensors.items():
        stored[key] = meaning[key] = tensor
        if not key.endswith("weight") or tensor.dim() != 2:
            continue
        largest = tensor.abs().amax(dim=1, keepdim=True) if per_row else tensor.abs().max()
        scale = (largest / 448).float()
        stored[key] = (tensor / scale).to(torch.float8_e4m3fn)
        stored[key.removesuffix("weight") + dtype_of_scale_key] = scale
        meaning[key] = stored[key].float() * scale
    return stored, meaning


@pytest.mark.parametrize("scale_key,per_row", [("scale_weight", False), ("weight_scale", False), ("weight_scale", True)])
def test_scaled_fp8(dev, tmp_path, scale_key, per_row):
    stored, meaning = scaled_fp8(dev.transformer, scale_key, per_row)
    stored["scaled_fp8"] = torch.empty(0, dtype=torch.float8_e4m3fn)
    for key, dtype in (("img_in.bias", torch.bfloat16), ("txt_in.bias", torch.float16)):  # dtypes are mixed
        stored[key] = meaning[key] = stored[key].to(dtype)
    save_file(stored, tmp_path / "fp8.safetensors")
    original = dev.pipeline.transformer.state_dict()
    original = {key: tensor.clone() for key, tensor in original.items()}
    dev.pipeline.transformer.load_state_dict(diffusers_transformer(
        {key: tensor.float() for key, tensor in meaning.items()}, dev.hidden))
    expected = reference(dev.pipeline)
    dev.pipeline.transformer.load_state_dict(original)
    assert np.abs(expected - dev.image).max() > 1, "quantization must matter"
    result = generate(tmp_path / "a.png", "--model", tmp_path / "fp8.safetensors", "--vae", dev.ae, "--text-encoders",
                      dev.text)
    assert result.returncode == 0, result.stderr
    assert_image(tmp_path / "a.png", expected)


@pytest.mark.parametrize("change,code,words", [
    (lambda t: t.pop("double_blocks.1.img_mod.lin.bias"), 5, "1 missing (\"double_blocks.1.img_mod.lin.bias\""),
    (lambda t: t.update({"extra.weight": torch.zeros(1)}), 5, "1 unexpected (\"extra.weight\""),
    (lambda t: t.update({"txt_in.weight": torch.zeros(3)}), 5, "\"txt_in.weight\" has the shape [3]"),
    (lambda t: t.update({"a.scale_weight": torch.ones(1)}), 5, "\"a.scale_weight\" is a scale without its weight"),
    (lambda t: t.pop("img_in.weight"), 2, "holds no FLUX transformer"),
])
def test_unsound_official_files(dev, tmp_path, change, code, words):
    tensors = dict(dev.transformer)
    change(tensors)
    save_file(tensors, tmp_path / "bad.safetensors")
    result = generate(tmp_path / "a.png", "--model", tmp_path / "bad.safetensors", "--vae", dev.ae, "--text-encoders",
                      dev.text)
    assert result.returncode == code and words in result.stderr, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and not (tmp_path / "a.png").exists()
