"""flowshard generate: what it cannot do is refused before the first picture."""
import io
import json

import pytest
from PIL import Image

import training_run
from test_bad_input import assert_refused, files_below

PROMPT = ["--prompt", "a red square"]
SIZE = ["--height", 32, "--width", 32, "--steps", 1]


@pytest.fixture(scope="module")
def trained(flowshard_at, tmp_path_factory, shapes_dataset):
    """A folder with the checkpoint of an untrained model in out/."""
    folder = tmp_path_factory.mktemp("trained")
    training_run.lay_out(folder, shapes_dataset)
    result = flowshard_at(folder, "train", "run.toml", "--set", "train.steps=0")
    assert result.returncode == 0, result.stderr
    return folder


def png():
    picture = io.BytesIO()
    Image.new("RGB", (32, 32)).save(picture, "png")
    return picture.getvalue()


def prompts(*lines):
    return "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode()


# name: (content of the file `in`, arguments, exit code, what the message says)
MISTAKES = {
    "height of 0": (None, [*PROMPT, "--height", 0, "--output", "x.png"], 2, ["height is 0", "16 to "]),
    "negative width": (None, [*PROMPT, "--width", -64, "--output", "x.png"], 2, ["width is -64"]),
    "huge height": (None, [*PROMPT, "--height", 10**9, "--output", "x.png"], 2, ["height is 1000000000"]),
    "beyond 64 bits": (None, [*PROMPT, "--height", 10**20, "--output", "x.png"], 2, ["height"]),
    "size that is no number": (None, [*PROMPT, "--height", "tall", "--output", "x.png"], 2, ["--height"]),
    "no steps": (None, [*PROMPT, "--steps", 0, "--output", "x.png"], 2, ["steps is 0"]),
    "guidance that is no number": (None, [*PROMPT, "--guidance", "nan", "--output", "x.png"], 2, ["guidance is nan"]),
    "negative seed": (None, [*PROMPT, "--seed", -1, "--output", "x.png"], 2, ["--seed"]),
    "no images": (None, [*PROMPT, "--num-images", 0, "--output", "x.png"], 2, ["number of images is 0"]),
    "too many images": (None, [*PROMPT, "--num-images", 10**12, "--output", "x.png"], 2, ["number of images"]),
    "sequence of 0": (None, [*PROMPT, "--max-sequence-length", 0, "--output", "x.png"], 2, ["max sequence length is 0"]),
    "no prompt": (None, ["--output", "x.png"], 2, ["prompt"]),
    "two prompts": (b"x", [*PROMPT, "--prompt-file", "in", "--output", "x.png"], 2, ["prompt"]),
    "prompt that is not UTF-8": (None, ["--prompt", b"a red \xff square", "--output", "x.png"], 2, ["--prompt", "not valid UTF-8", "position 6"]),
    "negative prompt that is not UTF-8": (None, [*PROMPT, "--negative-prompt", b"\xed\xa0\x80", "--output", "x.png"], 2,
                                          ["--negative-prompt", "not valid UTF-8"]),
    "file that is not UTF-8": (b"a red \xff square", ["--prompt-file", "in", "--output", "x.png"], 2, ["in: ", "not valid UTF-8"]),
    "UTF-16 file": ("a red square".encode("utf-16"), ["--prompt-file", "in", "--output", "x.png"], 2, ["in: ", "not valid UTF-8"]),
    "NUL bytes": (b"a red\0square", ["--prompt-file", "in", "--output", "x.png"], 2, ["in: ", "NUL"]),
    "no prompt file": (None, ["--prompt-file", "absent", "--output", "x.png"], 2, ["absent: cannot be read"]),
    "folder for a prompt file": (None, ["--prompt-file", "model", "--output", "x.png"], 2, ["model: cannot be read"]),
    "huge prompt file": (b"red " * (1 << 19), ["--prompt-file", "in", "--output", "x.png"], 2, ["in", "1 MiB"]),
    "prompts that are not UTF-8": (b'{"prompt": "a"}\n{"prompt": "\xff"}', ["--prompts", "in", "--output", "x"], 2, ["in:2: not a prompt object"]),
    "prompts with NUL": (prompts({"prompt": "a\0b"}), ["--prompts", "in", "--output", "x"], 2, ["in:1: ", "NUL"]),
    "no prompts": (b"\n\n", ["--prompts", "in", "--output", "x"], 2, ["in: holds no prompt"]),
    "text for prompts": (b"a red square\n", ["--prompts", "in", "--output", "x"], 2, ["in:1: not a prompt object"]),
    "list for a prompt": (prompts({"prompt": ["a"]}), ["--prompts", "in", "--output", "x"], 2, ["in:1: prompt is"]),
    "prompts and a bad height": (prompts({"prompt": "a"}, {"prompt": "b", "height": -3}), ["--prompts", "in", "--output", "x"], 2,
                                 ["height is -3"]),
    "fractional height": (prompts({"prompt": "b", "height": 64.5}), ["--prompts", "in", "--output", "x"], 2, ["in:1: ", "height"]),
    "folder for prompts": (None, ["--prompts", "model", "--output", "x"], 2, ["model"]),
    "output of an unknown format": (None, [*PROMPT, "--output", "x.bmp"], 2, ["x.bmp", ".png"]),
    "output without a name": (None, [*PROMPT, "--output", "folder.png/"], 2, ["--output", ".png"]),
    "output over the init image": (png(), [*PROMPT, *SIZE, "--init-image", "in", "--output", "link.png"], 2, ["output link.png: it is the init image"]),
    "grid over the picture": (None, [*PROMPT, *SIZE, "--output", "x.png", "--grid", "./x.png"], 2, ["--grid ./x.png: a picture of the run has this name"]),
    "grid that is no PNG": (None, [*PROMPT, *SIZE, "--output", "x.png", "--grid", "grid.jpg"], 2, ["--grid grid.jpg: name a .png file"]),
    "previews over a picture": (prompts({"prompt": "a", "output": "x.preview.png"}, {"prompt": "a", "output": "x.jpg"}),
                                ["--prompts", "in", *SIZE, "--preview-every", 1, "--output", "y"], 2, ["output y/x.preview.png: previews of y/x.jpg"]),
    "more pictures than a run plans": (prompts(*[{"prompt": "a", "num_images": 100_000}] * 11), ["--prompts", "in", *SIZE, "--output", "x"], 2,
                                       ["more than 1000000 pictures in one run"]),
    "quality of 0": (None, [*PROMPT, "--quality", 0, "--output", "x.jpg"], 2, ["--quality"]),
    "previews every 0 steps": (None, [*PROMPT, "--preview-every", 0, "--output", "x.png"], 2, ["--preview-every"]),
    "unknown format": (prompts({"prompt": "a"}), ["--prompts", "in", "--format", "bmp", "--output", "x"], 2, ["--format", "bmp"]),
    "two sources of prompts": (prompts({"prompt": "a"}), [*PROMPT, "--prompts", "in", "--output", "x"], 2, ["--prompts", "--prompt"]),
    "init image that is none": (b"a picture", [*PROMPT, "--init-image", "in", "--output", "x.png"], 2, ["init image in: not a PNG, JPEG or WebP picture"]),
    "settings of no picture": (b"a picture", ["--from", "in", "--output", "x.png"], 2, ["in: not a PNG, JPEG or WebP picture"]),
    "misspelt key": (prompts({"prompt": "a"}, {"prompt": "a", "widht": 32}), ["--prompts", "in", "--output", "x"], 2, ["in:2: ", "widht", "width"]),
    "output below a file": (b"", [*PROMPT, *SIZE, "--output", "in/x.png"], 2, ["in", "--output"]),
    "output folder is a file": (prompts({"prompt": "a"}), ["--prompts", "in", *SIZE, "--output", "in"], 2, ["in", "--output"]),
    "output is a folder": (None, [*PROMPT, *SIZE, "--output", "folder.png"], 2, ["folder.png", "folder"]),
    "no such model": (None, [*PROMPT, "--output", "x.png", "--model", "nowhere"], 2, ["nowhere: no such folder"]),
    "untrained model": (None, [*PROMPT, "--output", "x.png", "--model", "model"], 2, ["model/transformer: holds no safetensors file"]),
    "no GPU": (None, [*PROMPT, "--output", "x.png", "--device", "cuda"], 2, ["--device cuda, but no CUDA device is visible"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(flowshard_at, trained, mistake):
    content, arguments, exit_code, fragments = MISTAKES[mistake]
    (trained / "in").unlink(missing_ok=True)
    if content is not None:
        (trained / "in").write_bytes(content)
    (trained / "folder.png").mkdir(exist_ok=True)
    (trained / "link.png").unlink(missing_ok=True)
    (trained / "link.png").symlink_to("in")
    before = files_below(trained)
    model = [] if "--model" in arguments else ["--model", "out"]
    result = flowshard_at(trained, "generate", *model, *arguments)
    assert_refused(result, exit_code, "flowshard generate: error: ", *fragments)
    assert files_below(trained) == before


def test_odd_sizes_are_rounded_down_with_a_warning(flowshard_at, trained, tmp_path):
    result = flowshard_at(trained, "generate", "--model", "out", *PROMPT, "--height", 17, "--width", 33, "--steps", 1,
                          "--output", tmp_path / "x.png")
    assert result.returncode == 0 and result.stderr.count("\n") == 1
    assert "warning: 17x33 (height x width) is rounded down to 16x32" in result.stderr
    assert Image.open(tmp_path / "x.png").size == (32, 16)


@pytest.mark.parametrize("path,words", [("a" * 300, "File name too long"), ("circle", "symbolic links"), ("circle/x", "symbolic links")],
                         ids=["long", "circle", "below a circle"])
def test_paths_that_the_system_does_not_look_at(flowshard, tmp_path, path, words):
    (tmp_path / "circle").symlink_to("circle")
    for command in (["generate", "--model", path, *PROMPT, "--output", "x.png"], ["inspect", path],
                    ["convert", "--input", path, "--output", "x", "--to", "bfl"]):
        result = flowshard(*command)
        assert result.returncode == 2 and words in result.stderr, result.stderr
        assert result.stderr.startswith(f"flowshard {command[0]}: error: ") and result.stderr.count("\n") == 1
    assert [each.name for each in tmp_path.iterdir()] == ["circle"]


@pytest.mark.parametrize("prompt", ["", " ", "\u200b", "a" * 100_000, "\U0001f98a 東京 e\u0301"], ids=["empty", "space", "invisible", "long", "unusual"])
def test_strange_prompts_make_a_picture(flowshard_at, trained, tmp_path, prompt):
    result = flowshard_at(trained, "generate", "--model", "out", "--prompt", prompt, *SIZE, "--output", tmp_path / "x.png")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
