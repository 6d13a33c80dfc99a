"""Formats of the pictures, the settings stored in them, and repeating a picture from these; read with Pillow."""
import json
import shutil

import numpy as np
import pytest
from PIL import Image, PngImagePlugin
from pictures import generate, made, pixels, refused, stored_settings
from tiny_flux import make_tiny_flux

PROMPT = 'caf\u00e9 \u6771\u4eac \U0001f98a "quoted" \\ a\nb\t</x>'
SIZE = ["--height", 32, "--width", 48, "--steps", 2, "--max-sequence-length", 16]
EXTENSIONS = {"PNG": "png", "JPEG": "jpg", "WEBP": "webp"}


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "dev"
    make_tiny_flux(folder, seed=1)
    return folder


@pytest.mark.parametrize("kind", EXTENSIONS)
def test_settings_are_stored_and_repeat_the_picture(dev, tmp_path, kind):
    first, second = (tmp_path / f"{name}.{EXTENSIONS[kind]}" for name in "ab")
    made("--model", dev, "--prompt", PROMPT, "--negative-prompt", "na\u00efve", "--true-cfg-scale", 1.7, "--guidance", 2.25,
         "--seed", 2**63 + 5, *SIZE, "--output", first)
    assert Image.open(first).format == kind
    settings = stored_settings(first)
    version = settings.pop("flowshard")
    assert version and len(settings.pop("model_fingerprint")) == 16
    assert settings == {
        "prompt": PROMPT, "negative_prompt": "na\u00efve", "seed": 2**63 + 5, "height": 32, "width": 48, "steps": 2,
        "guidance": 2.25, "true_cfg_scale": 1.7, "max_sequence_length": 16, "model": str(dev), "loras": [],
        "lora_lenient": False, "device": "cpu", "precision": "fp32"} | ({} if kind == "PNG" else {"quality": 95})
    made("--from", first, "--output", second)
    assert first.read_bytes() == second.read_bytes()
    # A copy of the model elsewhere makes the same pixels and is no other model.
    shutil.copytree(dev, tmp_path / "copy")
    result = generate("--from", first, "--model", tmp_path / "copy", "--output", second)
    assert result.returncode == 0 and "has changed" not in result.stderr
    assert np.array_equal(pixels(first), pixels(second))
    assert stored_settings(second) == stored_settings(first) | {"model": str(tmp_path / "copy")}


def test_formats_hold_the_same_picture(dev, tmp_path):
    common = ["--model", dev, "--prompt", "a red circle", *SIZE]
    for name in ("a.png", "a.jpg", "a.JPEG", "a.webp"):
        made(*common, "--output", tmp_path / name)
    made(*common, "--quality", 100, "--output", tmp_path / "lossless.webp")
    made(*common, "--quality", 20, "--output", tmp_path / "small.jpg")
    exact = pixels(tmp_path / "a.png")
    assert np.array_equal(pixels(tmp_path / "lossless.webp"), exact)
    for name in ("a.jpg", "a.webp"):  # as near as what Pillow writes
        Image.open(tmp_path / "a.png").save(tmp_path / f"pillow-{name}", quality=95)
        ours, theirs = (np.abs(pixels(tmp_path / file) - exact).mean() for file in (name, f"pillow-{name}"))
        assert 0 < ours <= 1.01 * theirs, (name, ours, theirs)
    assert np.array_equal(pixels(tmp_path / "a.jpg"), pixels(tmp_path / "a.JPEG"))
    assert (tmp_path / "small.jpg").stat().st_size < (tmp_path / "a.jpg").stat().st_size
    assert stored_settings(tmp_path / "small.jpg")["quality"] == 20
    made("--from", tmp_path / "small.jpg", "--output", tmp_path / "again.jpg")
    assert (tmp_path / "small.jpg").read_bytes() == (tmp_path / "again.jpg").read_bytes()


def test_options_beside_from_override_it(dev, tmp_path):
    made("--model", dev, "--prompt", "a red circle", "--guidance", 2, "--seed", 3, *SIZE, "--output", tmp_path / "a.png")
    made("--from", tmp_path / "a.png", "--seed", 4, "--prompt", "a blue square", "--precision", "bf16", "--num-images", 2,
         "--output", tmp_path / "b.png")
    before, after = stored_settings(tmp_path / "a.png"), stored_settings(tmp_path / "b_1.png")
    assert after == before | {"seed": 5, "prompt": "a blue square", "precision": "bf16"}
    made("--model", dev, "--prompt", "a blue square", "--guidance", 2, "--seed", 5, "--precision", "bf16", *SIZE, "--output",
         tmp_path / "c.png")
    assert (tmp_path / "b_1.png").read_bytes() == (tmp_path / "c.png").read_bytes()
    # The settings are the defaults of a prompt file's lines.
    (tmp_path / "p.jsonl").write_text('{"seed": 5, "prompt": "a blue square"}')
    made("--from", tmp_path / "a.png", "--precision", "bf16", "--prompts", tmp_path / "p.jsonl", "--output", tmp_path / "out")
    assert (tmp_path / "out/00000.png").read_bytes() == (tmp_path / "c.png").read_bytes()


def test_a_model_that_has_changed_is_said(dev, tmp_path):
    shutil.copytree(dev, tmp_path / "model")
    made("--model", tmp_path / "model", "--prompt", "x", *SIZE, "--output", tmp_path / "a.png")
    make_tiny_flux(tmp_path / "other", seed=2)
    weights = "transformer/diffusion_pytorch_model.safetensors"
    shutil.copy(tmp_path / "other" / weights, tmp_path / "model" / weights)
    result = generate("--from", tmp_path / "a.png", "--output", tmp_path / "b.png")
    assert result.returncode == 0
    assert f"warning: {tmp_path / 'model'}: has changed" in result.stderr
    assert stored_settings(tmp_path / "a.png")["model_fingerprint"] != stored_settings(tmp_path / "b.png")["model_fingerprint"]


def test_pictures_without_settings_are_refused(tmp_path):
    picture = Image.new("RGB", (16, 16))
    picture.save(tmp_path / "plain.png")
    picture.save(tmp_path / "plain.jpg")
    picture.save(tmp_path / "plain.webp")
    info = PngImagePlugin.PngInfo()
    info.add_text("Description", "a holiday")
    picture.save(tmp_path / "other.png", pnginfo=info)
    info = PngImagePlugin.PngInfo()
    info.add_text("Description", '{"flowshard": "9", "device": ' + "[" * 200_000 + "]" * 200_000 + "}")
    picture.save(tmp_path / "deep.png", pnginfo=info)
    exif = Image.Exif()
    exif[0x010E] = '{"prompt": "of another program"}'
    picture.save(tmp_path / "other.jpg", exif=exif)
    (tmp_path / "text.png").write_text("x")
    for name, words in {"plain.png": "holds no settings", "plain.jpg": "holds no settings", "plain.webp": "holds no settings",
                        "other.png": "holds no settings", "deep.png": "holds no settings", "other.jpg": "holds no settings", "text.png": "not a PNG",
                        "absent.png": "absent.png", ".": ""}.items():
        message = refused("--from", tmp_path / name, "--output", tmp_path / "out.png")
        assert words in message and "internal" not in message, name
    assert not (tmp_path / "out.png").exists()


def test_settings_with_mistakes_are_refused(tmp_path):
    for name, change, words in [("a", {"seed": -1}, "seed is -1"), ("b", {"prompt": 5}, "prompt is 5"),
                                ("c", {"loras": [5]}, "loras"), ("d", {"device": "tpu"}, "tpu"),
                                ("e", {"quality": 1000}, "quality is 1000"), ("f", {"precision": "int4"}, "int4")]:
        info = PngImagePlugin.PngInfo()
        info.add_text("Description", json.dumps({"flowshard": "9", "prompt": "x", "model": "nowhere", "device": "cpu", "precision": "fp32"} | change))
        Image.new("RGB", (16, 16)).save(tmp_path / f"{name}.png", pnginfo=info)
        message = refused("--from", tmp_path / f"{name}.png", "--output", tmp_path / "out.png")
        assert words in message and "internal" not in message


def test_other_programs_may_rewrite_the_file(dev, tmp_path):
    """What Pillow writes: EXIF of another byte order, its own order of chunks."""
    made("--model", dev, "--prompt", PROMPT, *SIZE, "--quality", 100, "--output", tmp_path / "a.webp")
    exif = Image.open(tmp_path / "a.webp").getexif()
    exif[0x0131] = "another program"
    exif.endian = ">"
    Image.open(tmp_path / "a.webp").save(tmp_path / "b.jpg", exif=exif)
    made("--from", tmp_path / "b.jpg", "--output", tmp_path / "c.webp")
    assert (tmp_path / "a.webp").read_bytes() == (tmp_path / "c.webp").read_bytes()


def test_settings_too_long_for_a_jpeg(dev, tmp_path):
    long = "word " * 20_000
    (tmp_path / "p.txt").write_text(long)
    common = ["--model", dev, "--prompt-file", tmp_path / "p.txt", *SIZE, "--output"]
    assert "write PNG or WebP" in refused(*common, tmp_path / "a.jpg")
    for name in ("a.png", "a.webp"):
        made(*common, tmp_path / name)
        assert stored_settings(tmp_path / name)["prompt"] == long
        made("--from", tmp_path / name, "--output", tmp_path / f"again-{name}")
        assert (tmp_path / name).read_bytes() == (tmp_path / f"again-{name}").read_bytes()


def test_previews_are_the_estimates_of_the_steps(dev, tmp_path):
    common = ["--model", dev, "--prompt", "a red circle", "--height", 32, "--width", 48, "--max-sequence-length", 16, "--seed", 4]
    made(*common, "--steps", 3, "--output", tmp_path / "plain.png")
    made(*common, "--steps", 3, "--preview-every", 2, "--output", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "plain.png").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.preview.png", "plain.png"]
    # After the first step the estimate is what one step to the end makes.
    made(*common, "--steps", 1, "--output", tmp_path / "one.png")
    made(*common, "--steps", 2, "--preview-every", 1, "--output", tmp_path / "b.jpg")
    assert np.abs(pixels(tmp_path / "b.preview.png") - pixels(tmp_path / "one.png")).max() <= 1
    assert "holds no settings" in refused("--from", tmp_path / "b.preview.png", "--output", tmp_path / "c.png")
