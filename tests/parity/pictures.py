"""Pictures of `flowshard generate` and what they are compared with."""
import json
import os
import pathlib
import subprocess

import numpy as np
import torch
from conftest import ENVIRONMENT, ROOT
from PIL import Image

FLOWSHARD = pathlib.Path(os.environ.get("FLOWSHARD", ROOT / "build/release/flowshard"))


def generate(*args, **variables):
    return subprocess.run([FLOWSHARD, "generate", *map(str, args)], capture_output=True, text=True, timeout=300,
                          env=ENVIRONMENT | variables)


def made(*args, **variables):
    """The lines that the program prints; it must not fail."""
    result = generate(*args, **variables)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def refused(*args, code=2):
    """The message of a program that must end with `code` and one line."""
    result = generate(*args)
    assert result.returncode == code, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    return result.stderr


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def stored_settings(path):
    """As Pillow finds them."""
    image = Image.open(path)
    text = image.text["Description"] if image.format == "PNG" else image.getexif()[0x010E]
    return json.loads(text)


def reference(pipeline, prompt, seed, **options):
    generator = torch.Generator("cpu").manual_seed(seed)
    image = pipeline(prompt, generator=generator, output_type="pil", **options).images[0]
    return np.asarray(image).astype(int)


def assert_same_picture(path, expected):
    got = pixels(path)
    assert got.shape == expected.shape
    difference = np.abs(got - expected)
    assert expected.std() > 5, "the picture must not be flat for the comparison to mean something"
    assert difference.max() <= 1 and difference.mean() <= 0.01
