"""`flowshard export` against what a checkpoint's files hold, read without flowshard, and against the loaders of diffusers."""
import json
import math
import os
import pathlib
import resource
import shutil
import subprocess

import pytest
import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from official_keys import assert_same, diffusers_transformer
from safetensors import safe_open
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLOWSHARD = pathlib.Path(os.environ.get("FLOWSHARD", ROOT / "build/release/flowshard"))
HIDDEN = json.loads((ROOT / "models/quickstart/transformer/config.json").read_text())
HIDDEN = HIDDEN["attention_head_dim"] * HIDDEN["num_attention_heads"]

CONFIG = """\
run.output_dir = "out"
model = { path = "model", initialization = "random" }
data = { shards = ["data/shapes-000000.tar"], height = 32, width = 32 }
text.max_sequence_length = 12
train = { steps = 2, batch_size = 2 }
optimizer.lr = 1e-2
schedule.warmup_steps = 0
ema.decay = 0.5
"""


def flowshard(folder, *args, **options):
    return subprocess.run([FLOWSHARD, *map(str, args)], cwd=folder, capture_output=True, text=True, timeout=300, **options)


def state_of(checkpoint, state):
    """The tensors of a state by name, from the format's description alone."""
    layout = json.loads((checkpoint / "layout.json").read_text())
    n = layout["num_shards"]
    shards = [load_file(checkpoint / f"rank-{rank:05}-of-{n:05}.safetensors") for rank in range(n)]
    tensors = {}
    for group in layout["groups"]:
        flat = torch.cat([shard[f"{state}/{group['name']}"] for shard in shards])
        for parameter in group["parameters"]:
            end = parameter["offset"] + math.prod(parameter["shape"])
            tensors[parameter["name"]] = flat[parameter["offset"]:end].reshape(parameter["shape"]).clone()
    return tensors


def train(folder, *arguments, change={}):
    shutil.copytree(ROOT / "models/quickstart", folder / "model")
    config = folder / "model/transformer/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    assert flowshard(folder, "dataset", "shapes", "--output", "data", "--num-samples", 20, "--samples-per-shard", 20).returncode == 0
    (folder / "run.toml").write_text(CONFIG)
    result = flowshard(folder, "launch", "--nproc_per_node", 2, "--", "train", "run.toml", *arguments)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with a run of two ranks. Not to be changed."""
    folder = tmp_path_factory.mktemp("export")
    train(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(run):
    return run / "out/checkpoints/step-00000002"


def export(run, output, to, *arguments, source="out/checkpoints/step-00000002"):
    result = flowshard(run, "export", source, "--to", to, "--output", output, *arguments)
    assert (result.returncode, result.stdout) == (0, f"{output}\n"), result.stderr
    return result.stderr


def test_a_pipeline_that_diffusers_loads(run, checkpoint, tmp_path):
    assert export(run, tmp_path / "pipeline", "diffusers") == ""
    expected = diffusers_transformer(state_of(checkpoint, "model"), HIDDEN)
    ours = FluxTransformer2DModel.from_pretrained(tmp_path / "pipeline/transformer")
    assert_same(ours.state_dict(), expected)
    assert_same(FluxPipeline.from_pretrained(tmp_path / "pipeline").transformer.state_dict(), expected)
    base = {path.relative_to(run / "model"): path for path in (run / "model").rglob("*") if path.is_file()}
    for name, path in base.items():
        if name.parts[0] not in ("transformer", "README.md"):
            assert (tmp_path / "pipeline" / name).samefile(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipeline"]


@pytest.mark.parametrize("dtype", ["", "bf16", "fp16", "fp32"])
@pytest.mark.parametrize("state, flag", [("model", []), ("ema", ["--ema"])], ids=["weights", "averages"])
def test_an_official_file(run, checkpoint, tmp_path, state, flag, dtype):
    file = tmp_path / "flux.safetensors"
    export(run, file, "bfl", *flag, *(["--dtype", dtype] if dtype else []), source="out")
    type_of = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)
    assert_same(load_file(file), {key: tensor.to(type_of) for key, tensor in state_of(checkpoint, state).items()})
    assert "axes_dim" in safe_open(file, "pt").metadata()
    if not dtype:
        # from_single_file() itself knows the hidden size of the released model only.
        model = FluxTransformer2DModel.from_config(FluxTransformer2DModel.load_config(run / "model/transformer"))
        model.load_state_dict(diffusers_transformer(load_file(file), HIDDEN), strict=True)


def test_the_full_state(run, checkpoint, tmp_path):
    file = tmp_path / "state.safetensors"
    export(run, file, "full-state")
    expected = {f"{state}/{key}": tensor for state in ("model", "exp_avg", "exp_avg_sq", "ema")
                for key, tensor in state_of(checkpoint, state).items()}
    assert_same(load_file(file), expected)
    assert safe_open(file, "pt").metadata()["step"] == "2"


def test_the_transformer_alone(tmp_path):
    train(tmp_path, "--set", "train.steps=1")
    shutil.rmtree(tmp_path / "model/vae")
    warning = export(tmp_path, tmp_path / "x", "diffusers", source="out")
    assert "the transformer alone" in warning and warning.count("\n") == 1
    expected = diffusers_transformer(state_of(tmp_path / "out/checkpoints/step-00000001", "model"), HIDDEN)
    assert_same(FluxTransformer2DModel.from_pretrained(tmp_path / "x").state_dict(), expected)
    shutil.rmtree(tmp_path / "model")
    result = flowshard(tmp_path, "export", "out", "--to", "diffusers", "--output", tmp_path / "y")
    assert result.returncode == 5 and "there is no" in result.stderr and "config.json" in result.stderr
    assert not (tmp_path / "y").exists()


def test_what_cannot_be_exported(run, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("of the user")
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    step = "out/checkpoints/step-00000002"
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
    for source, target, to, more, code, words in (
            (step, "there", "diffusers", [], 2, "exists already"), (step, "there", "bfl", ["--force"], 2, "exists already"),
            ("nothing", "x", "bfl", [], 2, "no such checkpoint folder"), (step, "x", "full-state", ["--ema"], 2, "--ema"),
            ("model", "x", "bfl", [], 2, "not a training checkpoint"),
            (step, run / step / "x", "bfl", [], 2, "lies in the checkpoint itself"), (step, "no/folder/x", "bfl", [], 2, "there is no folder"),
            (step, "file", "bfl", [], 2, "--force"), (step, "file", "full-state", [], 2, "--force"),
            (step, "file", "diffusers", ["--force"], 2, "exists already"), (step, "link", "bfl", [], 2, "--force"), (step, "pipe", "bfl", ["--force"], 2, "exists already"),
            (step, "link", "diffusers", [], 2, "exists already"), ("run.toml", "x", "bfl", [], 2, "no such checkpoint folder")):
        result = flowshard(run, "export", source, "--to", to, "--output", tmp_path / target, *more)
        assert result.returncode == code and words in result.stderr and result.stderr.count("\n") == 1, result.stderr
    for to in ("bfl", "diffusers", "full-state"):
        result = flowshard(run, "export", step, "--to", to, "--output", tmp_path / "x", preexec_fn=limit)
        assert result.returncode == 5 and "File too large" in result.stderr, result.stderr
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "of the user"


@pytest.mark.parametrize("to", ["bfl", "full-state"])
def test_a_file_is_replaced_with_force(run, checkpoint, tmp_path, to):
    (tmp_path / "x").write_text("of the user")
    export(run, tmp_path / "x", to, "--force")
    assert len(load_file(tmp_path / "x")) == len(state_of(checkpoint, "model")) * (4 if to == "full-state" else 1)


@pytest.mark.parametrize("to", ["bfl", "diffusers"])
def test_of_two_exports_to_one_place_one_is_told(run, tmp_path, to):
    command = [FLOWSHARD, "export", "out", "--to", to, "--output", tmp_path / "x"]
    both = [subprocess.Popen(command, cwd=run, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ends = sorted((process.communicate(timeout=60)[1], process.returncode) for process in both)
    assert ends[0] == ("", 0) and ends[1][1] == 2, ends
    assert "exists already" in ends[1][0] or "somebody else has made it" in ends[1][0], ends
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def most_data(folder, *arguments):
    """The most memory that an export takes for data of its own (not mapped files), MB."""
    process = subprocess.Popen([FLOWSHARD, "export", "out", *map(str, arguments)], cwd=folder, stdout=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        most = max([most, *(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmData"))])
    assert process.returncode == 0
    return most * 1024


def test_one_tensor_in_memory_at_a_time(run, tmp_path):
    """A transformer of 300 MB, whose largest tensor has 17, under a limit 100 MB above what one of 2 MB takes."""
    limit = most_data(run, "--to", "diffusers", "--output", tmp_path / "small") + 100_000_000
    settings = ("train.steps=0", "precision.mode=bf16_pure", "checkpoint.async=false", "ema.decay=0")
    train(tmp_path, *[word for setting in settings for word in ("--set", setting)], change={"num_attention_heads": 32})
    under_limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    result = flowshard(tmp_path, "export", "out", "--to", "diffusers", "--output", "x", "--dtype", "fp32", preexec_fn=under_limit)
    assert result.returncode == 0, result.stderr
    assert sum(path.stat().st_size for path in (tmp_path / "x/transformer").iterdir()) > 300_000_000
