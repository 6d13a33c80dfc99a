"""Data that is absent, damaged or not what it says: refused before work, or left out, counted and named."""
import re
import tarfile

import pytest

from test_bad_input import assert_refused, files_below
from training_run import rewrite_tar

FIRST, SECOND = "data/shapes-000000.tar", "data/shapes-000001.tar"


def remove_shards(folder):
    (folder / FIRST).unlink()
    (folder / SECOND).unlink()


def corrupt_header(path, sample):
    """Flips a digit of the checksum in the header of a sample's first member."""
    content = bytearray(path.read_bytes())
    at = content.index(f"{sample:09}.".encode())
    content[at + 148] = ord("9")  # the field chksum holds 6 octal digits
    path.write_bytes(bytes(content))


def keep(share):
    return lambda path: path.write_bytes(path.read_bytes()[:int(len(path.read_bytes()) * share)])


def members(pattern, content):
    """Gives the members that match another content, or removes them."""
    return lambda path: rewrite_tar(path, lambda name, old: content if re.search(pattern, name) else old)


def both(change):
    return lambda folder: (change(folder / FIRST), change(folder / SECOND))


def first(change):
    return lambda folder: change(folder / FIRST)


# name: (what is done to the run's folder, arguments, exit code, what the message says)
REFUSED = {
    "missing shards": (remove_shards, [], 2, ["2 of 2 shards are missing", FIRST, SECOND, "data.shards"]),
    "a folder for a shard": (lambda folder: (remove_shards(folder), (folder / FIRST).mkdir()), [], 2, [FIRST, SECOND]),
    "a shard twice": (lambda folder: None, ["--set", f'data.shards=["{FIRST}", "data/../{FIRST}"]'], 2, ["named twice", FIRST]),
    "malformed pattern": (lambda folder: None, ["--set", 'data.shards=["data/{0..x}.tar"]'], 2, ["is malformed"]),
    "cut in the middle": (first(keep(0.49)), [], 4, ["shapes-000000.tar: damaged", "bytes", "limit of 1 %"]),
    "bad checksum": (first(lambda path: corrupt_header(path, 3)), [], 4, ["shapes-000000.tar: damaged"]),
    "empty files": (both(keep(0)), [], 2, ["shapes-000000.tar", "the file is empty"]),
    "no tar": (both(lambda path: path.write_bytes(bytes(range(256)) * 100)), [], 4, ["shapes-000000.tar: damaged"]),
    "no captions": (both(members(r"\.txt$", None)), [], 4, ["40 of 40 samples", "000000000: it has no caption (txt)"]),
    "no pictures": (both(members(r"\.png$", None)), [], 4, ["40 of 40 samples", "000000000: it has no picture"]),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_train_refuses(flowshard, tiny_run, fault):
    change, arguments, exit_code, fragments = REFUSED[fault]
    change(tiny_run)
    before = files_below(tiny_run)
    assert_refused(flowshard("train", "run.toml", *arguments), exit_code, "flowshard train: error: ", *fragments)
    assert files_below(tiny_run) == before


@pytest.mark.parametrize("pattern, content, problem", [(r"\.png$", b"no picture", "not a PNG"),
                                                       (r"\.txt$", b"a red \xff square", "the caption is not valid UTF-8")])
def test_too_many_bad_samples_end_the_run(flowshard, tiny_run, pattern, content, problem):
    both(members(pattern, content))(tiny_run)
    result = flowshard("train", "run.toml")
    assert_refused(result, 4, "error: step 1 (loading a batch): ", "samples are bad, above the limit of 1 %", problem)
    assert [path.name for path in (tiny_run / "out").iterdir()] == ["metrics.jsonl"]


def test_a_few_bad_samples_are_replaced_and_named(flowshard, tiny_run):
    members(r"00000000[12]\.png$", b"no picture")(tiny_run / FIRST)
    members(r"000000003\.txt$", b"a red \xff square")(tiny_run / FIRST)
    members(r"000000005\.txt$", None)(tiny_run / FIRST)
    content = (tiny_run / SECOND).read_bytes()
    (tiny_run / SECOND).write_bytes(content[:len(content) * 9 // 10])
    arguments = ["--set", "data.max_bad_fraction=0.3", "--set", "train.batch_size=10"]
    result = flowshard("train", "run.toml", *arguments)
    assert result.returncode == 0, result.stderr
    warnings = [line for line in result.stderr.splitlines() if "warning" in line]
    for fragment in ["shapes-000000.tar:000000001", "shapes-000000.tar:000000002", "shapes-000000.tar:000000003",
                     "shapes-000000.tar:000000005: it has no caption", "shapes-000001.tar: damaged"]:
        assert sum(fragment in line for line in warnings) == 1, result.stderr
    assert "5 bad samples of 38 " in warnings[-1]


def test_more_ranks_and_larger_batches_than_samples(flowshard, tiny_run):
    members(r"0000000(0[2-9]|1)", None)(tiny_run / FIRST)  # two are left
    result = flowshard("launch", "--nproc_per_node", 3, "--", "train", "run.toml", "--set", f'data.shards=["{FIRST}"]',
                       "--set", "train.steps=1", "--set", "train.batch_size=3")
    assert result.returncode == 0, result.stderr
    assert (tiny_run / "out/metrics.jsonl").read_text().count('"samples_seen":9,') == 1


def test_a_shard_cut_between_two_samples_is_named(flowshard, tiny_run):
    with tarfile.open(tiny_run / SECOND) as tar:
        end = tar.getmembers()[30].offset
    (tiny_run / SECOND).write_bytes((tiny_run / SECOND).read_bytes()[:end])
    result = flowshard("train", "run.toml", "--set", "train.steps=0")
    assert result.returncode == 0, result.stderr
    assert "warning: shapes-000001.tar: damaged (it has no end mark: was it cut?)" in result.stderr
