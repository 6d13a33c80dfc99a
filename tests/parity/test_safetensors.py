"""Our reader and writer against the Python safetensors package, both ways, on good and on damaged files."""
import json
import random
import struct

import pytest
import safetensors
import torch
from conftest import RunnerError, run_files
from safetensors.torch import load_file, save_file

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8,
          torch.bool]


def random_tensor(dtype, shape, generator):
    numel = torch.Size(shape).numel()
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    return torch.randint(0, 256, (numel * dtype.itemsize,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape, name
        assert torch.equal(bits(ours[name]), bits(tensor)), name


def test_every_dtype_and_shape_bit_for_bit(tmp_path):
    generator = torch.Generator().manual_seed(1)
    tensors = {f"{dtype}.{len(shape)}.{i}": random_tensor(dtype, shape, generator)
               for dtype in DTYPES for i, shape in enumerate([(), (1,), (3,), (5, 7), (2, 1, 3), (0,), (2, 0)])}
    save_file(tensors, tmp_path / "in", metadata={"format": "pt", "note": "zw\u00f6lf \"x\"\n"})
    run_files("safetensors-copy", tmp_path / "in", tmp_path / "out")
    assert_same(load_file(tmp_path / "out"), tensors)
    with safetensors.safe_open(tmp_path / "out", "pt") as file:
        assert file.metadata() == {"format": "pt", "note": "zw\u00f6lf \"x\"\n"}
        assert_same({name: file.get_tensor(name) for name in file.keys()}, tensors)


def test_metadata_without_tensors(tmp_path):
    save_file({}, tmp_path / "in", metadata={"key": "value"})
    run_files("safetensors-copy", tmp_path / "in", tmp_path / "out")
    with safetensors.safe_open(tmp_path / "out", "pt") as file:
        assert file.metadata() == {"key": "value"} and not list(file.keys())


def check_files(run, paths):
    """What our reader finds in each file: its tensors, or None if it refuses the file."""
    found = run("safetensors-check", *paths)
    return [{name[len(f"{path}:"):]: tensor for name, tensor in found.items() if name.startswith(f"{path}:")}
            if found[str(path)].item() else None for path in paths]


def test_header_lengths_around_buffer_sizes(run, tmp_path):
    lengths = [4087, 4088, 4089, 65527, 65528, 65529, *range(99_993, 100_002)]
    paths = [tmp_path / f"{length}" for length in lengths]
    for length, path in zip(lengths, paths):
        entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        header = json.dumps({"n" * (length - len(json.dumps({"": entry}))): entry}).encode()
        assert len(header) == length
        path.write_bytes(struct.pack("<Q", length) + header + struct.pack("<f", length))
    for length, tensors in zip(lengths, check_files(run, paths)):
        assert [tensor.item() for tensor in tensors.values()] == [length]


def reference_read(path):
    try:
        return load_file(path)
    except Exception:  # the package raises many types
        return None


def test_damaged_files_are_refused_as_by_the_reference(run, tmp_path):
    """Random edits of header, length and size. What the reference refuses we refuse; what it accepts we read
    alike or refuse by a rule of ours (a key that stands twice, space before the header, null metadata)."""
    chance = random.Random(7)
    save_file({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.zeros(0)},
              tmp_path / "good", metadata={"format": "pt"})
    good = (tmp_path / "good").read_bytes()
    end = 8 + struct.unpack("<Q", good[:8])[0]
    tokens = [b"0", b"9", b"-1", b"1e3", b"null", b"[", b"]", b"{", b"}", b",", b":", b'"', b"F32", b"\xff", b" ", b"\0"]
    paths = [tmp_path / f"{i}" for i in range(500)]
    for path in paths:
        data = bytearray(good)
        for _ in range(chance.choice([1, 1, 2])):
            at = chance.randrange(0, end)
            data[at:at + chance.randrange(0, 3)] = chance.choice(tokens)
        if chance.random() < 0.7:  # a right length, so that the edit itself is what counts
            data[:8] = struct.pack("<Q", max(0, len(data) - (len(good) - end) - 8))
        if chance.random() < 0.2:
            data = data[:chance.randrange(len(data))]
        path.write_bytes(data)
    both = 0
    for path, ours in zip(paths, check_files(run, paths)):
        theirs = reference_read(path)
        if ours is not None:
            assert theirs is not None, path.read_bytes()
            assert_same(ours, theirs)
            both += 1
        elif theirs is not None:
            header = path.read_bytes()[8:end + 8]
            assert not header.startswith(b"{") or b'__metadata__":null' in header, header
    assert 20 < both < 250


def test_error_names_the_file(tmp_path):
    (tmp_path / "short").write_bytes(b"1234")
    with pytest.raises(RunnerError, match="short: 4 bytes long"):
        run_files("safetensors-copy", tmp_path / "short", tmp_path / "out")
    assert not (tmp_path / "out").exists()
