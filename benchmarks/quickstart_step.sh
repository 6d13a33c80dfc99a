#!/usr/bin/env bash
# A training step of the quick-start model: flowshard beside PyTorch with diffusers' transformer, same cores, same threads.
# Needs scripts/setup.sh --test, a build and data/quickstart (scripts/quickstart.sh makes it). Prints one line a program.
set -euo pipefail
source "$(dirname "$0")/../scripts/env.sh"
cd "$root"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

ours() {  # name, then the command
  local name=$1; shift
  "$@" --set train.steps=60 --set checkpoint.every_steps=1000 --set "run.output_dir=\"$out/$name\"" >/dev/null 2>&1
  "$env_dir/bin/python" - "$out/$name/metrics.jsonl" "$name" <<'END'
import json, statistics, sys
times = [json.loads(line)["step_seconds"] * 1e3 for line in open(sys.argv[1])][10:]
print(f"flowshard {sys.argv[2]}: median {statistics.median(times):.1f} ms, min {min(times):.1f}, max {max(times):.1f}")
END
}
torchrun() { OMP_NUM_THREADS=1 "$env_dir/bin/torchrun" --nproc_per_node 2 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 "$@" 2>/dev/null; }

for round in 1 2; do
  ours full_shard-2x1 build/release/flowshard launch --nproc_per_node 2 -- train configs/quickstart.toml
  torchrun benchmarks/quickstart_step_torch.py fsdp2
  ours no_shard-2x1 build/release/flowshard launch --nproc_per_node 2 -- train configs/quickstart.toml --set parallel.strategy=no_shard
  torchrun benchmarks/quickstart_step_torch.py ddp
  OMP_NUM_THREADS=2 ours one-process-2-threads build/release/flowshard train configs/quickstart.toml --set train.batch_size=32
  OMP_NUM_THREADS=2 "$env_dir/bin/python" benchmarks/quickstart_step_torch.py
  rm -rf "${out:?}"/*
done
