"""The coloured-shapes data set from the command line, and the score of pictures for its prompts."""
import json
import tarfile

import numpy as np
from PIL import Image


def make_dataset(flowshard, folder, *args):
    result = flowshard("dataset", "shapes", "--output", folder, "--num-samples", 30, "--samples-per-shard", 20, *args)
    assert result.returncode == 0, result.stderr


def write_pictures(folder, pictures):
    folder.mkdir()
    for i, pixels in enumerate(pictures):
        Image.fromarray(pixels).save(folder / f"{i:05}.png")


def test_the_data_set_is_made_twice_to_the_same_bytes(flowshard, tmp_path):
    make_dataset(flowshard, "a")
    make_dataset(flowshard, "a")  # over the first
    make_dataset(flowshard, "b")
    make_dataset(flowshard, "c", "--seed", 1)
    names = ["heldout.jsonl", "shapes-000000.tar", "shapes-000001.tar"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert (tmp_path / "a" / name).read_bytes() != (tmp_path / "c" / name).read_bytes()
    prompts = [json.loads(line) for line in (tmp_path / "a/heldout.jsonl").read_text().splitlines()]
    assert [len(prompt["objects"]) for prompt in prompts] == [1] * 100 + [2] * 200
    with tarfile.open(tmp_path / "a/shapes-000000.tar") as tar:
        trained = {tar.extractfile(f"{i:09}.txt").read().decode() for i in range(20)}
    assert not trained & {prompt["prompt"] for prompt in prompts[100:]}


def test_pictures_are_scored_beside_true_ones(flowshard, tmp_path):
    make_dataset(flowshard, "data")
    rng = np.random.default_rng(0)
    write_pictures(tmp_path / "noise", rng.integers(0, 256, (300, 64, 64, 3), dtype=np.uint8))
    red = np.full((64, 64, 3), 128, np.uint8)
    red[17:47, 17:47] = (230, 30, 20)  # right for every single red square
    write_pictures(tmp_path / "red_square", [red] * 300)
    arguments = ["eval", "--images", "noise", "--compare", "red_square", "--prompts", "data/heldout.jsonl"]
    table = flowshard(*arguments).stdout.splitlines()
    assert table[0].endswith("  noise  red_square  true images")
    assert [line.split()[-3:] for line in table[1:]] == [
        ["0.00", "0.13", "1.00"],  # 13 of 100 single objects are red
        ["0.00", "0.32", "1.00"],  # 32 are squares
        ["0.00", "0.04", "1.00"],
        ["0.00", "0.00", "1.00"],
        ["0.00", "0.00", "1.00"]]
    scores = json.loads(flowshard(*arguments, "--json").stdout)
    assert scores["num_single_prompts"] == 100 and scores["num_pair_prompts"] == 200
    assert scores["columns"][1] == {"name": "red_square", "color": 0.13, "shape": 0.32, "color_and_shape": 0.04,
                                    "both_present": 0, "relation": 0}


def test_what_cannot_be_scored_is_an_error(flowshard, tmp_path):
    make_dataset(flowshard, "data")
    write_pictures(tmp_path / "few", np.zeros((2, 64, 64, 3), np.uint8))
    write_pictures(tmp_path / "large", np.zeros((300, 65, 64, 3), np.uint8))
    (tmp_path / "broken").mkdir()
    for i in range(300):
        (tmp_path / f"broken/{i:05}.png").write_bytes(b"no picture")
    for arguments, code, message in [
            (["--images", "few", "--prompts", "data/heldout.jsonl"], 2, "298 of 300 images are missing, the first is few/00002.png"),
            (["--images", "large", "--prompts", "data/heldout.jsonl"], 4, "large/00000.png is 64 x 65"),
            (["--images", "broken", "--prompts", "data/heldout.jsonl"], 4, "broken/00000.png: not a PNG"),
            (["--images", "few", "--prompts", "absent.jsonl"], 2, "absent.jsonl"),
            (["--images", "few", "--prompts", "data/shapes-000000.tar"], 4, "shapes-000000.tar:1: not a prompt")]:
        result = flowshard("eval", *arguments)
        assert result.returncode == code and result.stdout == ""
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_mistakes_leave_nothing_behind(flowshard, tmp_path):
    assert flowshard("dataset", "shapes", "--output", "x", "--num-samples", 0).returncode == 2
    assert not (tmp_path / "x").exists()
    (tmp_path / "file").write_text("")
    assert flowshard("dataset", "shapes", "--output", "file/x").returncode == 2
    make_dataset(flowshard, "data")
    larger = flowshard("dataset", "shapes", "--output", "data", "--num-samples", 10)
    assert larger.returncode == 2 and "shapes-000001.tar" in larger.stderr
