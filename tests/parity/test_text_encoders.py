"""Our CLIP text model and T5 encoder against transformers, from the files that it saves."""
import json

import pytest
import torch
from conftest import RunnerError, relative_error
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel
from transformers.models.t5.modeling_t5 import T5Attention

TOLERANCE = 1e-5
# Of the largest value. Measured: at most 0.013 (CLIP) and 0.097 (T5), where transformers has 0.013 and 0.104.
BF16_DISTANCE = {"clip": 0.03, "t5": 0.15}

CLIP_CONFIGS = [
    dict(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4),
    dict(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=1,
         hidden_act="gelu", max_position_embeddings=19, layer_norm_eps=1e-3),
    dict(vocab_size=200, hidden_size=30, intermediate_size=7, num_hidden_layers=5, num_attention_heads=5),
    dict(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
         eos_token_id=2),
]
T5_CONFIGS = [
    dict(vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
    dict(vocab_size=61, d_model=24, d_kv=5, d_ff=40, num_layers=3, num_heads=7, layer_norm_epsilon=1e-3),
    dict(vocab_size=97, d_model=30, d_kv=16, d_ff=33, num_layers=4, num_heads=1, relative_attention_num_buckets=10,
         relative_attention_max_distance=17),
]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "model"


def randomize(model, seed):
    """Every parameter random, biases and norms too, large enough for each to count; T5's queries smaller by the
    root of d_kv, since its scores are not divided by it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 1.0 if "relative_attention_bias" in name or parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1)
            if name.endswith("SelfAttention.q.weight"):
                parameter.mul_(model.config.d_kv ** -0.5)
    return model.eval()


def clip_model(seed=0, **sizes):
    config = CLIPTextConfig(**{"eos_token_id": sizes["vocab_size"] - 1, "bos_token_id": 0, "pad_token_id": 1} | sizes)
    return randomize(CLIPTextModel(config), seed)


def t5_model(seed=0, **sizes):
    return randomize(T5EncoderModel(T5Config(feed_forward_proj="gated-gelu", **sizes)), seed)


def clip_ids(batch, length, vocab_size, seed=0):
    """Prompts of different lengths, ended and padded by the end token, as the tokenizer makes them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocab_size - 1, (batch, length), generator=generator)
    for row in range(batch):
        ids[row, torch.randint(1, length, (), generator=generator):] = vocab_size - 1
    return ids


def reference(model, inputs):
    with torch.no_grad():
        outputs = {name: model(ids) for name, ids in inputs.items()}
    if isinstance(model, CLIPTextModel):
        return {name: output.pooler_output for name, output in outputs.items()}
    return {name: output.last_hidden_state for name, output in outputs.items()}


def assert_equal(ours, theirs, tolerance=TOLERANCE):
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert relative_error(ours[name], theirs[name]) < tolerance, name


def clip_inputs(model):
    longest = model.config.max_position_embeddings
    return {f"{batch}x{length}": clip_ids(batch, length, model.config.vocab_size, seed=length)
            for batch, length in [(1, 2), (2, 11), (5, longest)]}


def t5_inputs(model):
    generator = torch.Generator().manual_seed(1)
    return {f"{batch}x{length}": torch.randint(0, model.config.vocab_size, (batch, length), generator=generator)
            for batch, length in [(1, 1), (2, 12), (3, 77), (1, 300)]}


@pytest.mark.parametrize("sizes", CLIP_CONFIGS)
def test_clip(sizes, run, folder):
    model = clip_model(**sizes)
    model.save_pretrained(folder)
    inputs = clip_inputs(model)
    assert_equal(run("clip", folder, inputs=inputs), reference(model, inputs))


@pytest.mark.parametrize("sizes", T5_CONFIGS)
def test_t5(sizes, run, folder):
    model = t5_model(**sizes)
    model.save_pretrained(folder)
    inputs = t5_inputs(model)
    assert_equal(run("t5", folder, inputs=inputs), reference(model, inputs))


@pytest.mark.parametrize("num_buckets, max_distance", [(32, 128), (32, 1000), (10, 17), (4, 2), (64, 128), (7, 33)])
def test_t5_buckets_of_every_offset(num_buckets, max_distance, run):
    length = 1500
    ours = run("t5-buckets", options={"length": length, "num_buckets": num_buckets, "max_distance": max_distance})
    offsets = torch.arange(1 - length, length)
    theirs = T5Attention._relative_position_bucket(offsets, True, num_buckets, max_distance)
    assert torch.equal(ours["buckets"], theirs)


def test_clip_end_token_is_pooled_where_it_stands_first(run, folder):
    model = clip_model(**CLIP_CONFIGS[0])
    model.save_pretrained(folder)
    end = model.config.eos_token_id
    inputs = {"twice": torch.tensor([[0, 5, end, 7, end, end]]), "first": torch.tensor([[end, 4, 3]]),
              "never": torch.tensor([[4, 5, 6]])}
    assert_equal(run("clip", folder, inputs=inputs), reference(model, inputs))


def resave(folder, rename):
    file = folder / "model.safetensors"
    save_file({name: tensor.clone() for key, tensor in load_file(file).items() for name in rename(key)}, file,
              metadata={"format": "pt"})


def test_clip_keys_of_older_files(run, folder):
    model = clip_model(**CLIP_CONFIGS[0])
    model.save_pretrained(folder)
    resave(folder, lambda key: ["text_model." + key])
    inputs = clip_inputs(model)
    assert_equal(run("clip", folder, inputs=inputs), reference(model, inputs))
    # transformers reads such a file and writes the same keys again.
    CLIPTextModel.from_pretrained(folder).save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    assert all(key.startswith("text_model.") for key in stored)
    assert_equal(run("clip", folder, inputs=inputs), reference(model, inputs))
    stored["text_model.embeddings.position_ids"] = torch.arange(77).unsqueeze(0)
    save_file(stored, folder / "model.safetensors")
    assert_equal(run("clip", folder, inputs=inputs), reference(model, inputs))


@pytest.mark.parametrize("names", [["encoder.embed_tokens.weight"], ["encoder.embed_tokens.weight", "shared.weight"]])
def test_t5_embedding_under_either_name(names, run, folder):
    model = t5_model(**T5_CONFIGS[0])
    model.save_pretrained(folder)
    resave(folder, lambda key: names if key == "shared.weight" else [key])
    inputs = t5_inputs(model)
    assert_equal(run("t5", folder, inputs=inputs), reference(model, inputs))


def test_sharded_files(run, folder):
    model = t5_model(**T5_CONFIGS[0])
    model.save_pretrained(folder, max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").exists()
    inputs = t5_inputs(model)
    assert_equal(run("t5", folder, inputs=inputs), reference(model, inputs))


@pytest.mark.parametrize("subcommand, make, inputs_of, sizes", [
    ("clip", clip_model, clip_inputs, CLIP_CONFIGS[0]), ("clip", clip_model, clip_inputs, CLIP_CONFIGS[2]),
    ("t5", t5_model, t5_inputs, T5_CONFIGS[0]), ("t5", t5_model, t5_inputs, T5_CONFIGS[1])])
def test_bf16_stays_near_fp32(subcommand, make, inputs_of, sizes, run, folder):
    model = make(**sizes)
    model.save_pretrained(folder)
    inputs = inputs_of(model)
    exact = reference(model, inputs)
    ours = run(subcommand, folder, inputs=inputs, options={"dtype": "bfloat16"})
    theirs = reference(model.to(torch.bfloat16), inputs)
    distance = max(relative_error(ours[name], exact[name]) for name in exact)
    peer = max(relative_error(theirs[name], exact[name]) for name in exact)
    print(f"{subcommand}: bf16 distance from fp32 {distance:.4f}, of transformers {peer:.4f}")
    assert all(tensor.dtype == torch.bfloat16 for tensor in ours.values())
    assert distance < BF16_DISTANCE[subcommand] and distance < 1.5 * peer


@pytest.mark.parametrize("subcommand, make, sizes, key, value", [
    ("clip", clip_model, CLIP_CONFIGS[0], "hidden_act", "relu"),
    ("clip", clip_model, CLIP_CONFIGS[0], "num_attention_heads", "4"),
    ("clip", clip_model, CLIP_CONFIGS[0], "model_type", "siglip_text_model"),
    ("t5", t5_model, T5_CONFIGS[0], "feed_forward_proj", "gated-silu"),
    ("t5", t5_model, T5_CONFIGS[0], "model_type", "umt5"),
    ("t5", t5_model, T5_CONFIGS[0], "d_kv", None),
])
def test_unsupported_configurations_are_named(subcommand, make, sizes, key, value, run, folder):
    make(**sizes).save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(RunnerError, match=f"{file}: .*{key}") as error:
        run(subcommand, folder)
    assert error.value.exit_code == 2
