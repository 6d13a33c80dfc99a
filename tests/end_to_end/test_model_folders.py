"""A model folder that is not what it should be: refused by train and generate before any work."""
import json
import os
import shutil
import struct

import pytest

from test_bad_input import assert_refused, files_below

VAE = "vae/diffusion_pytorch_model.safetensors"
PARTS = ["scheduler", "tokenizer", "tokenizer_2", "text_encoder", "text_encoder_2", "transformer", "vae"]


def change_json(path, **values):
    content = json.loads(path.read_text())
    content.update(values)
    path.write_text(json.dumps(content))


def header_of(path):
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8:8 + size]), content[8 + size:]


def write_safetensors(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1000])


def cut_to(size):
    return lambda path: path.write_bytes(path.read_bytes()[:size])


def lie_about_shape(path):
    header, data = header_of(path)
    name = next(key for key in header if key != "__metadata__")
    header[name]["shape"][0] += 1
    write_safetensors(path, header, data)


def lie_about_offsets(path):
    header, data = header_of(path)
    name = next(key for key in header if key != "__metadata__")
    header[name]["data_offsets"] = [0, 1 << 62]
    write_safetensors(path, header, data)


def rename_tensor(path):
    header, data = header_of(path)
    header["stranger.weight"] = header.pop(next(key for key in header if key != "__metadata__"))
    write_safetensors(path, header, data)


def shard_weights(path):
    """An index that names the one file and another that is absent."""
    header, _ = header_of(path)
    keys = [key for key in header if key != "__metadata__"]
    path.rename(path.with_name("x-00001-of-00002.safetensors"))
    names = ["x-00001-of-00002.safetensors", "x-00002-of-00002.safetensors"]
    index = {"weight_map": {key: names[i % 2] for i, key in enumerate(keys)}}
    path.with_name("x.safetensors.index.json").write_text(json.dumps(index))


def make_pipe(path):
    path.unlink()
    os.mkfifo(path)


def at(path, change):
    return lambda model: change(model / path)


# name: (what is done to the model folder, exit code, what the message says)
DAMAGES = {
    "no folder": (shutil.rmtree, 2, ["model: no such folder"]),
    "a file": (lambda model: (shutil.rmtree(model), model.write_text("x")), 2, ["model: no such folder"]),
    "empty folder": (lambda model: (shutil.rmtree(model), model.mkdir()), 2, ["model/model_index.json: no such file"]),
    "index is a folder": (lambda model: ((model / "model_index.json").unlink(), (model / "model_index.json").mkdir()), 2,
                          ["model/model_index.json: cannot be read"]),
    "SDXL": (at("model_index.json", lambda path: change_json(path, _class_name="StableDiffusionXLPipeline")), 2,
             ["model/model_index.json", "StableDiffusionXLPipeline", "not a FLUX.1 model"]),
    "index cut": (at("model_index.json", cut_to(40)), 2, ["model/model_index.json: its JSON is damaged"]),
    "binary index": (at("model_index.json", lambda path: path.write_bytes(bytes(range(256)))), 2, ["its JSON is damaged"]),
    "empty index": (at("model_index.json", cut_to(0)), 2, ["model/model_index.json: its JSON is damaged"]),
    "no parts": (lambda model: [shutil.rmtree(model / part) for part in PARTS], 2,
                 ["the model folder lacks", "complete?", *(part + "/" for part in PARTS)]),
    "part is a file": (lambda model: (shutil.rmtree(model / "vae"), (model / "vae").write_text("x")), 2,
                       ["the model folder lacks vae/"]),
    "no weights": (at(VAE, lambda path: path.unlink()), 2, ["model/vae: holds no safetensors file"]),
    "no vae config": (at("vae/config.json", lambda path: path.unlink()), 2, ["vae/config.json: no such file"]),
    "config is a pipe": (at("vae/config.json", make_pipe), 2, ["vae/config.json: cannot be read"]),
    "vocabulary is a pipe": (at("tokenizer/vocab.json", make_pipe), 2, ["tokenizer/vocab.json"]),
    "merges are a pipe": (at("tokenizer/merges.txt", make_pipe), 2, ["tokenizer/merges.txt"]),
    "sentencepiece is a pipe": (at("tokenizer_2/spiece.model", make_pipe), 2, ["tokenizer_2/spiece.model"]),
    "no vocabulary": (at("tokenizer/vocab.json", lambda path: path.unlink()), 2, ["tokenizer"]),
    "no sentencepiece": (at("tokenizer_2/spiece.model", cut_to(10)), 2, ["tokenizer_2"]),
    "vae of another width": (at("vae/config.json", lambda path: change_json(path, block_out_channels=[8, 16, 32, 128])),
                             5, ["model/vae"]),
    "vae of another depth": (at("vae/config.json", lambda path: change_json(path, layers_per_block=2)), 5,
                             ["model/vae", "missing"]),
    "latents of another width": (at("transformer/config.json", lambda path: change_json(path, in_channels=32)), 2,
                                 ["model"]),
    "text of another width": (at("transformer/config.json", lambda path: change_json(path, joint_attention_dim=128)), 2,
                              ["model"]),
    "text encoder of another width": (at("text_encoder/config.json", lambda path: change_json(path, hidden_size=32)), 5,
                                      ["model/text_encoder"]),
    "vae of a video model": (at("vae/config.json", lambda path: change_json(path, _class_name="AutoencoderKLWan")), 2,
                             ["vae/config.json", "AutoencoderKLWan"]),
    "a billion layers": (at("transformer/config.json", lambda path: change_json(path, num_layers=10**9)), 2,
                         ["transformer/config.json", "num_layers"]),
    "a million channels": (at("vae/config.json", lambda path: change_json(path, block_out_channels=[2**20] * 4)), 5,
                           ["model/vae"]),
    "a billion channels": (at("vae/config.json", lambda path: change_json(path, block_out_channels=[2**30] * 4)), 2,
                           ["vae/config.json", "block_out_channels", "16777216"]),
    "truncated vae": (at(VAE, truncate), 5, [VAE]),
    "one byte": (at(VAE, cut_to(1)), 5, [VAE]),
    "empty file": (at(VAE, cut_to(0)), 5, [VAE]),
    "zeros": (at(VAE, lambda path: path.write_bytes(bytes(4096))), 5, [VAE]),
    "a git-lfs pointer": (at(VAE, lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")),
                          5, [VAE]),
    "wrong shape": (at(VAE, lie_about_shape), 5, [VAE]),
    "wrong offsets": (at(VAE, lie_about_offsets), 5, [VAE]),
    "wrong name": (at(VAE, rename_tensor), 5, ["model/vae", "stranger.weight"]),
    "missing shard": (at(VAE, shard_weights), 5, ["1 of the 2 shards", "x-00002-of-00002.safetensors"]),
    "truncated T5": (at("text_encoder_2/model.safetensors", truncate), 5, ["text_encoder_2/model.safetensors"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_train_refuses_a_damaged_model(flowshard, tiny_run, damage):
    change, exit_code, fragments = DAMAGES[damage]
    change(tiny_run / "model")
    before = files_below(tiny_run)
    assert_refused(flowshard("train", "run.toml"), exit_code, "flowshard train: error: ", *fragments)
    assert files_below(tiny_run) == before
