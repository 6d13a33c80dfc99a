"""What every end-to-end test needs: the program, run as a user runs it."""
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("FLOWSHARD", ROOT / "build/release/flowshard"))


@pytest.fixture
def flowshard(tmp_path):
    """flowshard(*args) runs the program in tmp_path and returns the finished process, its output as text."""

    def run(*args, timeout=120):
        return subprocess.run([PROGRAM, *map(str, args)], cwd=tmp_path, capture_output=True, timeout=timeout,
                              encoding="utf-8", errors="replace")

    return run
