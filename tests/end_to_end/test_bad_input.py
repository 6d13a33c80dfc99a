"""A mistake of the user ends before any work: one line that says what, where and what to do, the exit code that
docs/errors.md promises, and nothing written."""
import pytest

VALID = """\
[run]
output_dir = "runs/a"
[model]
path = "models/a"
[data]
shards = ["a.tar"]
[train]
steps = 10
"""  # an added line is line 9, in the section train


def files_below(folder):
    return {path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def assert_refused(result, exit_code, *fragments):
    assert result.returncode == exit_code, result.stderr
    assert result.stdout == ""
    assert result.stderr.endswith("\n") and result.stderr.count("\n") == 1, result.stderr
    for fragment in fragments:
        assert fragment in result.stderr


# name: (what is in run.toml: text, bytes or nothing; arguments; what the message says)
MISTAKES = {
    "misspelt key": (VALID + "bach_size = 4\n", [],
                     ["run.toml:9: unknown key train.bach_size; did you mean train.batch_size?"]),
    "misspelt section": (VALID + "[optimiser]\nlr = 1e-3\n", [], ["run.toml:10:", "did you mean optimizer.lr?"]),
    "key without a section": ("steps = 3\n" + VALID, [], ["run.toml:1:", "did you mean train.steps?"]),
    "unknown key": (VALID, ["--set", "nonsense.frobnicate=1"], ["unknown key nonsense.frobnicate", "--explain"]),
    "empty unknown section": (VALID + "[optimiser]\n", [], ["run.toml:9: unknown key optimiser"]),
    "string for an integer": (VALID.replace("10", '"ten"'), [], ["run.toml:8: train.steps is the string \"ten\"",
                                                                   "allowed: integer, 0 to "]),
    "number for an integer": (VALID.replace("10", "1e3"), [], ["run.toml:8: train.steps is the number 1000.0"]),
    "integer for a string": (VALID.replace('"runs/a"', "5"), [], ["run.toml:2: run.output_dir is the integer 5"]),
    "integer for a truth value": (VALID, ["--set", "data.cache_in_memory=1"], ["allowed: true, false"]),
    "string for a list": (VALID.replace('["a.tar"]', '"a.tar"'), [], ["run.toml:6: data.shards is the string"]),
    "list of integers": (VALID.replace('["a.tar"]', "[1, 2]"), [], ["run.toml:6:", "list of strings"]),
    "no shards": (VALID.replace('["a.tar"]', "[]"), [], ["run.toml:6: data.shards is the list []"]),
    "empty path": (VALID.replace('"models/a"', '""'), [], ["run.toml:4: model.path is the string \"\""]),
    "date": (VALID.replace("10", "2024-01-02"), [], ["run.toml:8: train.steps is a date"]),
    "steps below zero": (VALID.replace("10", "-1"), [], ["run.toml:8: train.steps is the integer -1"]),
    "negative batch": (VALID + "batch_size = -1\n", [], ["run.toml:9: train.batch_size is the integer -1"]),
    "size that is no multiple of 16": (VALID, ["--set", "data.height=100"],
                                       ["--set: data.height is the integer 100", "16 to 4096, multiple of 16"]),
    "size of 0": (VALID, ["--set", "data.width=0"], ["--set: data.width is the integer 0"]),
    "negative size": (VALID, ["--set", "data.width=-64"], ["--set: data.width is the integer -64"]),
    "huge size": (VALID, ["--set", "data.width=1048576"], ["--set: data.width is the integer 1048576"]),
    "integer beyond 64 bits": (VALID.replace("10", "99999999999999999999"), [], ["run.toml:8: invalid TOML"]),
    "NaN": (VALID, ["--set", "optimizer.lr=nan"], ["--set: optimizer.lr is the number nan"]),
    "infinity": (VALID, ["--set", "train.max_grad_norm=inf"], ["train.max_grad_norm is the number inf"]),
    "unknown strategy": (VALID, ["--set", "parallel.strategy=fsdp"], ['allowed: "full_shard", "shard_grad_op", "no_shard", "hybrid_shard"']),
    "run in the model folder": (VALID, ["--set", "run.output_dir=models/../models/a/"],
                                ["run.output_dir is the folder of model.path"]),
    "missing keys": ("[train]\nsteps = 1\n", [], ["run.toml: missing: run.output_dir, model.path, data.shards"]),
    "empty file": ("", [], ["missing: run.output_dir, model.path, data.shards, train.steps"]),
    "several mistakes": (VALID + "speed = 1\nbatch_size = 0\n", ["--set", "data.height=1"],
                         ["3 mistakes", "(1) run.toml:9:", "(2) run.toml:10:", "(3) --set:"]),
    "invalid TOML": (VALID + "batch_size = = 4\n", [], ["run.toml:9: invalid TOML"]),
    "JSON": ('{"train": {"steps": 10}}', [], ["run.toml:1: invalid TOML"]),
    "key given twice": (VALID + "steps = 11\n", [], ["run.toml:9: invalid TOML"]),
    "invalid UTF-8": (VALID.encode() + b'# \xff\n', [], ["run.toml:9: invalid TOML"]),
    "binary file": (bytes(range(256)) * 16, [], ["run.toml:1: invalid TOML"]),
    "deep nesting": (VALID + "batch_size = " + "[" * 100_000, [], ["run.toml:9: invalid TOML"]),
    "a file that is no configuration": (b"\0" * (2 << 20), [], ["run.toml is larger than 1 MiB"]),
    "missing file": (None, [], ["cannot read the configuration run.toml: No such file or directory"]),
    "assignment without a value": (VALID, ["--set", "train.steps="], ["--set train.steps=: the value is not"]),
    "assignment without a key": (VALID, ["--set", "=5"], ["--set =5: write section.key=value"]),
    "no assignment": (VALID, ["--set", "train.steps"], ["--set train.steps: write section.key=value"]),
    "malformed list": (VALID, ["--set", "data.shards=['a"], ["the value is not valid TOML"]),
    "assignment of a section": (VALID, ["--set", "train=5"], ["train is a section and takes no value"]),
    "unknown precision": (VALID, ["--mixed_precision=fp8"], ["--mixed_precision", "no,fp16,bf16"]),
    "accumulation of 0": (VALID, ["--gradient_accumulation_steps=0"],
                          ["--gradient_accumulation_steps: train.gradient_accumulation_steps is the integer 0"]),
    "accumulation of a word": (VALID, ["--gradient_accumulation_steps=four"], ['is the string "four"']),
    "unknown device": (VALID, ["--device=tpu"], ['--device: run.device is the string "tpu"']),
    "unknown option": (VALID, ["--frobnicate"], ["--frobnicate", "flowshard train --help"]),
    "two files": (VALID, ["other.toml"], ["other.toml"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_configuration_mistakes(flowshard, tmp_path, mistake):
    content, arguments, fragments = MISTAKES[mistake]
    if content is not None:
        (tmp_path / "run.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    before = files_below(tmp_path)
    result = flowshard("train", "run.toml", *arguments)
    assert_refused(result, 2, "flowshard train: error: ", *fragments)
    assert files_below(tmp_path) == before


def test_a_folder_is_no_configuration(flowshard, tmp_path):
    assert_refused(flowshard("train", tmp_path), 2, "is a folder")


def test_no_configuration_is_named(flowshard):
    assert_refused(flowshard("train"), 2, "flowshard train CONFIG.toml")


def test_a_rank_says_who_it_is(flowshard, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert_refused(flowshard("train", "absent.toml"), 2, "flowshard train [rank 1 of 2 on ", "absent.toml")
