#!/usr/bin/env bash
# `flowshard train` itself on one GPU at FLUX.1-dev's size, random weights: the prediction of memory beside what is used.
# Ended before it would save.
#   tools/gpu_train_full.sh FLOWSHARD FOLDER     a scratch folder in memory (15 GB); needs diffusers in python3
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
flowshard=$1 scratch=$2
"$flowshard" dataset shapes --output "$scratch/shapes" --num-samples 64 --samples-per-shard 64 >/dev/null
[ -d "$scratch/full" ] || python3 tools/make_random_model.py "$scratch/full" 4 8 >/dev/null 2>&1
cp models/flux-dev/transformer/config.json "$scratch/full/transformer/"
timeout -s KILL 120 "$flowshard" train configs/flux-dev.toml --set "model.path=$scratch/full" --set model.initialization=random \
  --set "data.shards=['$scratch/shapes/shapes-000000.tar']" --set "run.output_dir=$scratch/whole" --set run.log_every_steps=1 \
  --set schedule.warmup_steps=0 --set train.steps=100000 --set checkpoint.every_steps=100000 --set checkpoint.async=false \
  --set optimizer.state_dtype=int8 --set memory.activation_checkpointing=full --set train.batch_size=4 2>&1 |
  grep -E "memory|step .0/|error|warning"
