"""flowshard plan: the figures of FLUX.1-dev from its config.json files alone."""
import json

import pytest

PARAMETERS = 11_901_408_320
ENCODERS = 4_762_310_656 + 123_060_480 + 83_819_683  # T5-XXL, CLIP-L, autoencoder

FLUX_DEV = {
    "transformer": {"_class_name": "FluxTransformer2DModel", "patch_size": 1, "in_channels": 64, "num_layers": 19,
                    "num_single_layers": 38, "attention_head_dim": 128, "num_attention_heads": 24,
                    "joint_attention_dim": 4096, "pooled_projection_dim": 768, "guidance_embeds": True,
                    "axes_dims_rope": [16, 56, 56]},
    "text_encoder": {"architectures": ["CLIPTextModel"], "model_type": "clip_text_model", "vocab_size": 49408,
                     "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
                     "max_position_embeddings": 77, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu",
                     "eos_token_id": 2},
    "text_encoder_2": {"architectures": ["T5EncoderModel"], "model_type": "t5", "vocab_size": 32128, "d_model": 4096,
                       "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64,
                       "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
                       "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-6},
    "vae": {"_class_name": "AutoencoderKL", "in_channels": 3, "out_channels": 3,
            "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4,
            "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "latent_channels": 16,
            "norm_num_groups": 32, "scaling_factor": 0.3611, "shift_factor": 0.1159, "use_quant_conv": False,
            "use_post_quant_conv": False, "act_fn": "silu"},
}


@pytest.fixture
def plan(flowshard, tmp_path):
    """plan(*arguments) runs it for FLUX.1-dev in bf16 at 1024x1024 and returns the finished process."""
    for part, config in FLUX_DEV.items():
        (tmp_path / "flux" / part).mkdir(parents=True)
        (tmp_path / "flux" / part / "config.json").write_text(json.dumps(config))
    (tmp_path / "run.toml").write_text('[run]\noutput_dir = "out"\ndevice = "cuda"\n[model]\npath = "flux"\n'
                                       '[data]\nshards = ["none.tar"]\n[train]\nsteps = 10\n[precision]\nmode = "bf16"\n')
    return lambda *arguments: flowshard("plan", "run.toml", *arguments)


def report(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_sizes_are_those_of_the_model(plan):
    bytes_of = report(plan("--json", "--gpus", "8"))["device_bytes"]
    device = bytes_of["resident"]
    assert device["parameters (master)"] == PARAMETERS * 4 / 8
    assert device["optimizer state"] == PARAMETERS * 8 / 8
    assert bytes_of["largest_of"]["gradients"] == PARAMETERS * 4 / 8
    assert device["frozen encoders"] == 2 * ENCODERS


def test_parts_add_up_and_disk_holds_one_more_than_is_kept(plan):
    whole = report(plan("--json", "--gpus", "2", "--set", "checkpoint.keep=2"))
    device = whole["device_bytes"]
    assert device["total"] == sum(device["resident"].values()) + max(device["largest_of"].values()) + device["context"]
    assert whole["host_bytes"]["total"] == sum(whole["host_bytes"].values()) - whole["host_bytes"]["total"]
    assert whole["disk_bytes"] == {"checkpoint": 12 * PARAMETERS, "total": 3 * 12 * PARAMETERS}


def test_says_whether_it_fits_and_what_would_help(plan):
    result = plan("--gpus", "8", "--gpus-per-host", "8", "--gpu-memory", "80")
    assert result.returncode == 0
    assert "does not fit" not in result.stdout and "fits into 80 GiB" in result.stdout
    result = plan("--gpus", "8", "--gpu-memory", "40")
    assert "does not fit into 40 GiB" in result.stdout
    assert "--set memory.activation_checkpointing=full saves 23.56 GiB" in result.stdout
    better = report(plan("--json", "--gpus", "8", "--gpu-memory", "40", "--set", "memory.activation_checkpointing=full"))
    before = report(plan("--json", "--gpus", "8", "--gpu-memory", "40"))
    assert before["fits"] is False
    saved = before["device_bytes"]["total"] - better["device_bytes"]["total"]
    assert {"setting": "memory.activation_checkpointing=full", "saves_bytes": saved} in before["advice"]


def test_step_time_is_work_over_speed(plan):
    step = report(plan("--json", "--gpus", "2", "--peak-tflops", "1000", "--peak-share", "50", "--bandwidth", "100"))["step"]
    assert step["train_flops_per_sample"] == pytest.approx(223.2e12, rel=1e-3)
    assert step["compute_seconds"] == pytest.approx(223.2 / 500, rel=1e-3)
    assert step["communication_seconds"] == pytest.approx(4 * PARAMETERS / 100e9, rel=1e-3)
    longer = max(step["compute_seconds"], step["communication_seconds"])
    assert step["seconds"] == pytest.approx(longer + step["optimizer_seconds"], rel=1e-9)


def test_a_run_on_cpus_is_planned_too(flowshard, tiny_run):
    whole = report(flowshard("plan", "run.toml", "--json"))
    assert whole["device"] == "cpu" and whole["device_bytes"]["context"] == 0 and "step" not in whole


@pytest.mark.parametrize("arguments, words", [
    (["--gpus", "0"], "--gpus"),
    (["--gpu-memory", "nan"], "--gpu-memory"),
    (["--gpu-memory", "1e-300"], "--gpu-memory"),
    (["--peak-share", "101"], "--peak-share"),
    (["--peak-share", "1e-300"], "--peak-share: 1e-300 is no number from 0.001 to 100"),
    (["--peak-tflops", "1e-320"], "--peak-tflops"),
    (["--bandwidth", "inf"], "--bandwidth"),
    (["--set", "train.bach_size=1"], "train.bach_size"),
    (["--set", "parallel.strategy=hybrid_shard", "--set", "parallel.shard_size=3", "--gpus", "8"], "parallel.shard_size"),
    (["--set", "model.path=missing"], "missing"),
])
def test_mistakes_are_one_line(plan, arguments, words):
    result = plan(*arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and words in result.stderr
