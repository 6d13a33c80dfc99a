"""The transformer, block by block, against diffusers on random tiny configurations, and its training gradients."""
import pathlib

import pytest
import torch
from conftest import relative_error
from diffusers import FluxTransformer2DModel
from safetensors.torch import load_file

CONFIGS = {
    "dev": dict(num_layers=2, num_single_layers=3, attention_head_dim=16, num_attention_heads=3, joint_attention_dim=24,
                pooled_projection_dim=20, guidance_embeds=True, axes_dims_rope=(4, 6, 6), in_channels=16),
    "schnell": dict(num_layers=1, num_single_layers=1, attention_head_dim=32, num_attention_heads=2,
                    joint_attention_dim=40, pooled_projection_dim=8, guidance_embeds=False, axes_dims_rope=(8, 12, 12),
                    in_channels=64),
    "double only": dict(num_layers=3, num_single_layers=0, attention_head_dim=8, num_attention_heads=4,
                        joint_attention_dim=16, pooled_projection_dim=16, guidance_embeds=True,
                        axes_dims_rope=(4, 2, 2), in_channels=8),
    "single only": dict(num_layers=0, num_single_layers=2, attention_head_dim=24, num_attention_heads=1,
                        joint_attention_dim=16, pooled_projection_dim=16, guidance_embeds=True,
                        axes_dims_rope=(4, 10, 10), in_channels=4),
}


def make_model(name):
    torch.manual_seed(len(name))
    model = FluxTransformer2DModel(patch_size=1, **CONFIGS[name]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15)
    return model


def make_inputs(name, batch, rows, columns, text_tokens):
    config = CONFIGS[name]
    generator = torch.Generator().manual_seed(7)
    ids = torch.zeros(rows, columns, 3)
    ids[..., 1] += torch.arange(rows)[:, None]
    ids[..., 2] += torch.arange(columns)[None, :]
    inputs = dict(img=torch.randn(batch, rows * columns, config["in_channels"], generator=generator),
                  img_ids=ids.reshape(-1, 3),
                  txt=torch.randn(batch, text_tokens, config["joint_attention_dim"], generator=generator),
                  timesteps=torch.rand(batch, generator=generator),
                  y=torch.randn(batch, config["pooled_projection_dim"], generator=generator))
    if config["guidance_embeds"]:
        inputs["guidance"] = torch.rand(batch, generator=generator) * 5
    return inputs


def reference(model, inputs):
    """diffusers' velocity and block outputs, under our names."""
    recorded = {}

    def record(prefix, names):
        def hook(module, args, output):
            for index, name in enumerate(names):
                recorded[f"{prefix}.{index}"] = output[name].detach()
        return hook

    for i, block in enumerate(model.transformer_blocks):
        block.register_forward_hook(record(f"double_blocks.{i}", [1, 0]))  # (text, image): ours is (image, text)
    def record_single(prefix):
        def hook(module, args, output):
            recorded[f"{prefix}.0"] = torch.cat(output, 1).detach() if isinstance(output, tuple) else output.detach()
        return hook
    for i, block in enumerate(model.single_transformer_blocks):
        block.register_forward_hook(record_single(f"single_blocks.{i}"))
    with torch.no_grad():
        velocity = model(hidden_states=inputs["img"], encoder_hidden_states=inputs["txt"],
                         pooled_projections=inputs["y"], timestep=inputs["timesteps"], img_ids=inputs["img_ids"],
                         txt_ids=torch.zeros(inputs["txt"].shape[1], 3), guidance=inputs.get("guidance"),
                         return_dict=False)[0]
    return {"velocity": velocity, **recorded}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("batch,rows,columns,text_tokens", [(1, 4, 4, 8), (2, 3, 7, 5), (3, 1, 1, 1)])
def test_every_block_matches_diffusers(run, tmp_path, name, batch, rows, columns, text_tokens):
    model = make_model(name)
    model.save_pretrained(tmp_path / "transformer")
    inputs = make_inputs(name, batch, rows, columns, text_tokens)
    expected = reference(model, inputs)
    got = run("transformer", tmp_path / "transformer", inputs=inputs)
    assert got.keys() == expected.keys()
    errors = {key: relative_error(got[key], expected[key]) for key in expected}
    assert max(errors.values()) < 1e-5, errors


def test_sharded_files_give_the_same_result(run, tmp_path):
    model = make_model("dev")
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="100KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    inputs = make_inputs("dev", 1, 4, 4, 8)
    one = run("transformer", tmp_path / "one", inputs=inputs)["velocity"]
    many = run("transformer", tmp_path / "many", inputs=inputs)["velocity"]
    assert torch.equal(one, many)


def test_bf16_stays_near_fp32(run, tmp_path):
    model = make_model("dev")
    model.save_pretrained(tmp_path / "transformer")
    inputs = make_inputs("dev", 1, 4, 6, 8)
    exact = run("transformer", tmp_path / "transformer", inputs=inputs)["velocity"]
    bf16 = run("transformer", tmp_path / "transformer", inputs=inputs, options={"dtype": "bfloat16"})["velocity"].float()
    distance = float((bf16 - exact).norm() / exact.norm())
    print(f"bf16 relative distance {distance:.4f}")
    assert distance < 0.03


def test_fp16_that_leaves_its_range_is_clipped_as_in_diffusers(run, tmp_path):
    """The text of the first double block and everything of the first single block overflow."""
    model = make_model("dev")
    with torch.no_grad():
        model.transformer_blocks[0].ff_context.net[2].bias[:8] = 60000
        model.transformer_blocks[0].norm1_context.linear.bias.fill_(4)
        model.single_transformer_blocks[0].proj_out.bias[:8] = -60000
        model.single_transformer_blocks[0].norm.linear.bias.fill_(4)
    model = model.half()
    model.save_pretrained(tmp_path / "transformer")
    inputs = make_inputs("dev", 1, 4, 6, 8)
    halves = {name: value if name in ("img_ids", "timesteps", "guidance") else value.half()
              for name, value in inputs.items()}
    expected = reference(model, halves)
    got = run("transformer", tmp_path / "transformer", inputs=halves, options={"dtype": "float16"})
    for name in ("double_blocks.0.1", "single_blocks.0.0"):
        assert expected[name].abs().max() == 65504 == got[name].abs().max()
    distance = (got["velocity"].float() - expected["velocity"].float()).norm() / expected["velocity"].float().norm()
    # Values are 32 apart at that size: two orders of the same sums differ by much.
    assert torch.isfinite(got["velocity"]).all() and distance < 0.2


def test_golden_data(run):
    """The same numbers whatever version of diffusers is installed (made by make_golden.py)."""
    folder = pathlib.Path(__file__).parent / "data/golden_transformer"
    expected = load_file(folder / "outputs.st")
    got = run("transformer", folder, inputs=load_file(folder / "inputs.st"))
    assert got.keys() == expected.keys()
    assert max(relative_error(got[key], expected[key]) for key in expected) < 1e-5
