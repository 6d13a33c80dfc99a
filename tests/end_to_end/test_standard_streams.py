"""Standard streams that are closed or on a full disk: no file takes their place, no work ends, no result is lost in silence."""
import subprocess

import pytest

from test_bad_input import files_below
from training_run import PROGRAM, metrics


def shell(folder, command):
    return subprocess.run(["bash", "-c", command.replace("flowshard", str(PROGRAM), 1)], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", "2>/dev/full"])
def test_training_goes_on_without_them(tiny_run, flowshard_at, streams):
    result = shell(tiny_run, f"flowshard train run.toml {streams}")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert [record["step"] for record in metrics(tiny_run / "out/metrics.jsonl")] == [1, 2, 3, 4]
    assert flowshard_at(tiny_run, "inspect", "out").returncode == 0


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", "2>/dev/full"])
def test_dataset_is_the_same_without_them(tmp_path, flowshard, streams):
    assert shell(tmp_path, f"flowshard dataset shapes --output quiet --num-samples 20 {streams}").returncode == 0
    assert flowshard("dataset", "shapes", "--output", "seen", "--num-samples", 20).returncode == 0
    assert files_below(tmp_path / "quiet") == files_below(tmp_path / "seen")


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full"])
def test_exit_code_of_an_error_that_nobody_sees(tmp_path, streams):
    assert shell(tmp_path, f"flowshard train absent.toml {streams}").returncode == 2


@pytest.mark.parametrize("command", ["train --explain", "train run.toml --check", "inspect run.toml --json", "inspect data/shapes-000000.tar --json"])
def test_result_that_does_not_arrive_is_an_error(tiny_run, command):
    result = shell(tiny_run, f"flowshard {command} >/dev/full")
    unknown = command.startswith("inspect run.toml")
    assert result.returncode == (2 if unknown else 4)
    assert len(result.stderr.splitlines()) == 1
    assert unknown or "standard output cannot be written" in result.stderr
