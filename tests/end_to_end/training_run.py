"""A training run of seconds: the quick-start model with random weights on 40 pictures of the shapes data set."""
import io
import json
import os
import pathlib
import shutil
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("FLOWSHARD", ROOT / "build/release/flowshard"))
MODEL = ROOT / "models/quickstart"

CONFIG = """\
[run]
output_dir = "out"
seed = 1
log_every_steps = 1
[model]
path = "model"
initialization = "random"
[data]
shards = ["data/shapes-{000000..000001}.tar"]
height = 32
width = 32
num_threads = 1
[text]
max_sequence_length = 12
[train]
steps = 4
batch_size = 2
[flow]
shift = "none"
[optimizer]
lr = 2e-3
[schedule]
warmup_steps = 0
[checkpoint]
every_steps = 2
[distributed]
timeout_seconds = 20
"""


def lay_out(folder, dataset):
    """run.toml, model/ and data/ in `folder`, to be broken freely."""
    (folder / "run.toml").write_text(CONFIG)
    shutil.copytree(MODEL, folder / "model")
    shutil.copytree(dataset, folder / "data")


def metrics(path):
    """The records without what a clock says."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in record.items() if not key.endswith("_seconds")} for record in records]


def steps_saved(output):
    return sorted(path.name for path in (output / "checkpoints").iterdir())


def rewrite_tar(path, change):
    """change(name, content) returns the new content of a member, or None to leave it out."""
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar.getmembers()]
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for member, content in members:
            content = change(member.name, content)
            if content is not None:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def damage(path):
    """Flips one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
