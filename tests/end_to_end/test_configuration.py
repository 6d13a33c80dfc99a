"""The configuration as a user meets it: --check, --explain, --set and the aliases."""
import pathlib
import re
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "configs/quickstart.toml"


def effective(flowshard, *arguments):
    result = flowshard("train", *arguments, "--check")
    assert result.returncode == 0, result.stderr
    return tomllib.loads(result.stdout)


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_every_ready_configuration_is_valid(flowshard, config):
    written = tomllib.loads(config.read_text())
    read = effective(flowshard, config)
    for section, keys in written.items():
        for key, value in keys.items():
            assert read[section][key] == value, f"{section}.{key}"


def test_the_effective_configuration_reads_back(flowshard, tmp_path):
    first = flowshard("train", QUICKSTART, "--check", "--set", "optimizer.lr=0.1234567890123456789")
    (tmp_path / "effective.toml").write_text(first.stdout)
    assert flowshard("train", "effective.toml", "--check").stdout == first.stdout
    assert tomllib.loads(first.stdout)["optimizer"]["lr"] == 0.1234567890123456789


def test_explain_lists_every_key(flowshard):
    explained = flowshard("train", "--explain")
    assert explained.returncode == 0 and explained.stderr == ""
    listed = {line.split()[0] for line in explained.stdout.splitlines()[1:] if line}
    config = effective(flowshard, QUICKSTART)
    assert listed == {f"{section}.{key}" for section in config for key in config[section]}


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.stem)
def test_pages_name_keys_that_there_are(flowshard, page):
    """Keys in backquotes and in the --set of an example."""
    keys = {line.split()[0] for line in flowshard("train", "--explain").stdout.splitlines()[1:] if line}
    sections = "|".join({key.split(".")[0] for key in keys})
    text = page.read_text()
    named = {match[1] for match in re.finditer(rf"(?:`|--set |\()((?:{sections})\.[a-z_0-9]+)(?=[ =`;,)])", text)}
    assert {key for key in named if key.split(".")[1] not in ("md", "toml", "tar")} <= keys


def test_assignments_and_aliases(flowshard):
    config = effective(flowshard, QUICKSTART, "--use_fsdp", "--mixed_precision=bf16", "--gradient_accumulation_steps=4",
                       "--device=cuda", "--set", "run.output_dir=runs/2024", "--set", "train.steps=7",
                       "--set", "train.steps=8", "--set", 'data.shards=["x.tar", "y,z.tar"]')
    assert config["parallel"]["strategy"] == "full_shard"
    assert config["precision"]["mode"] == "bf16"
    assert config["train"]["gradient_accumulation_steps"] == 4
    assert config["run"]["device"] == "cuda"
    assert config["run"]["output_dir"] == "runs/2024"
    assert config["train"]["steps"] == 8
    assert config["data"]["shards"] == ["x.tar", "y,z.tar"]


def test_aliases_can_say_no(flowshard):
    config = effective(flowshard, QUICKSTART, "--use_fsdp=false", "--mixed_precision", "no",
                       "--set", "precision.mode=bf16")
    assert config["parallel"]["strategy"] == "no_shard"
    assert config["precision"]["mode"] == "bf16", "--set comes after the aliases"
