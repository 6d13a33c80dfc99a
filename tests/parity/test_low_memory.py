"""--low-memory changes where weights lie, never the picture."""
import json
import math
import shutil

import pytest
import torch
from diffusers import FluxTransformer2DModel
from test_generate import generate
from test_lora import add_random_adapter, save
from tiny_flux import make_tiny_flux

SIZE = ["--height", 48, "--width", 64, "--steps", 2, "--max-sequence-length", 16]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return folder, make_tiny_flux(folder, seed=1)


@pytest.fixture(scope="module")
def lora(tiny, tmp_path_factory):
    """Changes the transformer (with DoRA) and CLIP."""
    folder, _ = tiny
    pipeline = make_tiny_flux(tmp_path_factory.mktemp("adapted") / "model", seed=1)
    add_random_adapter(pipeline.transformer, "a", 3, r=4, lora_alpha=8, use_dora=True,
                       target_modules=["to_q", "to_v", "proj_mlp", "norm.linear"])
    path = tmp_path_factory.mktemp("lora") / "lora.safetensors"
    save(pipeline.transformer, "a", path)
    return path


@pytest.mark.parametrize("with_lora", [False, True])
def test_taking_turns_makes_the_same_bytes(tiny, lora, tmp_path, with_lora):
    folder, _ = tiny
    lines = [{"prompt": "a red circle", "seed": 1}, {"prompt": "a blue square", "seed": 2, "steps": 3},
             {"prompt": "a red circle", "seed": 3, "negative_prompt": "grey", "true_cfg_scale": 2.0}]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = [*SIZE, *(["--lora", f"{lora}:0.8"] if with_lora else [])]
    for name in ("none", "encoders"):
        result = generate("--model", folder, "--prompts", tmp_path / "prompts.jsonl", *options, "--low-memory", name,
                          "--output", tmp_path / name)
        assert result.returncode == 0, result.stderr
    for i in range(len(lines)):
        assert (tmp_path / "encoders" / f"{i:05}.png").read_bytes() == (tmp_path / "none" / f"{i:05}.png").read_bytes()


def test_blocks_are_streamed_to_gpus_only(tiny, tmp_path):
    result = generate("--model", tiny[0], "--prompt", "x", *SIZE, "--low-memory", "blocks", "--output", tmp_path / "a.png")
    assert result.returncode == 2 and "use encoders" in result.stderr


def write_zeros(path, shapes):
    """A safetensors file of bf16 zeros that takes no room on the disk."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)


def test_what_does_not_fit_is_refused_with_the_numbers_before_it_loads(tiny, tmp_path):
    folder, pipeline = tiny
    shutil.copytree(folder, tmp_path / "large", ignore=shutil.ignore_patterns("transformer"))
    config = pipeline.transformer.config
    with torch.device("meta"):
        large = FluxTransformer2DModel(num_layers=200, num_single_layers=400, joint_attention_dim=config.joint_attention_dim,
                                       pooled_projection_dim=config.pooled_projection_dim, guidance_embeds=True,
                                       in_channels=config.in_channels)
    (tmp_path / "large/transformer").mkdir()
    large.save_config(tmp_path / "large/transformer")
    write_zeros(tmp_path / "large/transformer/diffusion_pytorch_model.safetensors",
                {name: tensor.shape for name, tensor in large.state_dict().items()})
    result = generate("--model", tmp_path / "large", "--prompt", "x", *SIZE, "--output", tmp_path / "a.png")
    assert result.returncode == 2, result.stderr
    assert "does not fit into the memory of cpu" in result.stderr and "transformer 498.6" in result.stderr
    assert "--low-memory" not in result.stderr, "no mode would help"
    assert not (tmp_path / "a.png").exists()
