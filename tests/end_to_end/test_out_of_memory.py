"""Memory of the host that runs out, by a limit of the process: one line that says where, and what would help."""
import os
import resource

import pytest

LIMIT = 5 * 2 ** 30  # of addresses; a run that fits takes 3 GiB of them


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))


@pytest.mark.parametrize("side, batch_size, phase, what", [
    (512, 128, "encoding a batch", "the host has no room for"),
    (1024, 60000, "loading a batch", "the host has no room for more: "),
])
def test_says_where_and_what_would_help(flowshard, tiny_run, side, batch_size, phase, what):
    result = flowshard("train", "run.toml", "--set", f"train.batch_size={batch_size}", "--set", f"data.height={side}",
                       "--set", f"data.width={side}", preexec_fn=limited, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 2
    line = result.stderr.splitlines()[-1]
    assert line.startswith(f"flowshard train: error: step 1 ({phase}): out of memory: {what}")
    assert f"train.batch_size={batch_size // 2} with train.gradient_accumulation_steps=2 saves " in line
    assert " GiB of the machine are free" in line
    assert "precision.mode=bf16 saves " in line and "internal error" not in result.stderr
    assert not (tiny_run / "out" / "checkpoints").exists() or not list((tiny_run / "out" / "checkpoints").iterdir())
