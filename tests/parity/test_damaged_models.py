"""A damaged or contradictory model, no space and no room: every command says so in one line and leaves nothing."""
import json
import pathlib
import re
import shutil
import struct
import subprocess

import pytest
from safetensors.torch import load_file, save_file
from test_convert import FLOWSHARD, flowshard, inspect
from tiny_flux import make_tiny_flux

NAME = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_flux(folder, seed=13)
    return folder


def config(**values):
    """A change of the folder: other values in config.json."""
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return change


def config_bytes(content):
    return lambda folder: (folder / "config.json").write_bytes(content)


def weights(change):
    """The bytes of the weights file become change(bytes)."""
    return lambda folder: (folder / NAME).write_bytes(change((folder / NAME).read_bytes()))


def header(change):
    """The header becomes what change(header) returns, an object or a text."""
    def change_bytes(content):
        size, = struct.unpack("<Q", content[:8])
        changed = change(json.loads(content[8:8 + size]))
        text = (changed if isinstance(changed, str) else json.dumps(changed)).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + size:]
    return weights(change_bytes)


def overlap(entries):
    first, second, *_ = sorted((entry for entry in entries.values() if entry.get("shape") == [32, 32]),
                               key=lambda entry: entry["data_offsets"])
    second["data_offsets"] = first["data_offsets"]
    return entries


def overflow(entries):
    next(entry for entry in entries.values() if "shape" in entry)["shape"] = [1 << 62, 1 << 62]
    return entries


def split_into_shards(folder):
    tensors = load_file(folder / NAME)
    names = sorted(tensors)
    (folder / NAME).unlink()
    files = [f"diffusion_pytorch_model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for i, file in enumerate(files):
        save_file({name: tensors[name] for name in names[i::2]}, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: files[i % 2] for i, name in enumerate(names)}}
    (folder / (NAME + ".index.json")).write_text(json.dumps(index))
    return files


def lose_a_shard(folder):
    (folder / split_into_shards(folder)[1]).unlink()


def take_a_shard_from_elsewhere(folder):
    shutil.copy(folder.parent / "vae" / NAME, folder / split_into_shards(folder)[0])


DEEP = b"[" * 10**6 + b"]" * 10**6
# name: (what is done to the folder of the transformer, exit code, what the message says)
DAMAGES = {
    "one block more": (config(num_layers=3), 5, "missing"),
    "one block less": (config(num_single_layers=1), 5, "unexpected"),
    "wider heads": (config(num_attention_heads=3), 5, "another shape"),
    "axes of other heads": (config(axes_dims_rope=[4, 6, 8]), 2, "add up to"),
    "text for a truth value": (config(guidance_embeds="yes"), 2, "guidance_embeds"),
    "another class": (config(_class_name="SD3Transformer2DModel"), 2, "SD3"),
    "long value": (config(num_layers="x" * 10**6), 2, "xxx..."),
    "deep configuration": (config_bytes(DEEP), 2, "nested too deeply"),
    "deep value": (config_bytes(b'{"_class_name": ' + DEEP + b"}"), 2, "nested too deeply"),
    "configuration that is not UTF-8": (config_bytes(b'{"\xff": 1}'), 2, "JSON is damaged"),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), 2, "config.json: no such file"),
    "no weights": (lambda folder: (folder / NAME).unlink(), 2, "holds no safetensors file"),
    "cut weights": (weights(lambda content: content[:-1]), 5, "cut off?"),
    "bytes left over": (weights(lambda content: content + bytes(16)), 5, "16 bytes are left over"),
    "huge header": (weights(lambda _: b"\xff" * 7 + b"\0{}"), 5, "over the limit of 100000000"),
    "deep header": (header(lambda _: '{"a":' + "[" * 10**6), 5, "nested too deeply"),
    "overlap": (header(overlap), 5, "overlap"),
    "overflow": (header(overflow), 5, "larger than any memory"),
    "missing shard": (lose_a_shard, 5, "00002-of-00002"),
    "shard of another model": (take_a_shard_from_elsewhere, 5, "00001-of-00002"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_models_are_refused_in_one_line(tiny, tmp_path, damage):
    change, code, words = DAMAGES[damage]
    shutil.copytree(tiny, tmp_path / "model")
    change(tmp_path / "model/transformer")
    before = sorted(tmp_path.rglob("*"))
    convert = ["convert", "--component", "transformer", "--to", "diffusers", "--output", tmp_path / "x", "--input"]
    generate = ["generate", "--prompt", "a red circle", "--output", tmp_path / "x.png", "--model"]
    for command in (convert, generate):
        result = flowshard(*command, tmp_path / "model")
        assert result.returncode == code and words in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1 and result.stdout == "" and len(result.stderr) < 1000
    assert words in inspect(tmp_path / "model", code)["error"]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("to,output", [("bfl", "x.safetensors"), ("diffusers", "x")])
def test_no_space_left_is_told_before_the_first_byte(tiny, tmp_path, to, output):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", small], capture_output=True).returncode != 0:
        pytest.skip("not run: mounting a small file system needs root")
    try:
        result = flowshard("convert", "--input", tiny, "--component", "transformer", "--to", to, "--output",
                           small / output)
        assert not list(small.iterdir())
    finally:
        subprocess.run(["umount", "-l", small], check=True)
    size = (tiny / "transformer" / NAME).stat().st_size
    told = re.search(r"it takes (\d+) bytes, but (\d+) are free \(free some space", result.stderr)
    takes, free = map(int, told.groups())
    assert result.returncode == 5 and result.stderr.count("\n") == 1 and str(small) in result.stderr
    assert abs(takes - size) < 10_000 and free == 65536


def test_a_limit_on_file_sizes_leaves_nothing(tiny, tmp_path):
    command = ["convert", "--input", tiny, "--component", "vae", "--output", tmp_path / "x", "--to", "diffusers"]
    result = subprocess.run(["bash", "-c", 'ulimit -f 8; exec "$0" "$@"', FLOWSHARD, *map(str, command)],
                            capture_output=True, text=True, timeout=300)
    assert result.returncode == 5 and "File too large (raise the limit" in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1 and not list(tmp_path.iterdir())
