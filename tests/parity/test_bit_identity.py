"""One image is the same bytes however it comes to be made."""
import json

import numpy as np
import pytest
import torch
from pictures import generate, made, pixels
from safetensors.torch import save_file
from tiny_flux import make_tiny_flux

COMMON = ["--height", 64, "--width", 48, "--steps", 4, "--max-sequence-length", 16]
PROMPT = "a red circle left of a blue square"


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "dev"
    make_tiny_flux(folder, seed=1)
    return folder


@pytest.fixture(scope="module")
def alone(dev, tmp_path_factory):
    """The bytes of seed 7 made alone."""
    path = tmp_path_factory.mktemp("alone") / "a.png"
    made("--model", dev, "--prompt", PROMPT, *COMMON, "--seed", 7, "--output", path)
    return path.read_bytes()


def test_after_a_restart(dev, alone, tmp_path):
    made("--model", dev, "--prompt", PROMPT, *COMMON, "--seed", 7, "--output", tmp_path / "b.png")
    assert (tmp_path / "b.png").read_bytes() == alone


def test_in_a_series(dev, alone, tmp_path):
    made("--model", dev, "--prompt", PROMPT, *COMMON, "--seed", 5, "--num-images", 4, "--output", tmp_path / "s.png")
    assert (tmp_path / "s_2.png").read_bytes() == alone


@pytest.mark.parametrize("place", [0, 1, 3])
def test_anywhere_in_a_prompt_file(dev, alone, tmp_path, place):
    others = [{"prompt": "a cat", "seed": 1}, {"prompt": "x" * 300, "seed": 2, "width": 80}, {"prompt": "", "steps": 1, "true_cfg_scale": 3}]
    lines = [*others[:place], {"prompt": PROMPT, "seed": 7, "output": "mine.png"}, *others[place:]]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    made("--model", dev, *COMMON, "--prompts", tmp_path / "p.jsonl", "--preview-every", 1, "--output", tmp_path / "out")
    assert (tmp_path / "out/mine.png").read_bytes() == alone


def test_beside_a_lora_of_scale_zero(dev, alone, tmp_path):
    name = "transformer.single_transformer_blocks.0.attn.to_q"
    save_file({f"{name}.lora_A.weight": torch.randn(4, 32), f"{name}.lora_B.weight": torch.randn(32, 4)}, tmp_path / "l.safetensors")
    common = ["--model", dev, "--prompt", PROMPT, *COMMON, "--seed", 7, "--output"]
    for scale in (1, 0):
        assert generate(*common, tmp_path / f"{scale}.png", "--lora", f"{tmp_path / 'l.safetensors'}:{scale}").returncode == 0
    (tmp_path / "alone.png").write_bytes(alone)
    assert not np.array_equal(pixels(tmp_path / "1.png"), pixels(tmp_path / "alone.png"))
    assert np.array_equal(pixels(tmp_path / "0.png"), pixels(tmp_path / "alone.png"))


@pytest.mark.parametrize("threads", [2, 3])
def test_with_more_threads_while_small(dev, alone, tmp_path, threads):
    made("--model", dev, "--prompt", PROMPT, *COMMON, "--seed", 7, "--output", tmp_path / "b.png", OMP_NUM_THREADS=str(threads))
    assert (tmp_path / "b.png").read_bytes() == alone


def test_with_more_threads_in_bf16_and_nearly_in_fp32(dev, tmp_path):
    """LibTorch's fp32 convolutions and products add up in another order from some size on (docs/numerics.md)."""
    common = ["--model", dev, "--prompt", PROMPT, "--height", 256, "--width", 256, "--steps", 4, "--max-sequence-length", 16]
    for precision in ("bf16", "fp32"):
        pictures = []
        for threads in ("1", "2"):
            made(*common, "--precision", precision, "--output", tmp_path / "a.png", OMP_NUM_THREADS=threads)
            pictures.append(pixels(tmp_path / "a.png"))
        difference = np.abs(pictures[0] - pictures[1])
        assert difference.max() <= (1 if precision == "fp32" else 0) and (difference > 0).mean() <= 1e-3
