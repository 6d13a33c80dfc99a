"""Prompt files of `flowshard generate`: own options of each line, resuming, and the lines of --json."""
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import time

import pytest
from conftest import ENVIRONMENT
from PIL import Image
from pictures import FLOWSHARD, generate, made, pixels, refused, stored_settings
from tiny_flux import make_tiny_flux

COMMON = ["--height", 32, "--width", 32, "--steps", 2, "--max-sequence-length", 16]


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "dev"
    make_tiny_flux(folder, seed=1)
    return folder


def write(path, *lines):
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def files_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_option_of_a_line(dev, tmp_path):
    line = {"prompt": "a red circle", "negative_prompt": "a square", "seed": 2**64 - 1, "height": 48, "width": 64, "steps": 1,
            "guidance": 1.5, "true_cfg_scale": 2.0, "max_sequence_length": 12}
    prompts = write(tmp_path / "p.jsonl", line | {"output": "cats/tabby.webp", "id": 7, "tags": ["mine"]}, {"prompt": "x"},
                    {"prompt": "x", "num_images": 2, "output": "x.jpg", "seed": 5})
    printed = made("--model", dev, *COMMON, "--prompts", prompts, "--output", tmp_path / "out", "--json")
    assert sorted(files_in(tmp_path / "out")) == ["00001.png", "cats/tabby.webp", "x_0.jpg", "x_1.jpg"]
    settings = stored_settings(tmp_path / "out/cats/tabby.webp")
    assert {key: settings[key] for key in line} == line
    assert [stored_settings(tmp_path / f"out/x_{i}.jpg")["seed"] for i in range(2)] == [5, 6]
    assert stored_settings(tmp_path / "out/00001.png")["steps"] == 2

    printed = [json.loads(text) for text in printed]
    assert [text["file"] for text in printed] == [str(tmp_path / "out" / name)
                                                  for name in ("cats/tabby.webp", "00001.png", "x_0.jpg", "x_1.jpg")]
    for text in printed:
        assert text.pop("status") == "made" and text.pop("seconds") > 0
        assert text == stored_settings(text.pop("file")) | {}


def test_formats_of_the_folder(dev, tmp_path):
    prompts = write(tmp_path / "p.jsonl", {"prompt": "x"}, {"prompt": "y", "output": "y.png"})
    for name, kind in {"jpeg": "JPEG", "webp": "WEBP", "png": "PNG"}.items():
        made("--model", dev, *COMMON, "--prompts", prompts, "--format", name, "--output", tmp_path / name)
        extension = name.replace("jpeg", "jpg")
        assert Image.open(tmp_path / name / f"00000.{extension}").format == kind
        assert Image.open(tmp_path / name / "y.png").format == "PNG"
    assert "--format" in refused("--model", dev, "--prompt", "x", "--format", "png", "--output", tmp_path / "a.png")


@pytest.mark.parametrize("line,words", [
    ({"sed": 1}, ['"sed"', "did you mean seed?"]), ({"Steps": 1}, ["did you mean steps?"]),
    ({"negative-prompt": "x"}, ["did you mean negative_prompt?"]), ({"initimage": "x"}, ["did you mean init_image?"]),
    ({"num_inference_steps": 4}, ["did you mean steps?"]), ({"guidance_scale": 4}, ["did you mean guidance?"]),
    ({"seed": 1.5}, ["seed is 1.5", "integer"]), ({"seed": "1"}, ['seed is "1"']), ({"seed": 2**64}, ["seed is 1"]),
    ({"guidance": "much"}, ["guidance is"]), ({"prompt": ["x"]}, ["prompt is"]), ({"width": None}, ["width is null"]),
    ({"output": "../x.png"}, ["output is", "below the output folder"]), ({"output": "/x.png"}, ["output is"]),
    ({"output": ""}, ["output is"]), ({"output": 5}, ["output is 5"]), ({"init_image": "absent.png"}, ["absent.png"]),
])
def test_mistakes_in_a_line_name_it(dev, tmp_path, line, words):
    prompts = write(tmp_path / "p.jsonl", {"prompt": "x"}, {"prompt": "y"} | line)
    message = refused("--model", dev, *COMMON, "--prompts", prompts, "--output", tmp_path / "out")
    assert all(word in message for word in words), message
    assert "p.jsonl:2: " in message or "absent.png" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lines,words", [
    ([{"prompt": "x", "output": "a.png"}, {"prompt": "y", "output": "./a.png"}], "two pictures would have this name"),
    ([{"prompt": "x", "output": "00001.png"}, {"prompt": "y"}], "two pictures would have this name"),
    ([{"prompt": "x", "output": "a.bmp"}], "name a .png, .jpg or .webp file"),
    ([{"prompt": "x", "num_images": 0}], "number of images is 0"),
    ([{"prompt": "x"}, {"prompt": "y", "height": 3}], "00001.png: height is 3"),
])
def test_mistakes_over_lines(dev, tmp_path, lines, words):
    prompts = write(tmp_path / "p.jsonl", *lines)
    assert words in refused("--model", dev, *COMMON, "--prompts", prompts, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_keys_of_the_user_are_left_alone(dev, tmp_path):
    prompts = write(tmp_path / "p.jsonl", {"prompt": "x", "id": 1, "objects": [], "relation": "above", "caption": "y", "image": "z",
                                           "file": "f", "model": "m", "split": "test", "category": 5})
    made("--model", dev, *COMMON, "--prompts", prompts, "--output", tmp_path / "out")


def test_the_lines_of_json_are_a_prompt_file(dev, tmp_path):
    prompts = write(tmp_path / "p.jsonl", {"prompt": "x", "seed": 4}, {"prompt": "y", "steps": 1})
    printed = made("--model", dev, *COMMON, "--prompts", prompts, "--output", tmp_path / "out", "--json")
    (tmp_path / "again.jsonl").write_text("\n".join(printed))
    made("--model", dev, "--prompts", tmp_path / "again.jsonl", "--output", tmp_path / "again")
    assert files_in(tmp_path / "out") == files_in(tmp_path / "again")


def test_what_is_there_is_skipped(dev, tmp_path):
    lines = [{"prompt": "a red circle", "seed": i} for i in range(4)]
    prompts = write(tmp_path / "p.jsonl", *lines)
    command = ["--model", dev, *COMMON, "--prompts", prompts, "--output", tmp_path / "out", "--json", "--grid", tmp_path / "grid.png"]
    made(*command)
    before, grid = files_in(tmp_path / "out"), (tmp_path / "grid.png").read_bytes()

    def statuses(*args):
        return [json.loads(line)["status"] for line in made(*command, *args)]

    assert statuses() == ["skipped"] * 4
    text = made(*[word for word in command if word != "--json"])
    assert len(text) == 4 and all("skipped" in line for line in text)
    (tmp_path / "out/00001.png").unlink()
    cut = tmp_path / "out/00002.png"
    cut.write_bytes(cut.read_bytes()[:-30])
    Image.new("RGB", (32, 32)).save(tmp_path / "out/00003.png")
    (tmp_path / "out/00000.png.tmp-1-0").write_bytes(before["00000.png"][:200])
    assert statuses() == ["skipped", "made", "made", "made"]
    (tmp_path / "out/00000.png.tmp-1-0").unlink()
    assert files_in(tmp_path / "out") == before
    assert (tmp_path / "grid.png").read_bytes() == grid
    # Of other settings, or of another line at this place, it is made again.
    assert statuses("--guidance", 2) == ["made"] * 4
    write(prompts, lines[1], lines[0], *lines[2:])
    assert statuses("--guidance", 2) == ["made", "made", "skipped", "skipped"]


def test_another_model_at_the_same_place_is_noticed(tmp_path):
    make_tiny_flux(tmp_path / "model", seed=1)
    prompts = write(tmp_path / "p.jsonl", {"prompt": "a red circle"})
    command = ["--model", tmp_path / "model", *COMMON, "--prompts", prompts, "--output", tmp_path / "out", "--json"]
    made(*command)
    make_tiny_flux(tmp_path / "model", seed=2)
    assert json.loads(made(*command)[0])["status"] == "made"


def test_killed_and_run_again_makes_the_same_files(dev, tmp_path):
    lines = [{"prompt": f"a red circle {i}", "seed": i, "output": f"{i}.{'png' if i % 2 else 'jpg'}"} for i in range(12)]
    prompts = write(tmp_path / "p.jsonl", *lines)
    common = ["--model", str(dev), "--height", "64", "--width", "64", "--steps", "30", "--max-sequence-length", "16",
              "--prompts", str(prompts)]
    made(*common, "--output", tmp_path / "whole")
    process = subprocess.Popen([FLOWSHARD, "generate", *common, "--output", str(tmp_path / "out")], env=ENVIRONMENT,
                               stdout=subprocess.PIPE, text=True)
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.1)
    there = [path for path in (tmp_path / "out").iterdir() if ".tmp-" not in path.name]
    assert 3 <= len(there) < 12
    printed = made(*common, "--output", tmp_path / "out", "--json")
    assert sum(json.loads(line)["status"] == "skipped" for line in printed) == len(there)
    for path in (tmp_path / "out").glob("*.tmp-*"):
        path.unlink()
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")


def test_progress_is_a_line_on_a_terminal_and_nothing_in_a_short_log(dev, tmp_path):
    prompts = write(tmp_path / "p.jsonl", *[{"prompt": "x", "seed": i} for i in range(3)])
    command = ["--model", dev, *COMMON, "--prompts", prompts, "--json"]
    result = generate(*command, "--output", tmp_path / "log")
    assert result.returncode == 0 and result.stderr == ""

    terminal, stderr = pty.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    process = subprocess.run([FLOWSHARD, "generate", *map(str, command), "--output", str(tmp_path / "out")], stdout=subprocess.PIPE,
                             stderr=stderr, text=True, env=ENVIRONMENT, timeout=300)
    os.close(stderr)
    shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert process.returncode == 0 and [json.loads(line)["status"] for line in process.stdout.splitlines()] == ["made"] * 3
    lines = [line.replace("\x1b[K", "").strip() for line in shown.split("\r") if "step" in line]
    assert lines[0].startswith("step 1/6  16%  image 1/3") and lines[-1].startswith("step 6/6 100%  image 3/3")
    assert all("ends in" in line and len(line) < 60 for line in lines)
    assert "\n" not in shown, "the line is rewritten in place and taken away"
