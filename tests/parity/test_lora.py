"""LoRA files beside the weights, against live peft and diffusers and against the weights with the change added in."""
import copy

import numpy as np
import pytest
import torch
from conftest import RunnerError, relative_error
from diffusers import FluxPipeline, FluxTransformer2DModel
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from test_generate import generate, pixels, reference as image_reference
from test_transformer import make_inputs, make_model, reference
from tiny_flux import make_tiny_flux

ALL_LINEARS = ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "net.0.proj",
               "net.2", "norm.linear", "norm1.linear", "norm1_context.linear", "norm_out.linear", "proj_mlp", "proj_out",
               "x_embedder", "context_embedder", "linear_1", "linear_2"]


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dev") / "transformer"
    make_model("dev").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_flux(folder, seed=1)
    return folder


INPUTS = make_inputs("dev", 2, 3, 4, 5)


def velocity(model):
    return reference(model, INPUTS)["velocity"]


def add_random_adapter(model, name, seed, **config):
    """A peft adapter whose every tensor is random."""
    if isinstance(model, FluxTransformer2DModel):
        model.add_adapter(LoraConfig(**config), name)
    else:  # transformers' own way asks for another version of peft
        inject_adapter_in_model(LoraConfig(**config), model, name)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if f".{name}." in key and "magnitude" in key:
                parameter.mul_(torch.rand(parameter.shape, generator=generator) + 0.5)
            elif f".{name}." in key:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)


def save(model, name, path, metadata=True, **text_encoder):
    FluxPipeline.save_lora_weights(
        path.parent, get_peft_model_state_dict(model, adapter_name=name), weight_name=path.name, **text_encoder,
        transformer_lora_adapter_metadata=model.peft_config[name].to_dict() if metadata else None)
    return path


def compare(run, folder, args, expected, limit=1e-5):
    got = run("lora", folder, *args, inputs=INPUTS)
    base = run("transformer", folder, inputs=INPUTS)["velocity"]
    assert torch.equal(got["base"], base), "taken away again, a LoRA leaves no trace"
    assert relative_error(base, expected) > 0.01, "the LoRA must matter"
    error = relative_error(got["velocity"], expected)
    assert error < limit, error
    return got["velocity"]


@pytest.mark.parametrize("rslora", [False, True])
def test_diffusers_file_with_a_rank_and_alpha_per_layer(run, dev, tmp_path, rslora):
    model = make_model("dev")
    # 64 is more than any side of most layers.
    add_random_adapter(model, "a", 1, r=4, lora_alpha=6, target_modules=ALL_LINEARS, use_rslora=rslora,
                       rank_pattern={"to_q": 10, "net.2": 18, "net.0.proj": 11, "transformer_blocks.0.attn.to_k": 64},
                       alpha_pattern={"to_q": 10, "net.2": 18, "net.0.proj": 5, "to_v": 1})
    compare(run, dev, [save(model, "a", tmp_path / "a.safetensors")], velocity(model))


def test_a_file_that_lost_its_alpha_has_scale_one_as_in_diffusers(run, dev, tmp_path):
    model = make_model("dev")
    add_random_adapter(model, "a", 2, r=4, lora_alpha=64, target_modules=["to_q", "proj_mlp"], rank_pattern={"to_q": 6})
    path = save(model, "a", tmp_path / "a.safetensors", metadata=False)
    fresh = make_model("dev")
    fresh.load_lora_adapter(load_file(path))
    compare(run, dev, [path], velocity(fresh))


@pytest.mark.parametrize("scales", [(0.7, 0.8), (1.5, -0.6), (0.0, 1.0)])
def test_adapters_add_up_with_scales_of_any_sign(run, dev, tmp_path, scales):
    model = make_model("dev")
    add_random_adapter(model, "a", 3, r=4, lora_alpha=8, target_modules=["to_q", "net.2", "proj_out"])
    add_random_adapter(model, "b", 4, r=2, lora_alpha=2, target_modules=["to_q", "to_v", "norm_out.linear"])
    model.set_adapters(["a", "b"], list(scales))
    files = [save(model, name, tmp_path / f"{name}.safetensors") for name in "ab"]
    compare(run, dev, [f"{file}:{scale}" for file, scale in zip(files, scales)], velocity(model))


@pytest.mark.parametrize("scale", [1.0, 0.6, -0.4])
def test_dora_equals_peft(run, dev, tmp_path, scale):
    model = make_model("dev")
    add_random_adapter(model, "a", 5, r=4, lora_alpha=8, target_modules=ALL_LINEARS, use_dora=True)
    model.set_adapters(["a"], [scale])
    compare(run, dev, [f"{save(model, 'a', tmp_path / 'a.safetensors')}:{scale}"], velocity(model))


def test_dora_after_lora_equals_peft(run, dev, tmp_path):
    model = make_model("dev")
    add_random_adapter(model, "a", 6, r=3, lora_alpha=3, target_modules=["to_q", "proj_mlp"])
    add_random_adapter(model, "b", 7, r=4, lora_alpha=8, target_modules=["to_q", "norm_out.linear"], use_dora=True)
    model.set_adapters(["a", "b"], [0.5, 0.9])
    files = [save(model, name, tmp_path / f"{name}.safetensors") for name in "ab"]
    compare(run, dev, [f"{files[0]}:0.5", f"{files[1]}:0.9"], velocity(model))


def bfl_linears(model):
    """{BFL name: [diffusers linears, in the order of the fused rows]} of the whole model."""
    names = {"img_in": ["x_embedder"], "txt_in": ["context_embedder"], "final_layer.linear": ["proj_out"],
             "final_layer.adaLN_modulation.1": ["norm_out.linear"]}
    for ours, theirs in (("time_in", "timestep"), ("vector_in", "text"), ("guidance_in", "guidance")):
        for layer, index in (("in_layer", 1), ("out_layer", 2)):
            names[f"{ours}.{layer}"] = [f"time_text_embed.{theirs}_embedder.linear_{index}"]
    for i in range(len(model.transformer_blocks)):
        block, theirs = f"double_blocks.{i}.", f"transformer_blocks.{i}."
        for stream, qkv, out, mlp, norm in (("img", ("to_q", "to_k", "to_v"), "to_out.0", "ff", "norm1"),
                                            ("txt", ("add_q_proj", "add_k_proj", "add_v_proj"), "to_add_out",
                                             "ff_context", "norm1_context")):
            names[f"{block}{stream}_attn.qkv"] = [f"{theirs}attn.{name}" for name in qkv]
            names[f"{block}{stream}_attn.proj"] = [f"{theirs}attn.{out}"]
            names[f"{block}{stream}_mlp.0"] = [f"{theirs}{mlp}.net.0.proj"]
            names[f"{block}{stream}_mlp.2"] = [f"{theirs}{mlp}.net.2"]
            names[f"{block}{stream}_mod.lin"] = [f"{theirs}{norm}.linear"]
    for i in range(len(model.single_transformer_blocks)):
        block, theirs = f"single_blocks.{i}.", f"single_transformer_blocks.{i}."
        names[f"{block}linear1"] = [f"{theirs}attn.to_q", f"{theirs}attn.to_k", f"{theirs}attn.to_v",
                                    f"{theirs}proj_mlp"]
        names[f"{block}linear2"] = [f"{theirs}proj_out"]
        names[f"{block}modulation.lin"] = [f"{theirs}norm.linear"]
    return names


def random_pairs(model, linears, seed, rank=4):
    """{BFL name: (down, up)} for the linears; ranks differ from layer to layer."""
    generator = torch.Generator().manual_seed(seed)
    pairs = {}
    for index, name in enumerate(linears):
        parts = [model.get_submodule(part) for part in bfl_linears(model)[name]]
        r = rank + index % 3
        pairs[name] = (torch.randn(r, parts[0].in_features, generator=generator) * 0.15,
                       torch.randn(sum(part.out_features for part in parts), r, generator=generator) * 0.15)
    return pairs


def merged(model, pairs, scale):
    """The model with scale(name, rank) up down added into its weights."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, (down, up) in pairs.items():
            delta = scale(name, down.shape[0]) * (up.double() @ down.double()).float()
            if name == "final_layer.adaLN_modulation.1":
                delta = torch.cat(delta.chunk(2)[::-1])
            row = 0
            for part in bfl_linears(model)[name]:
                linear = model.get_submodule(part)
                linear.weight += delta[row:row + linear.out_features]
                row += linear.out_features
    return model


def write_bfl(path, pairs, prefix, flat, down=".lora_down.weight", up=".lora_up.weight", alphas=None):
    tensors = {}
    for name, pair in pairs.items():
        module = prefix + (name.replace(".", "_") if flat else name)
        tensors[module + down], tensors[module + up] = pair
        if alphas:
            tensors[module + ".alpha"] = torch.tensor(alphas[name])
    save_file(tensors, path)
    return path


def test_kohya_and_bfl_files_of_every_linear(run, dev, tmp_path):
    model = make_model("dev")
    pairs = random_pairs(model, bfl_linears(model), 8)
    alphas = {name: 1.0 + index % 5 for index, name in enumerate(pairs)}
    expected = velocity(merged(model, pairs, lambda name, rank: alphas[name] / rank))
    path = write_bfl(tmp_path / "kohya.safetensors", pairs, "lora_unet_", True, alphas=alphas)
    kohya = compare(run, dev, [path], expected)
    for index, (prefix, down, up) in enumerate([
            ("diffusion_model.", ".lora_down.weight", ".lora_up.weight"),
            ("diffusion_model.", ".lora_A.weight", ".lora_B.weight"), ("", ".lora_A.weight", ".lora_B.weight"),
            ("base_model.model.", ".lora_A.weight", ".lora_B.weight")]):
        path = write_bfl(tmp_path / f"{index}.safetensors", pairs, prefix, False, down, up, alphas)
        assert torch.equal(run("lora", dev, path, inputs=INPUTS)["velocity"], kohya)


def test_kohya_file_as_diffusers_converts_it(run, dev, tmp_path):
    # linear1 is left out: diffusers splits it by the sizes of FLUX.1 itself.
    model = make_model("dev")
    linears = [name for name in bfl_linears(model) if "_blocks" in name and "linear1" not in name]
    pairs = random_pairs(model, linears, 9)
    alphas = {name: 2.0 + index % 4 for index, name in enumerate(pairs)}
    path = write_bfl(tmp_path / "kohya.safetensors", pairs, "lora_unet_", True, alphas=alphas)
    converted = FluxPipeline.lora_state_dict(str(path))
    model.load_lora_adapter(converted)
    compare(run, dev, [path], velocity(model))


@pytest.mark.parametrize("with_alpha", [False, True])
@pytest.mark.parametrize("linear", ["final_layer.linear", "final_layer.adaLN_modulation.1", "img_in"])
def test_outer_modules_without_their_partners(run, dev, tmp_path, linear, with_alpha):
    model = make_model("dev")
    pairs = random_pairs(model, [linear], 10)
    path = write_bfl(tmp_path / "a.safetensors", pairs, "lora_unet_", True, alphas={linear: 2.0} if with_alpha else None)
    expected = velocity(merged(model, pairs, lambda _, rank: (2.0 if with_alpha else rank) / rank))
    compare(run, dev, [f"{path}"], expected)


def test_alpha_one_is_a_sixteenth_of_rank_sixteen(run, dev, tmp_path):
    model = make_model("dev")
    pairs = random_pairs(model, ["single_blocks.0.linear1"], 11, rank=16)
    with_alpha = write_bfl(tmp_path / "a.safetensors", pairs, "lora_unet_", True,
                           alphas={"single_blocks.0.linear1": 1.0})
    without = write_bfl(tmp_path / "b.safetensors", pairs, "lora_unet_", True)
    assert torch.equal(run("lora", dev, f"{with_alpha}:16", inputs=INPUTS)["velocity"],
                       compare(run, dev, [without], velocity(merged(model, pairs, lambda *_: 1.0))))


def test_bf16_stays_near_fp32(run, dev, tmp_path):
    model = make_model("dev")
    add_random_adapter(model, "a", 12, r=4, lora_alpha=4, target_modules=["to_q", "net.2", "proj_mlp"], use_dora=True)
    path = save(model, "a", tmp_path / "a.safetensors")
    got = run("lora", dev, path, inputs=INPUTS, options={"dtype": "bfloat16"})["velocity"].float()
    assert float((got - velocity(model)).norm() / velocity(model).norm()) < 0.04


COMMON = ["--prompt", "a red circle", "--height", 48, "--width", 64, "--steps", 3, "--seed", 5,
          "--max-sequence-length", 16]


def picture(model, tmp_path, *loras):
    args = [word for lora in loras for word in ("--lora", lora)]
    result = generate("--model", model, *COMMON, *args, "--output", tmp_path / "a.png")
    assert result.returncode == 0, result.stderr
    return pixels(tmp_path / "a.png"), result.stderr


def expected_picture(pipeline):
    return image_reference(pipeline, "a red circle", 5, height=48, width=64, num_inference_steps=3,
                           max_sequence_length=16)


def load_pipeline(folder):
    pipeline = FluxPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def assert_same_picture(got, expected):
    difference = np.abs(got - expected)
    assert difference.max() <= 1 and difference.mean() <= 0.01, (difference.max(), difference.mean())


def test_image_with_two_files_equals_diffusers(tiny, tmp_path):
    maker = load_pipeline(tiny)
    add_random_adapter(maker.transformer, "a", 13, r=4, lora_alpha=8, target_modules=ALL_LINEARS)
    text = dict(r=3, lora_alpha=6, target_modules=["q_proj", "fc1", "out_proj"])
    add_random_adapter(maker.text_encoder, "a", 14, **text)
    one = save(maker.transformer, "a", tmp_path / "one.safetensors",
               text_encoder_lora_layers={key.replace(".a.", "."): tensor.contiguous() for key, tensor in
                                         maker.text_encoder.state_dict().items() if ".lora_" in key},
               text_encoder_lora_adapter_metadata=LoraConfig(**text).to_dict())
    assert any(key.startswith("text_encoder.") for key in load_file(one))
    only_transformer = save(maker.transformer, "a", tmp_path / "only_transformer.safetensors")
    model = load_pipeline(tiny).transformer
    linears = [name for name in bfl_linears(model) if "_blocks" in name and "linear1" not in name]
    two = write_bfl(tmp_path / "two.safetensors", random_pairs(model, linears, 15), "lora_unet_", True)

    pipeline = load_pipeline(tiny)
    plain = expected_picture(pipeline)
    pipeline.load_lora_weights(str(only_transformer), adapter_name="one")
    pipeline.load_lora_weights(str(two), adapter_name="two")
    pipeline.set_adapters(["one", "two"], [0.8, -0.5])
    add_random_adapter(pipeline.text_encoder, "a", 14, **text)
    for module in pipeline.text_encoder.modules():
        if isinstance(module, LoraLayer):
            module.set_scale("a", 0.8)
    got, stderr = picture(tiny, tmp_path, f"{one}:0.8", f"{two}:-0.5")
    assert np.abs(got - plain).max() > 3, "the LoRA must matter"
    assert_same_picture(got, expected_picture(pipeline))
    assert f"{len(load_file(one))} keys matched, 0 unmatched" in stderr
    assert f"{len(load_file(two))} keys matched, 0 unmatched" in stderr


@pytest.mark.parametrize("encoder,names", [
    ("text_encoder", {"lora_te1_text_model_encoder_layers_1_self_attn_v_proj": "encoder.layers.1.self_attn.v_proj",
                      "lora_te1_text_model_encoder_layers_0_mlp_fc2": "encoder.layers.0.mlp.fc2"}),
    ("text_encoder_2", {"lora_te3_encoder_block_1_layer_0_SelfAttention_q": "encoder.block.1.layer.0.SelfAttention.q",
                        "lora_te3_encoder_block_0_layer_1_DenseReluDense_wo":
                            "encoder.block.0.layer.1.DenseReluDense.wo"}),
])
def test_text_encoder_parts_of_kohya_files(tiny, tmp_path, encoder, names):
    pipeline = load_pipeline(tiny)
    plain = expected_picture(pipeline)
    generator = torch.Generator().manual_seed(16)
    tensors = {}
    with torch.no_grad():
        for module, name in names.items():
            linear = next(m for n, m in getattr(pipeline, encoder).named_modules() if n.endswith(name))
            down = torch.randn(2, linear.in_features, generator=generator)
            up = torch.randn(linear.out_features, 2, generator=generator)
            tensors |= {module + ".lora_down.weight": down, module + ".lora_up.weight": up,
                        module + ".alpha": torch.tensor(1.0)}
            linear.weight += 0.5 * up @ down
    save_file(tensors, tmp_path / "te.safetensors")
    got, _ = picture(tiny, tmp_path, tmp_path / "te.safetensors")
    assert np.abs(got - plain).max() > 1, "the LoRA must matter"
    assert_same_picture(got, expected_picture(pipeline))


def small_file(path, extra):
    save_file({"lora_unet_img_in.lora_down.weight": torch.ones(2, 16), "lora_unet_img_in.lora_up.weight":
               torch.ones(32, 2)} | extra, path)
    return path


def test_zeros_of_an_embedding_are_left_out_as_diffusers_does(run, dev, tmp_path):
    model = make_model("dev")
    linears = [name for name in bfl_linears(model) if "_blocks" in name and "linear1" not in name]
    pairs = random_pairs(model, linears, 17)
    tensors = load_file(write_bfl(tmp_path / "plain.safetensors", pairs, "lora_unet_", True, alphas=dict.fromkeys(pairs, 2.0)))
    embedding = "lora_te1_text_model_embeddings_position_embedding"
    extra = {f"{embedding}.lora_down.weight": torch.zeros(2, 77), f"{embedding}.lora_up.weight": torch.zeros(32, 2)}
    save_file(tensors | extra, tmp_path / "a.safetensors")
    converted = FluxPipeline.lora_state_dict(str(tmp_path / "a.safetensors"))
    assert not any("embedding" in key for key in converted)
    model.load_lora_adapter(converted)
    compare(run, dev, [tmp_path / "a.safetensors"], velocity(model))
    extra[f"{embedding}.lora_up.weight"][0, 0] = 1
    save_file(tensors | extra, tmp_path / "b.safetensors")
    with pytest.raises(RunnerError, match=f"2 of its {len(tensors) + 2} keys match no linear"):
        run("lora", dev, tmp_path / "b.safetensors", inputs=INPUTS)


@pytest.mark.parametrize("extra,words", [
    ({"lora_unet_txt_in.lokr_w1": torch.ones(2, 2)}, "LoKr"),
    ({"lora_unet_txt_in.hada_w1_a": torch.ones(2, 2)}, "LoHa"),
    ({"lora_unet_double_blocks_7_img_mlp_0.lora_down.weight": torch.ones(2, 32)}, "1 of its 3 keys"),
    ({"lora_unet_txt_in.lora_down.weight": torch.ones(2, 48)}, "the up matrix is absent"),
    ({"lora_unet_img_in.lora_up.weight": torch.ones(33, 2)}, "[33, 2]"),
    ({"lora_unet_img_in.alpha": torch.tensor(float("nan"))}, "alpha is nan"),
])
def test_unsuitable_files_are_refused_in_one_line(tiny, tmp_path, extra, words):
    path = small_file(tmp_path / "a.safetensors", extra)
    result = generate("--model", tiny, *COMMON, "--lora", path, "--output", tmp_path / "a.png")
    assert result.returncode == 2
    assert words in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "a.png").exists()


@pytest.mark.parametrize("scale", ["nan", "inf", "-inf", "", "much", "1e999"])
def test_scales_that_are_no_finite_number_are_refused(tiny, tmp_path, scale):
    path = small_file(tmp_path / "a.safetensors", {})
    result = generate("--model", tiny, *COMMON, "--lora", f"{path}:{scale}", "--output", tmp_path / "a.png")
    assert result.returncode == 2
    assert "not a finite number" in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_lenient_leaves_out_what_matches_nothing_and_says_so(tiny, tmp_path):
    path = small_file(tmp_path / "a.safetensors", {"lora_unet_nothing.lora_down.weight": torch.ones(2, 2)})
    result = generate("--model", tiny, *COMMON, "--lora", path, "--lora-lenient", "--output", tmp_path / "a.png")
    assert result.returncode == 0
    assert "2 keys matched, 1 unmatched" in result.stderr and "lora_unet_nothing" in result.stderr
    expected, _ = picture(tiny, tmp_path, small_file(tmp_path / "b.safetensors", {}))
    assert np.array_equal(pixels(tmp_path / "a.png"), expected)


def test_no_match_at_all_is_an_error_even_if_lenient(run, dev, tmp_path):
    save_file({"lora_unet_down_blocks_0_proj.lora_down.weight": torch.ones(2, 2)}, tmp_path / "sdxl.safetensors")
    with pytest.raises(RunnerError, match="none of its 1 keys") as error:
        run("lora", dev, tmp_path / "sdxl.safetensors", inputs=INPUTS, options={"lenient": True})
    assert error.value.exit_code == 2


def test_missing_and_damaged_files_are_named(tiny, tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    for name, code in (("absent.safetensors", 2), ("bad.safetensors", 5)):
        result = generate("--model", tiny, *COMMON, "--lora", tmp_path / name, "--output", tmp_path / "a.png")
        assert result.returncode == code
        assert name in result.stderr and len(result.stderr.strip().splitlines()) == 1
