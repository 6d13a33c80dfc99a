"""flowshard inspect on what training leaves and on pictures: what it is, its sizes, and whether it is sound."""
import gzip
import json
import math
import shutil
import struct
import zlib

import pytest
from PIL import Image

import training_run
from training_run import damage, metrics


def inspect(flowshard, path, exit_code=0):
    """The report, which the text form and the exit code agree with."""
    result = flowshard("inspect", path, "--json")
    assert result.returncode == exit_code, result.stderr
    report = json.loads(result.stdout)
    assert report["sound"] == (exit_code == 0)
    if exit_code == 0:
        assert result.stderr == ""
    else:
        assert result.stderr == f"flowshard inspect: error: {report['error']}\n"
    text = flowshard("inspect", path)
    assert text.returncode == exit_code and f"kind: {report['kind']}\n" in text.stdout
    return report


@pytest.fixture(scope="module")
def run(flowshard_at, tmp_path_factory, shapes_dataset):
    """A finished run of two ranks, with checkpoints of the steps 2 and 4. Not to be changed."""
    folder = tmp_path_factory.mktemp("run")
    training_run.lay_out(folder, shapes_dataset)
    result = flowshard_at(folder, "launch", "--nproc_per_node", 2, "--", "train", "run.toml")
    assert result.returncode == 0, result.stderr
    return folder / "out"


def test_a_run_and_its_checkpoints(flowshard, run):
    report = inspect(flowshard, run)
    assert report["kind"] == "training run"
    assert report["checkpoint"]["path"].endswith("checkpoints/step-00000004")
    for step in (2, 4):
        folder = run / f"checkpoints/step-0000000{step}"
        report = inspect(flowshard, folder)
        assert report["kind"] == "training checkpoint"
        assert report["checkpoint"]["step"] == step
        assert report["checkpoint"]["samples_seen"] == metrics(run / "metrics.jsonl")[step - 1]["samples_seen"]
        layout = json.loads((folder / "layout.json").read_text())
        shapes = [parameter["shape"] for group in layout["groups"] for parameter in group["parameters"]]
        assert report["components"]["transformer"] == {"tensors": len(shapes), "parameters": sum(map(math.prod, shapes))}


def flip_a_bit_in(name):
    return lambda folder: damage(next(folder.glob(name)))


def remove(name):
    return lambda folder: next(folder.glob(name)).unlink()


def cut(name):
    def change(folder):
        path = next(folder.glob(name))
        path.write_bytes(path.read_bytes()[:-8])
    return change


@pytest.mark.parametrize("change,words", [
    (flip_a_bit_in("rank-00001-*.safetensors"), "rank-00001-of-00002.safetensors"),
    (remove("rank-00000-*.safetensors"), "rank-00000-of-00002.safetensors"), (cut("rank-00001-*"), "rank-00001-of-00002"),
    (flip_a_bit_in("layout.json"), "layout.json"), (remove("state.json"), "state.json"), (cut("manifest.json"), "manifest.json"),
    (lambda folder: (folder / "manifest.json").write_text("[" * 100_000), "nested too deeply"),
], ids=["bit of a shard", "no shard", "cut shard", "bit of the layout", "no state", "cut manifest", "deep manifest"])
def test_a_damaged_checkpoint_is_named(flowshard, run, tmp_path, change, words):
    shutil.copytree(run, tmp_path / "run")
    change(tmp_path / "run/checkpoints/step-00000004")
    for path in ("run", "run/checkpoints/step-00000004"):
        assert words in inspect(flowshard, path, exit_code=5)["error"]
    inspect(flowshard, "run/checkpoints/step-00000002")


def test_a_run_without_a_checkpoint(flowshard, tmp_path):
    (tmp_path / "run/checkpoints/step-00000002.tmp").mkdir(parents=True)
    assert "no complete checkpoint" in inspect(flowshard, "run", exit_code=5)["error"]


def png(width, height, *chunks):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunk(*each) for each in chunks) + chunk(b"IEND", b"")


def saved(image, path, **options):
    image.save(path, **options)
    return path.read_bytes()


def bad_pictures(folder):
    """name: (content, exit code, what the message says)"""
    image = Image.linear_gradient("L").resize((40, 30)).convert("RGB")
    jpeg, webp = saved(image, folder / "jpeg.jpg"), saved(image, folder / "webp.webp")
    frame = jpeg.index(b"\xff\xc0") + 5
    return {
        "cut.jpg": (jpeg[:-1], 4, "cannot decode the JPEG"), "half.jpg": (jpeg[:len(jpeg) // 2], 4, "cannot decode the JPEG"),
        "cut.webp": (webp[:-2], 4, "cannot decode the WebP"), "cut.png": (png(8, 8)[:-4], 4, "cannot decode the PNG"),
        "bomb.png": (png(30000, 30000, (b"IDAT", zlib.compress(bytes(3751 * 30000), 9))), 4,
                     "30000 x 30000 pixels are above the limit of 178956970"),
        "bomb.jpg": (jpeg[:frame] + b"\xff\xdc\xff\xdc" + jpeg[frame + 4:], 4, "65500 x 65500 pixels are above the limit"),
        "no_width.png": (png(0, 8), 4, "PNG"), "no_height.png": (png(8, 0), 4, "PNG"),
        "page.jpg": (b"<!DOCTYPE html><html>404</html>", 2, "no weights file, tar or picture"),
        "packed.jpg": (gzip.compress(jpeg), 2, "no weights file, tar or picture"), "empty.jpg": (b"", 2, "picture"),
    }


def test_pictures_that_cannot_be_read(flowshard, tmp_path):
    for name, (content, exit_code, words) in bad_pictures(tmp_path).items():
        (tmp_path / name).write_bytes(content)
        assert words in inspect(flowshard, name, exit_code)["error"], name


def test_pictures_of_every_kind(flowshard, tmp_path):
    image = Image.linear_gradient("L").resize((40, 30)).convert("RGB")
    turned = Image.Exif()
    turned[0x0112] = 6
    broken = b"Exif\0\0II*\0\xff\xff\xff\xff"
    for name, kind, size, options in (
            ("cmyk.jpg", image.convert("CMYK"), (40, 30), {}), ("turned.jpg", image, (30, 40), {"exif": turned}),
            ("broken_exif.jpg", image, (40, 30), {"exif": broken}), ("palette.png", image.quantize(5), (40, 30), {}),
            ("grey_alpha.png", image.convert("LA"), (40, 30), {}), ("sixteen_bits.png", image.convert("I;16"), (40, 30), {}),
            ("webp.webp", image, (40, 30), {})):
        saved(kind, tmp_path / name, **options)
        report = inspect(flowshard, name)
        assert (report["kind"], report["width"], report["height"]) == ("picture", *size), name


def test_json_of_a_path_that_is_not_utf8(flowshard):
    result = flowshard("inspect", b"a\xff", "--json")
    assert result.returncode == 2
    assert json.loads(result.stdout)["path"] == "a\ufffd"
