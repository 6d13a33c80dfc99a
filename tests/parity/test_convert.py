"""`flowshard convert` and `flowshard inspect` against diffusers' own conversion and loaders."""
import json
import pathlib
import subprocess

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from official_keys import assert_same, diffusers_autoencoder, diffusers_transformer, official_autoencoder
from official_keys import official_transformer
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_flux import make_tiny_flux

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLOWSHARD = ROOT / "build/release/flowshard"


def flowshard(*args):
    return subprocess.run([FLOWSHARD, *map(str, args)], capture_output=True, text=True, timeout=300)


def convert(source, target, to, *args):
    result = flowshard("convert", "--input", source, "--output", target, "--to", to, *args)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{target}\n"


class Model:
    def __init__(self, root, guidance):
        self.folder = root / "model"
        pipeline = make_tiny_flux(self.folder, seed=13, guidance_embeds=guidance)
        pipeline.transformer.to(torch.bfloat16).save_pretrained(self.folder / "transformer")
        self.hidden = 32
        self.vae_config = pipeline.vae.config
        self.transformer = load_file(self.folder / "transformer/diffusion_pytorch_model.safetensors")
        self.autoencoder = load_file(self.folder / "vae/diffusion_pytorch_model.safetensors")


@pytest.fixture(scope="module", params=[True, False], ids=["dev", "schnell"])
def model(request, tmp_path_factory):
    return Model(tmp_path_factory.mktemp("convert"), request.param)


def test_transformer_both_ways(model, tmp_path):
    official, back = tmp_path / "flux.safetensors", tmp_path / "back"
    convert(model.folder, official, "bfl", "--component", "transformer")
    assert_same(load_file(official), official_transformer(model.transformer, model.hidden))
    assert_same(diffusers_transformer(load_file(official), model.hidden), model.transformer)
    assert safe_open(official, "pt").metadata()["axes_dim"] == "4,6,6"

    convert(official, back, "diffusers")
    assert_same(load_file(back / "diffusion_pytorch_model.safetensors"), model.transformer)
    ours = FluxTransformer2DModel.from_pretrained(back, torch_dtype=torch.bfloat16)
    theirs = FluxTransformer2DModel.from_pretrained(model.folder / "transformer", torch_dtype=torch.bfloat16)
    assert_same(ours.state_dict(), theirs.state_dict())
    for key in ("attention_head_dim", "axes_dims_rope", "guidance_embeds", "in_channels", "joint_attention_dim",
                "num_attention_heads", "num_layers", "num_single_layers", "patch_size", "pooled_projection_dim"):
        assert ours.config[key] == theirs.config[key], key

    again = tmp_path / "again.safetensors"
    convert(back, again, "bfl")
    assert again.read_bytes() == official.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.safetensors", "back", "flux.safetensors"]


def test_autoencoder_both_ways(model, tmp_path):
    official, back = tmp_path / "ae.safetensors", tmp_path / "back"
    convert(model.folder / "vae", official, "bfl")
    assert_same(load_file(official), official_autoencoder(model.autoencoder, model.vae_config))
    assert_same(diffusers_autoencoder(load_file(official), model.vae_config), model.autoencoder)

    convert(official, back, "diffusers")
    assert_same(load_file(back / "diffusion_pytorch_model.safetensors"), model.autoencoder)
    ours, theirs = AutoencoderKL.from_pretrained(back), AutoencoderKL.from_pretrained(model.folder / "vae")
    for key in ("block_out_channels", "layers_per_block", "latent_channels", "norm_num_groups", "scaling_factor",
                "shift_factor", "use_quant_conv", "use_post_quant_conv", "mid_block_add_attention", "act_fn",
                "down_block_types", "up_block_types", "in_channels", "out_channels"):
        assert ours.config[key] == theirs.config[key], key
    latents = torch.randn(1, 4, 2, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours.decode(latents).sample, theirs.decode(latents).sample)


def test_fp8_parts_move_bit_for_bit(model, tmp_path):
    """Every byte value of fp8, NaNs included, through split and fused tensors."""
    official = official_transformer(model.transformer, model.hidden)
    generator = torch.Generator().manual_seed(1)
    for key, tensor in official.items():
        if tensor.dim() == 2:
            random = torch.randint(0, 256, tensor.shape, dtype=torch.uint8, generator=generator)
            official[key] = random.view(torch.float8_e4m3fn)
    save_file(official, tmp_path / "fp8.safetensors", {"axes_dim": "4,6,6"})
    convert(tmp_path / "fp8.safetensors", tmp_path / "folder", "diffusers")
    bytes_of = {key: tensor.view(torch.uint8) if tensor.dim() == 2 else tensor for key, tensor in official.items()}
    stored = load_file(tmp_path / "folder/diffusion_pytorch_model.safetensors")
    stored = {key: tensor.view(torch.uint8) if tensor.dim() == 2 else tensor for key, tensor in stored.items()}
    assert_same(stored, diffusers_transformer(bytes_of, model.hidden))
    convert(tmp_path / "folder", tmp_path / "back.safetensors", "bfl")
    assert_same(load_file(tmp_path / "back.safetensors"), official)


def test_scaled_fp8_wants_a_dtype(model, tmp_path):
    official = official_transformer(model.transformer, model.hidden)
    weight = official["img_in.weight"].float()
    scale = weight.abs().max() / 448
    official["img_in.weight"] = (weight / scale).to(torch.float8_e4m3fn)
    official["img_in.scale_weight"] = scale
    save_file(official, tmp_path / "fp8.safetensors", {"axes_dim": "4,6,6"})
    result = flowshard("convert", "--input", tmp_path / "fp8.safetensors", "--output", tmp_path / "x", "--to",
                       "diffusers")
    assert result.returncode == 2 and "--dtype bf16" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["fp8.safetensors"]
    convert(tmp_path / "fp8.safetensors", tmp_path / "x", "diffusers", "--dtype", "fp32")
    stored = load_file(tmp_path / "x/diffusion_pytorch_model.safetensors")
    assert torch.equal(stored["x_embedder.weight"], official["img_in.weight"].float() * scale)
    assert all(tensor.dtype == torch.float32 for tensor in stored.values())


def test_conversions_that_cannot_be(model, tmp_path):
    file = model.folder / "transformer/diffusion_pytorch_model.safetensors"
    (tmp_path / "there").mkdir()
    save_file({"x": torch.zeros(2)}, tmp_path / "x.safetensors")
    tensors = dict(model.transformer)
    key = "transformer_blocks.0.attn.to_k.weight"
    tensors[key] = tensors[key].float()
    (tmp_path / "mixed").mkdir()
    save_file(tensors, tmp_path / "mixed/diffusion_pytorch_model.safetensors")
    (tmp_path / "mixed/config.json").write_bytes((model.folder / "transformer/config.json").read_bytes())
    before = sorted(tmp_path.rglob("*"))
    for source, target, to, code, words in (
            (model.folder, "a.safetensors", "bfl", 2, "--component"), (file, "there", "diffusers", 2, "exists already"),
            (tmp_path / "x.safetensors", "y", "diffusers", 2, "neither"), (tmp_path / "no", "y", "bfl", 2, "no such"),
            (tmp_path / "mixed", "y.safetensors", "bfl", 2, "different dtypes"),
            (file, "no/folder/y.safetensors", "bfl", 2, "no/folder"), (file, "no/folder/y", "diffusers", 2, "no/folder"),
            (file, "x.safetensors", "bfl", 2, "--force")):
        result = flowshard("convert", "--input", source, "--output", tmp_path / target, "--to", to)
        assert result.returncode == code and words in result.stderr, result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def inspect(path, code=0):
    result = flowshard("inspect", path, "--json")
    assert result.returncode == code, result.stderr
    report = json.loads(result.stdout)
    assert report["sound"] == (code == 0)
    text = flowshard("inspect", path)
    assert text.returncode == code and report["kind"] in text.stdout
    return report


def numel(tensors):
    return sum(tensor.numel() for tensor in tensors.values())


def test_inspect_models(model, tmp_path):
    report = inspect(model.folder)
    assert report["kind"] == "FLUX model folder (diffusers)"
    assert sorted(report["components"]) == ["text_encoder", "text_encoder_2", "transformer", "vae"]
    sizes = report["components"]["transformer"]
    assert sizes["parameters"] == numel(model.transformer) and sizes["tensors"] == len(model.transformer)
    assert sizes["bytes_by_dtype"] == {"BF16": 2 * numel(model.transformer)} and sizes["bytes"] == 2 * sizes["parameters"]
    for part in ("text_encoder", "text_encoder_2", "vae"):
        assert report["components"][part]["bytes_by_dtype"]["F32"] == report["components"][part]["bytes"]
    config = json.loads((model.folder / "transformer/config.json").read_text())
    ours = report["configuration"]["transformer"]
    assert ours["guidance_embeds"] == config["guidance_embeds"] and ours["num_layers"] == config["num_layers"]

    official = tmp_path / "flux.safetensors"
    convert(model.folder / "transformer", official, "bfl")
    report = inspect(official)
    assert report["kind"] == "FLUX transformer (official format)"
    assert report["configuration"]["transformer"]["axes_dims_rope"] == [4, 6, 6]
    convert(model.folder / "vae", tmp_path / "ae.safetensors", "bfl")
    assert inspect(tmp_path / "ae.safetensors")["kind"] == "autoencoder (official format)"
    assert inspect(model.folder / "transformer")["kind"] == "FLUX transformer (diffusers)"
    assert inspect(model.folder / "text_encoder")["kind"] == "text encoder (CLIP)"
    assert inspect(model.folder / "text_encoder_2")["kind"] == "text encoder (T5)"

    tensors = load_file(official)
    tensors.pop("txt_in.bias")
    save_file(tensors, official, {"axes_dim": "4,6,6"})
    report = inspect(official, code=5)
    assert "1 missing" in report["error"] and report["components"]["transformer"]["tensors"] == len(tensors)
    official.write_bytes(official.read_bytes()[:-5])
    assert "cut off" in inspect(official, code=5)["error"]


def test_inspect_all_in_one_files_and_adapters(model, tmp_path):
    tensors = {f"model.diffusion_model.{key}": tensor
               for key, tensor in official_transformer(model.transformer, model.hidden).items()}
    tensors |= {f"vae.{key}": tensor
                for key, tensor in official_autoencoder(model.autoencoder, model.vae_config).items()}
    metadata = dict(axes_dim="4,6,6", norm_num_groups="4", scaling_factor="0.7", shift_factor="0.1")
    save_file(tensors, tmp_path / "all.safetensors", metadata)
    report = inspect(tmp_path / "all.safetensors")
    assert report["kind"] == "FLUX model in one file (ComfyUI)"
    assert sorted(report["components"]) == ["transformer", "vae"]
    convert(tmp_path / "all.safetensors", tmp_path / "vae", "diffusers", "--component", "vae")
    assert_same(load_file(tmp_path / "vae/diffusion_pytorch_model.safetensors"), model.autoencoder)

    for key, kind in (("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight", "LoRA (kohya)"),
                      ("transformer.transformer_blocks.0.attn.to_q.lora_A.weight", "LoRA (diffusers)"),
                      ("diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight", "LoRA (official keys)"),
                      ("double_blocks.0.processor.qkv_lora1.down.weight", "LoRA (xlabs)"),
                      ("lora_unet_x.lokr_w1", "LoKr adapter"), ("lora_unet_x.hada_w1_a", "LoHa adapter"),
                      ("something.weight", "tensors of an unknown model")):
        save_file({key: torch.zeros(2, 3)}, tmp_path / "lora.safetensors")
        report = inspect(tmp_path / "lora.safetensors")
        assert report["kind"] == kind
        assert [sizes["parameters"] for sizes in report["components"].values()] == [6]


def test_inspect_other_files(tmp_path):
    assert flowshard("dataset", "shapes", "--output", tmp_path / "shapes", "--num-samples", 20,
                     "--samples-per-shard", 20).returncode == 0
    tar = next((tmp_path / "shapes").rglob("*.tar"))
    report = inspect(tar)
    assert report["kind"] == "WebDataset tar" and report["samples"] > 0 and report["bad_samples"] == 0
    (tmp_path / "cut.tar").write_bytes(tar.read_bytes()[:-20000])
    assert inspect(tmp_path / "cut.tar", code=4)["kind"] == "WebDataset tar"

    Image.fromarray(np.zeros((5, 7, 3), np.uint8)).save(tmp_path / "a.png")
    report = inspect(tmp_path / "a.png")
    assert (report["kind"], report["width"], report["height"]) == ("picture", 7, 5)
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:-30])
    assert inspect(tmp_path / "cut.png", code=4)["kind"] == "picture"

    (tmp_path / "text.txt").write_text("hello")
    assert inspect(tmp_path / "text.txt", code=2)["kind"] == "unknown"
    (tmp_path / "empty").mkdir()
    assert inspect(tmp_path / "empty", code=2)["kind"] == "unknown"
    assert flowshard("inspect", tmp_path / "none").returncode == 2


def test_a_file_is_replaced_with_force(model, tmp_path):
    (tmp_path / "x.safetensors").write_text("of the user")
    convert(model.folder, tmp_path / "x.safetensors", "bfl", "--component", "transformer", "--force")
    assert_same(load_file(tmp_path / "x.safetensors"), official_transformer(model.transformer, model.hidden))
