"""Image to image of `flowshard generate` against diffusers' FluxImg2ImgPipeline with the same weights and seed."""
import json

import numpy as np
import pytest
from diffusers import FluxImg2ImgPipeline
from diffusers.utils import load_image
from pictures import assert_same_picture, generate, made, pixels, reference, refused, stored_settings
from PIL import Image
from tiny_flux import make_tiny_flux


@pytest.fixture(scope="module", params=["dev", "schnell"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / request.param
    schnell = {"guidance_embeds": False, "levels": 3, "dynamic_shifting": False}
    pipeline = make_tiny_flux(folder, seed=3, **(schnell if request.param == "schnell" else {}))
    pipeline = FluxImg2ImgPipeline(**pipeline.components)
    pipeline.set_progress_bar_config(disable=True)
    return folder, pipeline


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "dev"
    make_tiny_flux(folder, seed=3)
    return folder


def photograph(width, height, seed=0):
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 100 * np.sin(x / (7 + 3 * c) + seed) * np.cos(y / (9 - 2 * c)) for c in range(3)]
    return Image.fromarray((np.stack(waves, -1) + rng.normal(0, 8, (height, width, 3))).clip(0, 255).astype(np.uint8))


# height, width, steps, strength, size of the init picture (width, height)
CASES = [(64, 64, 4, 0.6, (64, 64)), (64, 64, 7, 0.3, (200, 150)), (48, 80, 4, 1.0, (31, 90)), (96, 32, 1, 0.9, (400, 40)),
         (32, 112, 10, 0.75, (112, 33)), (80, 64, 5, 0.01, (64, 300)), (64, 48, 12, 0.95, (17, 13))]


@pytest.mark.parametrize("height,width,steps,strength,size", CASES)
def test_equals_diffusers(model, tmp_path, height, width, steps, strength, size):
    folder, pipeline = model
    init = photograph(*size, seed=steps)
    init.save(tmp_path / "init.png")
    made("--model", folder, "--prompt", "a red circle", "--init-image", tmp_path / "init.png", "--strength", strength,
         "--height", height, "--width", width, "--steps", steps, "--seed", 21, "--max-sequence-length", 24, "--output",
         tmp_path / "a.png")
    expected = reference(pipeline, "a red circle", 21, image=init, strength=strength, height=height, width=width,
                         num_inference_steps=steps, guidance_scale=3.5, max_sequence_length=24)
    assert_same_picture(tmp_path / "a.png", expected)


def test_true_cfg_equals_diffusers(model, tmp_path):
    folder, pipeline = model
    init = photograph(90, 70)
    init.save(tmp_path / "init.png")
    made("--model", folder, "--prompt", "a white square", "--negative-prompt", "a black circle", "--true-cfg-scale", 2.5,
         "--init-image", tmp_path / "init.png", "--strength", 0.7, "--height", 64, "--width", 48, "--steps", 6, "--seed", 5,
         "--max-sequence-length", 16, "--output", tmp_path / "a.png")
    expected = reference(pipeline, "a white square", 5, image=init, strength=0.7, height=64, width=48, num_inference_steps=6,
                         guidance_scale=3.5, max_sequence_length=16, negative_prompt="a black circle", true_cfg_scale=2.5)
    assert_same_picture(tmp_path / "a.png", expected)


@pytest.mark.parametrize("kind", ["turned.jpg", "grey.png", "palette.png", "lossy.webp"])
def test_pictures_of_other_kinds_equal_diffusers(model, tmp_path, kind):
    folder, pipeline = model
    path, picture = tmp_path / kind, photograph(70, 50)
    if kind == "turned.jpg":
        exif = Image.Exif()
        exif[0x0112] = 6
        picture.save(path, quality=95, subsampling=0, exif=exif)
    else:
        picture.convert({"grey.png": "L", "palette.png": "P"}.get(kind, "RGB")).save(path)
    made("--model", folder, "--prompt", "a red circle", "--init-image", path, "--height", 64, "--width", 48, "--steps", 4, "--seed", 3,
         "--max-sequence-length", 16, "--output", tmp_path / "a.png")
    expected = reference(pipeline, "a red circle", 3, image=load_image(str(path)), strength=0.6, height=64, width=48,
                         num_inference_steps=4, guidance_scale=3.5, max_sequence_length=16)
    assert_same_picture(tmp_path / "a.png", expected)


def test_each_line_of_a_prompt_file_has_its_own(model, tmp_path):
    folder, pipeline = model
    inits = [photograph(64, 48, seed=i) for i in range(2)]
    for i, init in enumerate(inits):
        init.save(tmp_path / f"init{i}.webp", lossless=True)
    lines = [{"prompt": "a cyan circle", "init_image": str(tmp_path / "init0.webp"), "strength": 0.5},
             {"prompt": "a cyan circle", "init_image": str(tmp_path / "init1.webp")}, {"prompt": "a cyan circle"}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    common = ["--model", folder, "--height", 48, "--width", 64, "--steps", 4, "--max-sequence-length", 16]
    made(*common, "--prompts", tmp_path / "p.jsonl", "--output", tmp_path / "out")
    for i, strength in enumerate([0.5, 0.6]):
        expected = reference(pipeline, "a cyan circle", 0, image=inits[i], strength=strength, height=48, width=64,
                             num_inference_steps=4, guidance_scale=3.5, max_sequence_length=16)
        assert_same_picture(tmp_path / f"out/0000{i}.png", expected)
    made(*common, "--prompt", "a cyan circle", "--output", tmp_path / "text.png")
    assert (tmp_path / "text.png").read_bytes() == (tmp_path / "out/00002.png").read_bytes()


@pytest.mark.parametrize("args,words", [
    (["--strength", 0], "strength is 0"), (["--strength", -0.1], "strength is -0.1"), (["--strength", 1.01], "strength is 1.01"),
    (["--strength", "nan"], "strength is nan"), (["--strength", "much"], "--strength"),
    (["--strength", 1e-20], "it leaves none to make"), (["--init-image", "absent.png"], "absent.png"),
    (["--init-image", "folder"], "folder"), (["--init-image", "text.png"], "not a PNG, JPEG or WebP picture"),
    (["--init-image", "cut.png"], "the file is cut"), (["--init-image", "empty.png"], "empty"),
])
def test_mistakes_are_told_before_any_work(dev, tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    photograph(40, 40).save("init.png")
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.png").write_text("a picture of words")
    (tmp_path / "cut.png").write_bytes((tmp_path / "init.png").read_bytes()[:-40])
    (tmp_path / "empty.png").write_bytes(b"")

    options = {"--model": dev, "--prompt": "x", "--init-image": "init.png", "--height": 32, "--width": 32,
               "--output": "out/a.png"} | {args[0]: args[1]}
    assert words in refused(*[word for pair in options.items() for word in pair])
    assert not (tmp_path / "out").exists()


def test_a_stretched_picture_is_said(dev, tmp_path):
    photograph(100, 49).save(tmp_path / "init.png")
    common = ["--model", dev, "--prompt", "x", "--init-image", tmp_path / "init.png", "--steps", 1, "--max-sequence-length", 16,
              "--output", tmp_path / "a.png"]
    result = generate(*common, "--height", 32, "--width", 64)
    assert result.returncode == 0 and result.stderr == ""
    result = generate(*common, "--height", 64, "--width", 64)
    assert result.returncode == 0 and "init.png: is stretched to 64x64" in result.stderr


def test_strength_needs_a_picture(dev, tmp_path):
    assert "--init-image" in refused("--model", dev, "--prompt", "x", "--strength", 0.5, "--output", tmp_path / "a.png")
    (tmp_path / "p.jsonl").write_text('{"prompt": "x", "strength": 0.5}')
    assert "p.jsonl:1: strength" in refused("--model", dev, "--prompts", tmp_path / "p.jsonl", "--output", tmp_path / "out")


def test_from_repeats_it_unless_the_picture_has_changed(dev, tmp_path):
    photograph(50, 40).save(tmp_path / "init.jpg")
    made("--model", dev, "--prompt", "x", "--init-image", tmp_path / "init.jpg", "--strength", 0.7, "--height", 32, "--width", 48,
         "--steps", 3, "--max-sequence-length", 16, "--output", tmp_path / "a.png")
    settings = stored_settings(tmp_path / "a.png")
    assert settings["strength"] == 0.7 and settings["init_image"] == str(tmp_path / "init.jpg")
    made("--from", tmp_path / "a.png", "--output", tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    made("--from", tmp_path / "a.png", "--strength", 0.3, "--output", tmp_path / "c.png")
    assert not np.array_equal(pixels(tmp_path / "a.png"), pixels(tmp_path / "c.png"))

    photograph(50, 40, seed=1).save(tmp_path / "init.jpg")
    message = refused("--from", tmp_path / "a.png", "--output", tmp_path / "d.png")
    assert "init.jpg: its content is another" in message and not (tmp_path / "d.png").exists()
    # Named again, it is taken as it is.
    assert generate("--from", tmp_path / "a.png", "--init-image", tmp_path / "init.jpg", "--output",
                    tmp_path / "d.png").returncode == 0
