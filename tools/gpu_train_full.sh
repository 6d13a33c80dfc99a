#!/usr/bin/env bash
# `flowshard train` itself on one GPU at FLUX.1-dev's width, random weights: the prediction of memory beside what is used,
# and how long saving holds training up.
#   tools/gpu_train_full.sh FLOWSHARD FOLDER     a scratch folder in memory (70 GB); needs diffusers in python3
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
flowshard=$1 scratch=$2
"$flowshard" dataset shapes --output "$scratch/shapes" --num-samples 64 --samples-per-shard 64 >/dev/null
train() {  # model, output, then options
  local model=$1 output=$2; shift 2
  timeout -s KILL 150 "$flowshard" train configs/flux-dev.toml --set "model.path=$scratch/$model" --set model.initialization=random \
    --set "data.shards=['$scratch/shapes/shapes-000000.tar']" --set "run.output_dir=$scratch/$output" --set run.log_every_steps=1 \
    --set schedule.warmup_steps=0 "$@" 2>&1 | grep -E "memory|step .0/|saved|error|warning"
}
echo "==> 4 double and 8 single blocks, a save every 8 steps"
python3 tools/make_random_model.py "$scratch/small" 4 8 >/dev/null 2>&1
train small saves --set train.steps=28 --set checkpoint.every_steps=8 --set checkpoint.keep=1 --set train.batch_size=4
python3 - "$scratch/saves/metrics.jsonl" <<'PYTHON'
import json, sys
for line in open(sys.argv[1]):
    r = json.loads(line)
    print(r["step"], *(f"{key} {r[key]:.4f}" for key in ("loss", "step_seconds", "data_seconds", "encode_seconds", "save_seconds") if key in r))
PYTHON
rm -rf "$scratch/saves"
echo "==> the whole model, 8-bit moments; ended before it would save"
cp -r "$scratch/small" "$scratch/full"; cp models/flux-dev/transformer/config.json "$scratch/full/transformer/"
train full whole --set train.steps=100000 --set checkpoint.every_steps=100000 --set checkpoint.async=false \
  --set optimizer.state_dtype=int8 --set memory.activation_checkpointing=full --set train.batch_size=4
