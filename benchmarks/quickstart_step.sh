#!/usr/bin/env bash
# A training step of the quick-start model: flowshard beside PyTorch with diffusers' transformer, same cores, same threads,
# same work. `ready`: latents and text are in memory on both sides (flowshard trains on 128 pictures that it has encoded
# before). `shards`: both sides read, decode and encode their pictures in every step and keep nothing.
# Needs scripts/setup.sh --test, a build and data/quickstart (scripts/quickstart.sh makes it).
#   benchmarks/quickstart_step.sh [ROUNDS] [ready|shards]...
# Prints a line for each run, and at the end the medians over the rounds and their ratios.
set -euo pipefail
source "$(dirname "$0")/../scripts/env.sh"
cd "$root"
rounds=${1:-3}
sources=(ready shards)
[ $# -lt 2 ] || sources=("${@:2}")
flowshard=build/release/flowshard
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

$flowshard dataset shapes --output "$out/few" --num-samples 128 --samples-per-shard 128 >/dev/null 2>&1

ours() {  # ready or shards, then the command
  local settings=(--set train.steps=60 --set data.cache_in_memory=false)
  # Which rank meets which picture differs between epochs of 4 steps: after 100 steps each has met nearly all.
  [ "$1" = shards ] || settings=(--set train.steps=150 --set "data.shards=[\"$out/few/shapes-000000.tar\"]")
  "${@:2}" "${settings[@]}" --set checkpoint.every_steps=1000 --set "run.output_dir=\"$out/run\"" >/dev/null 2>&1
  "$env_dir/bin/python" - "$out/run/metrics.jsonl" <<'END'
import json, statistics, sys
records = [json.loads(line) for line in open(sys.argv[1])][-50:]
def column(key): return [record[key] * 1e3 for record in records]
times = column("step_seconds")
print(f"flowshard: median {statistics.median(times):.1f} ms, min {min(times):.1f}, max {max(times):.1f}; waits for data "
      f"{statistics.median(column('data_seconds')):.1f}, encodes {statistics.median(column('encode_seconds')):.1f}")
END
  rm -rf "$out/run"
}
launch() { $flowshard launch --nproc_per_node 2 -- train configs/quickstart.toml "$@"; }
no_shard() { launch --set parallel.strategy=no_shard "$@"; }
alone() { OMP_NUM_THREADS=2 $flowshard train configs/quickstart.toml --set train.batch_size=32 "$@"; }
torchrun() { OMP_NUM_THREADS=1 "$env_dir/bin/torchrun" --nproc_per_node 2 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 "$@" 2>/dev/null; }
peer() { torchrun benchmarks/quickstart_step_torch.py "$@"; }
peer_alone() { OMP_NUM_THREADS=2 "$env_dir/bin/python" benchmarks/quickstart_step_torch.py "$@" 2>/dev/null; }

for round in $(seq "$rounds"); do
  for source in "${sources[@]}"; do
    ours "$source" launch | sed "s/^/2 processes, sharded, $source: /"
    peer fsdp2 "$source" | sed "s/^/2 processes, sharded, $source: /"
    ours "$source" no_shard | sed "s/^/2 processes, replicated, $source: /"
    peer ddp "$source" | sed "s/^/2 processes, replicated, $source: /"
    ours "$source" alone | sed "s/^/1 process, 2 threads, $source: /"
    peer_alone alone "$source" | sed "s/^/1 process, 2 threads, $source: /"
  done
done | tee "$out/lines"

"$env_dir/bin/python" - "$out/lines" <<'END'
import collections, re, statistics, sys
medians = collections.defaultdict(lambda: {"flowshard": [], "torch": []})
for line in open(sys.argv[1]):
    row, side, value = re.match(r"(.*): (flowshard|torch).*?median ([\d.]+)", line).groups()
    medians[row][side].append(float(value))
print("\n| | flowshard | PyTorch | ratio |\n| --- | --- | --- | --- |")
for row, sides in medians.items():
    ours, peer = (statistics.median(sides[side]) for side in ("flowshard", "torch"))
    ratios = [a / b for a, b in zip(sides["flowshard"], sides["torch"])]
    print(f"| {row} | {ours:.1f} | {peer:.1f} | {ours / peer:.2f} ({min(ratios):.2f}-{max(ratios):.2f}) |")
END
