#!/usr/bin/env bash
# How long an asynchronous save holds training up: four double and eight single blocks of FLUX.1-dev's width (30.7 GB of
# masters and moments), batch 8 a GPU, with frozen encoders and pictures from shards. As on a job of many GPUs, a step takes
# longer than the copies of a rank's shards.
#   tools/gpu_save_stall.sh FLOWSHARD FOLDER [RANKS]     a scratch folder in memory (110 GB); needs diffusers in python3
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
flowshard=$1 scratch=$2 ranks=${3:-1}
"$flowshard" dataset shapes --output "$scratch/shapes" --num-samples 64 --samples-per-shard 64 >/dev/null
[ -d "$scratch/small" ] || python3 tools/make_random_model.py "$scratch/small" 4 8 >/dev/null 2>&1
timeout -s KILL 120 "$flowshard" launch --nproc_per_node "$ranks" -- train configs/flux-dev.toml --set "model.path=$scratch/small" \
  --set model.initialization=random --set "data.shards=['$scratch/shapes/shapes-000000.tar']" --set "run.output_dir=$scratch/saves" \
  --set schedule.warmup_steps=0 --set train.steps=26 --set checkpoint.every_steps=13 --set checkpoint.keep=1 --set train.batch_size=8 2>&1 |
  grep -E "memory|saved|error|warning"
python3 - "$scratch/saves/metrics.jsonl" <<'PYTHON'
import json, statistics, sys
steps = [json.loads(line) for line in open(sys.argv[1])]
for key in ("step_seconds", "encode_seconds"):
    before = statistics.median(r[key] for r in steps[2:13])
    after = [r[key] for r in steps[13:23]]
    print(f"{key}: {before:.3f} before the save, {after[0]:.3f} in the step after it, {statistics.mean(after):.3f} over ten")
print(f"the save call: {steps[12]['save_seconds']:.4f} s")
PYTHON
rm -rf "$scratch/saves"
