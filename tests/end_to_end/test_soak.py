"""A long run keeps what it holds: memory, threads and open files of each rank stay as they were after the start."""
import pathlib
import statistics

from processes import end, eventually, num_records, ranks_below, start
from training_run import PROGRAM, steps_saved

NUM_SAMPLES = 20


def holdings(pid):
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return {"resident MiB": int(status["VmRSS"].split()[0]) / 1024, "threads": int(status["Threads"]),
            "open files": len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))}


def test_a_long_run_holds_what_it_held(tiny_run, soak_steps):
    every = soak_steps // NUM_SAMPLES
    job = start(tiny_run, PROGRAM, "launch", "--nproc_per_node", 2, "--", "train", "run.toml", "--set",
                f"train.steps={soak_steps + every}", "--set", "train.batch_size=1", "--set", f"checkpoint.every_steps={every}",
                "--set", "run.log_every_steps=1000000", "--set", "distributed.timeout_seconds=120")
    samples = []
    for i in range(1, NUM_SAMPLES + 1):
        # Between two saves: a save that is in progress holds more.
        eventually(lambda: num_records(tiny_run / "out") >= i * every + every // 2, f"step {i * every}", 20 + every)
        ranks = ranks_below(job.pid)
        samples.append([holdings(ranks[rank]) for rank in (0, 1)])
        print(i * every, samples[-1], flush=True)
    code, stderr = end(job, timeout=60 + every)
    assert code == 0, stderr
    assert len(steps_saved(tiny_run / "out")) <= 3
    for rank in (0, 1):
        for name, early in samples[0][rank].items():
            course = [sample[rank][name] for sample in samples]
            second, last = (statistics.median(part) for part in (course[5:10], course[15:]))
            slack = max(4, 0.02 * early) if name == "resident MiB" else 0
            assert last <= second + slack, f"rank {rank}: {name}: {course}"
