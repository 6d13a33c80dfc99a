"""What every end-to-end test needs: the program, run as a user runs it."""
import subprocess

import pytest

import training_run
from training_run import PROGRAM


def pytest_addoption(parser):
    parser.addoption("--soak-steps", type=int, default=500, help="optimizer steps of test_soak.py")


@pytest.fixture
def soak_steps(request):
    return request.config.getoption("--soak-steps")


def run_flowshard(folder, *args, timeout=120, **options):
    words = [arg if isinstance(arg, bytes) else str(arg) for arg in args]
    return subprocess.run([PROGRAM, *words], cwd=folder, capture_output=True, timeout=timeout, encoding="utf-8",
                          errors="replace", **options)


@pytest.fixture
def flowshard(tmp_path):
    """flowshard(*args) runs the program in tmp_path and returns the finished process, its output as text."""
    return lambda *args, **options: run_flowshard(tmp_path, *args, **options)


@pytest.fixture(scope="session")
def flowshard_at():
    """flowshard_at(folder, *args) runs it in `folder`."""
    return run_flowshard


@pytest.fixture(scope="session")
def shapes_dataset(tmp_path_factory):
    """A folder with 40 samples in two shards. Not to be changed."""
    folder = tmp_path_factory.mktemp("shapes")
    subprocess.run([PROGRAM, "dataset", "shapes", "--output", folder, "--num-samples", "40", "--samples-per-shard", "20"],
                   check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture
def tiny_run(tmp_path, shapes_dataset):
    """tmp_path with run.toml, model/ and data/ of a run of seconds (training_run.py), to be broken freely."""
    training_run.lay_out(tmp_path, shapes_dataset)
    return tmp_path
