"""Our shards are read by the webdataset package, and the shards it writes are read by us."""
import io
import json
import subprocess
import tarfile

import numpy as np
import pytest
import webdataset
from conftest import ROOT, RunnerError, run_files
from PIL import Image
from safetensors import safe_open

PROGRAM = ROOT / "build/release/flowshard"


def batches(folder, *shards, **options):
    """All samples of the batches, as {key: (sample id, caption, pixels [H, W, 3])}."""
    from safetensors.torch import save_file
    save_file({}, folder / "in")
    run_files("dataset-batches", folder / "in", folder / "out", *shards, options=options)
    samples = {}
    with safe_open(folder / "out", "pt") as out:
        for b in range(options["num_batches"]):
            columns = (json.loads(out.metadata()[f"keys.{b}"]), out.get_tensor(f"sample_ids.{b}").tolist(),
                       json.loads(out.metadata()[f"captions.{b}"]), out.get_tensor(f"pixels.{b}").numpy())
            samples |= {key: tuple(values) for key, *values in zip(*columns, strict=True)}
    return samples


def read_with_webdataset(*shards):
    data = webdataset.WebDataset([str(shard) for shard in shards], shardshuffle=False, empty_check=False)
    return list(data.decode("rgb8"))


def test_webdataset_reads_our_shards(tmp_path):
    command = [PROGRAM, "dataset", "shapes", "--output", tmp_path, "--num-samples", "60", "--samples-per-shard", "25"]
    subprocess.run(command, check=True, capture_output=True)
    shards = [tmp_path / f"shapes-{i:06}.tar" for i in range(3)]
    theirs = read_with_webdataset(*shards)
    assert [sample["__key__"] for sample in theirs] == [f"{i:09}" for i in range(60)]
    ours = batches(tmp_path, tmp_path / "shapes-{000000..000002}.tar", height=64, width=64, batch_size=20, num_batches=3)
    assert len(ours) == 60
    for i, sample in enumerate(theirs):
        sample_id, caption, pixels = ours[f"shapes-{i // 25:06}.tar:{i:09}"]
        assert sample_id == i
        assert caption == sample["txt"]
        assert np.array_equal(pixels, sample["png"])
        objects = sample["json"]["objects"]
        assert [f"a {o['color']} {o['shape']}" in caption for o in objects] == [True] * len(objects)
        assert sample["json"].get("relation", "") in caption


def make_samples(keys):
    rng = np.random.default_rng(0)
    return [{"__key__": key, "jpg": rng.integers(0, 256, (8, 8, 3), dtype=np.uint8), "txt": f"caption {i} \u00e9\u732b",
             "json": {"i": i}} for i, key in enumerate(keys)]


KEYS = ["000", "001", "folder/002", "k" * 90, "z\u00fcrich/\u732b", "a b"]


def test_we_read_shards_of_webdataset(tmp_path):
    samples = make_samples(KEYS)
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for sample in samples:
            writer.write(sample)
    theirs = {f"a.tar:{sample['__key__']}": sample for sample in read_with_webdataset(tmp_path / "a.tar")}
    ours = batches(tmp_path, tmp_path / "a.tar", height=8, width=8, batch_size=len(KEYS), num_batches=1)
    assert ours.keys() == theirs.keys() and len(ours) == len(KEYS)
    for key, (_, caption, pixels) in ours.items():
        assert caption == theirs[key]["txt"]
        assert np.abs(pixels.astype(int) - theirs[key]["jpg"]).max() <= 1


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_we_read_every_form_of_tar(tmp_path, form):
    keys = [*KEYS, "long/" + "n" * 150 + "1", "long/" + "n" * 150 + "2"]
    png = io.BytesIO()
    Image.new("RGB", (8, 8), (1, 2, 3)).save(png, "png")
    with tarfile.open(tmp_path / "a.tar", "w", format=form) as tar:
        for key in keys:
            for name, data in ((f"{key}.png", png.getvalue()), (f"{key}.txt", key.encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    ours = batches(tmp_path, tmp_path / "a.tar", height=8, width=8, batch_size=len(keys), num_batches=1)
    assert {key: caption for key, (_, caption, _) in ours.items()} == {f"a.tar:{key}": key for key in keys}


def test_a_cut_shard_loses_its_last_sample_as_webdataset_does(tmp_path):
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for sample in make_samples([f"{i:03}" for i in range(40)]):
            writer.write(sample)
    with tarfile.open(tmp_path / "a.tar") as tar:
        last = tar.getmember("039.jpg")
    with open(tmp_path / "a.tar", "r+b") as file:
        file.truncate(last.offset_data + 10)
    ours = batches(tmp_path, tmp_path / "a.tar", height=8, width=8, batch_size=39, num_batches=1)
    assert ours.keys() == {f"a.tar:{i:03}" for i in range(39)}
    with pytest.raises(RunnerError) as error:
        batches(tmp_path, tmp_path / "a.tar", tmp_path / "{b,c}.tar", height=8, width=8, batch_size=1, num_batches=1)
    assert error.value.exit_code == 2 and "b.tar" in error.value.message and "c.tar" in error.value.message
