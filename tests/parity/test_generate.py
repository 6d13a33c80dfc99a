"""Whole images of `flowshard generate` against the diffusers pipeline with the same weights and seed."""
import json
import shutil

import numpy as np
import pytest
from pictures import assert_same_picture, generate, made, pixels, reference
from safetensors.torch import load_file, save_file
from tiny_flux import make_tiny_flux


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "dev"
    return folder, make_tiny_flux(folder, seed=1)


@pytest.fixture(scope="module")
def schnell(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "schnell"
    return folder, make_tiny_flux(folder, seed=2, guidance_embeds=False, levels=3, dynamic_shifting=False)


@pytest.mark.parametrize("height,width,steps,guidance", [(64, 64, 1, 3.5), (48, 80, 4, 3.5), (96, 32, 7, 1.0),
                                                         (128, 112, 4, 0.0)])
def test_image_equals_diffusers(dev, tmp_path, height, width, steps, guidance):
    folder, pipeline = dev
    prompt = "a red circle left of a blue square"
    result = generate("--model", folder, "--prompt", prompt, "--height", height, "--width", width, "--steps", steps,
                      "--guidance", guidance, "--seed", 11, "--max-sequence-length", 24, "--output", tmp_path / "a.png")
    assert result.returncode == 0, result.stderr
    expected = reference(pipeline, prompt, 11, height=height, width=width, num_inference_steps=steps,
                         guidance_scale=guidance, max_sequence_length=24)
    assert_same_picture(tmp_path / "a.png", expected)


def test_schnell_without_guidance_or_shift(schnell, tmp_path):
    folder, pipeline = schnell
    result = generate("--model", folder, "--prompt", "a green triangle", "--height", 40, "--width", 64, "--steps", 4,
                      "--seed", 3, "--max-sequence-length", 16, "--output", tmp_path / "a.png")
    assert result.returncode == 0, result.stderr
    expected = reference(pipeline, "a green triangle", 3, height=40, width=64, num_inference_steps=4,
                         max_sequence_length=16)
    assert np.abs(pixels(tmp_path / "a.png") - expected).max() <= 1


def test_true_cfg_with_a_negative_prompt(dev, tmp_path):
    folder, pipeline = dev
    common = ["--model", folder, "--prompt", "a white square", "--height", 64, "--width", 48, "--steps", 4, "--seed", 5,
              "--max-sequence-length", 16]
    result = generate(*common, "--negative-prompt", "a black circle", "--true-cfg-scale", 2.5, "--output",
                      tmp_path / "a.png")
    assert result.returncode == 0, result.stderr
    expected = reference(pipeline, "a white square", 5, height=64, width=48, num_inference_steps=4,
                         max_sequence_length=16, negative_prompt="a black circle", true_cfg_scale=2.5)
    assert np.abs(pixels(tmp_path / "a.png") - expected).max() <= 1
    plain = generate(*common, "--output", tmp_path / "b.png")
    assert plain.returncode == 0
    assert np.abs(pixels(tmp_path / "b.png") - expected).max() > 1, "guidance must matter"


def test_several_images_are_those_of_the_following_seeds_made_alone(dev, tmp_path):
    folder, pipeline = dev
    common = ["--model", folder, "--prompt", "a cyan circle", "--height", 32, "--width", 32, "--steps", 2,
              "--max-sequence-length", 16]
    assert generate(*common, "--seed", 7, "--num-images", 3, "--output", tmp_path / "many.png").returncode == 0
    for i in range(3):
        assert generate(*common, "--seed", 7 + i, "--output", tmp_path / f"alone{i}.png").returncode == 0
        assert (tmp_path / f"many_{i}.png").read_bytes() == (tmp_path / f"alone{i}.png").read_bytes()
        expected = reference(pipeline, "a cyan circle", 7 + i, height=32, width=32, num_inference_steps=2,
                             max_sequence_length=16)
        assert np.abs(pixels(tmp_path / f"alone{i}.png") - expected).max() <= 1
    assert not (tmp_path / "many.png").exists()


def test_prompts_file_gives_each_line_its_own_options(dev, tmp_path):
    folder, _ = dev
    (tmp_path / "p.jsonl").write_text('{"prompt": "a red circle", "seed": 4}\n\n'
                                      '{"prompt": "a blue square", "seed": 9, "steps": 1, "width": 48, "mine": [1]}\n')
    common = ["--model", folder, "--height", 32, "--width", 32, "--steps", 2, "--max-sequence-length", 16]
    result = generate(*common, "--prompts", tmp_path / "p.jsonl", "--output", tmp_path / "out", "--json")
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["seed"] for line in lines] == [4, 9]
    assert pixels(tmp_path / "out/00001.png").shape == (32, 48, 3)
    assert generate(*common, "--prompt", "a red circle", "--seed", 4, "--output", tmp_path / "a.png").returncode == 0
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "out/00000.png").read_bytes()


def test_odd_sizes_round_down_with_a_word_on_stderr(dev, tmp_path):
    folder, _ = dev
    result = generate("--model", folder, "--prompt", "x", "--height", 50, "--width", 33, "--steps", 1,
                      "--max-sequence-length", 16, "--output", tmp_path / "a.png")
    assert result.returncode == 0
    assert "50x33" in result.stderr and "48x32" in result.stderr
    assert pixels(tmp_path / "a.png").shape == (48, 32, 3)


@pytest.mark.parametrize("height,width", [(108, 192), (135, 108), (71, 154), (17, 33), (16, 16), (31, 16)])
def test_the_answer_says_the_size_that_was_made(dev, tmp_path, height, width):
    folder, _ = dev
    result = generate("--model", folder, "--prompt", "x", "--height", height, "--width", width, "--steps", 1, "--json",
                      "--max-sequence-length", 16, "--output", tmp_path / "a.png")
    assert result.returncode == 0, result.stderr
    size = height // 16 * 16, width // 16 * 16
    assert pixels(tmp_path / "a.png").shape == (*size, 3)
    answer = json.loads(result.stdout)
    assert (answer["height"], answer["width"]) == size
    warning = f"{height}x{width} (height x width) is rounded down to {size[0]}x{size[1]}"
    assert (warning in result.stderr) == (size != (height, width))


@pytest.mark.parametrize("part,tensor", [("vae", "decoder.conv_out.bias"), ("transformer", "proj_out.bias"),
                                         ("text_encoder_2", "encoder.final_layer_norm.weight")])
def test_a_picture_that_is_not_finite_is_an_error_and_no_black_file(dev, tmp_path, part, tensor):
    shutil.copytree(dev[0], tmp_path / "model")
    weights, = (tmp_path / "model" / part).glob("*.safetensors")
    tensors = load_file(weights)
    tensors[tensor][1] = float("nan")
    save_file(tensors, weights)
    result = generate("--model", tmp_path / "model", "--prompt", "x", "--height", 32, "--width", 32, "--steps", 1,
                      "--max-sequence-length", 16, "--output", tmp_path / "a.png")
    assert result.returncode == 4 and "the picture is not finite" in result.stderr, result.stderr
    assert not list(tmp_path.glob("a*"))


@pytest.mark.parametrize("args,words", [
    (["--height", 15], "height is 15"), (["--width", 100000], "width is 100000"), (["--steps", 0], "steps is 0"),
    (["--max-sequence-length", 0], "max sequence length is 0"), (["--num-images", 0], "number of images is 0"),
    (["--guidance", "nan"], "guidance"), (["--device", "tpu"], "tpu"), (["--output", "a.bmp"], ".png"),
    (["--model", "no/such/folder"], "no/such/folder"),
])
def test_impossible_requests_are_refused_before_any_work(dev, tmp_path, args, words):
    folder, _ = dev
    options = {"--model": folder, "--prompt": "x", "--output": tmp_path / "a.png", args[0]: args[1]}
    result = generate(*[word for pair in options.items() for word in pair])
    assert result.returncode == 2
    assert words in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
