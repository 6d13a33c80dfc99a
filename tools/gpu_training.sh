#!/usr/bin/env bash
# The optimizer step of a full fine-tuning of FLUX.1-dev on one GPU, random weights: time, share of peak, memory beside
# what was predicted, with moments in 8 bits and with moments in host memory (93 GiB are needed there), and diffusers'
# forward and backward on the same GPU. Each line of results is one JSON object.
#   tools/gpu_training.sh FLOWSHARD     needs diffusers in python3
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
flowshard=$1

ours() {  # name, then settings
  local name=$1 settings=(); shift
  for setting in "$@"; do settings+=(--set "$setting"); done
  printf '%s ' "$name"
  timeout 150 "$flowshard" bench step configs/flux-dev.toml --warm-up 2 --steps 5 --json "${settings[@]}" 2>&1
}
theirs() { timeout 150 python3 benchmarks/flux_training_diffusers.py "$@" 2>&1 | tail -1; }

int8=optimizer.state_dtype=int8 offload=memory.offload_optimizer=true
full=memory.activation_checkpointing=full selective=memory.activation_checkpointing=selective
none=memory.activation_checkpointing=none

ours "bf16 int8 full B1" $int8 $full
ours "bf16 int8 full B4" $int8 $full train.batch_size=4
ours "bf16_pure int8 none B1" precision.mode=bf16_pure $int8 $none
theirs
theirs --compile
ours "bf16_pure int8 selective B1" precision.mode=bf16_pure $int8 $selective
ours "bf16_pure int8 full B1" precision.mode=bf16_pure $int8 $full
theirs --checkpointing
ours "bf16_pure int8 full B4" precision.mode=bf16_pure $int8 $full train.batch_size=4
theirs --checkpointing --batch 4
ours "bf16 offloaded none B1" $offload $none
ours "bf16 offloaded full B4" $offload $full train.batch_size=4
