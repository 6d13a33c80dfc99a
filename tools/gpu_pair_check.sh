#!/usr/bin/env bash
# Sharded training on two GPUs: that it computes what one computes, and what a full fine-tuning of FLUX.1-dev takes of time
# and memory beside PyTorch FSDP2. On a machine with one GPU only the first part runs, through Gloo. Under ten minutes.
#   tools/gpu_pair_check.sh FLOWSHARD SCRATCH [OVERLAP]
#     SCRATCH  a folder to write to; on two GPUs one in memory, 110 GB, and python3 needs diffusers
#     OVERLAP  a program for torchrun that times computing beside communication
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
flowshard=$1 scratch=$2 overlap=${3:-}
# A program that uses NVLink multicast can put shared GPUs out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
gpus=$(nvidia-smi -L | wc -l)
backend=auto; [ "$gpus" -ge 2 ] || backend=gloo
failed=0
mkdir -p "$scratch"

echo "==> correctness on $gpus GPU(s), backend $backend"
"$flowshard" dataset shapes --output "$scratch/shapes" --num-samples 64 --samples-per-shard 64 >/dev/null
small() {  # output, ranks, then options
  local output=$1 ranks=$2; shift 2
  timeout 90 "$flowshard" launch --nproc_per_node "$ranks" -- train configs/quickstart.toml --device cuda \
    --set "run.output_dir=$scratch/$output" --set "data.shards=['$scratch/shapes/shapes-000000.tar']" \
    --set "distributed.backend=$backend" --set distributed.timeout_seconds=20 --set train.steps=12 \
    --set "train.batch_size=$((16 / ranks))" --set checkpoint.every_steps=6 --set schedule.warmup_steps=0 --set schedule.decay=constant "$@" \
    >"$scratch/$output.log" 2>&1 || { echo "$output: rc $?: $(tail -1 "$scratch/$output.log")"; failed=1; }
}
same() {  # output, the one it is compared with, bound
  python3 - "$scratch" "$@" <<'PYTHON' || failed=1
import json, sys
scratch, name, other, bound = sys.argv[1:]
read = lambda run: [json.loads(line) for line in open(f"{scratch}/{run}/metrics.jsonl")]
a, b = read(name), read(other)
worst = max(abs(x[key] - y[key]) / abs(y[key]) for x, y in zip(a, b) for key in ("loss", "grad_norm"))
good = len(a) == len(b) and worst <= float(bound)
print(f"{name} against {other}: {len(a)} steps, largest relative difference {worst:.1e}", "" if good else "WRONG")
sys.exit(not good)
PYTHON
}
small one 1
for strategy in full_shard shard_grad_op no_shard; do
  small $strategy 2 --set parallel.strategy=$strategy
  same $strategy one 2e-4
done
small hybrid 2 --set parallel.strategy=hybrid_shard --set parallel.shard_size=1
same hybrid no_shard 2e-4
small offload 2 --set memory.offload_parameters=true --set memory.offload_optimizer=true
same offload full_shard 2e-4
small full_ac 2 --set memory.activation_checkpointing=full
same full_ac full_shard 2e-4
small again 2
same again full_shard 0

echo "==> 2 ranks, then 1, then 2"
for part in "2 4" "1 8" "2 12"; do
  read -r ranks steps <<<"$part"
  small resumed "$ranks" --resume auto --set "train.steps=$steps"
done
same resumed full_shard 2e-4

echo "==> a rank is killed"
port=$((20000 + RANDOM % 10000))
for rank in 0 1; do
  RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
    timeout 90 "$flowshard" train configs/quickstart.toml --device cuda --set "run.output_dir=$scratch/killed" \
    --set "data.shards=['$scratch/shapes/shapes-000000.tar']" --set "distributed.backend=$backend" \
    --set distributed.timeout_seconds=20 --set train.steps=100000 >"$scratch/killed-$rank.log" 2>&1 &
  pids[rank]=$!
done
for _ in $(seq 300); do grep -qs '"step":20,' "$scratch/killed/metrics.jsonl" && break; sleep 0.2; done
pkill -KILL -P "${pids[1]}"
start=$SECONDS
wait "${pids[0]}"; rc=$?
echo "the other rank ended with $rc after $((SECONDS - start)) s: $(tail -1 "$scratch/killed-0.log")"
tail -1 "$scratch/killed-0.log" | grep -q "rank 1" && [ $rc = 3 ] || { echo "WRONG: code 3 and rank 1 were to be named"; failed=1; }
wait 2>/dev/null

if [ "$gpus" -ge 2 ]; then
  echo "==> bandwidths"
  timeout 60 "$flowshard" launch --nproc_per_node 2 -- bench collectives --device cuda
  echo "==> a step of FLUX.1-dev on two GPUs"
  step() {  # activation checkpointing, batch
    printf 'flowshard %s batch %s ' "$1" "$2"
    timeout 100 "$flowshard" launch --nproc_per_node 2 -- bench step configs/flux-dev.toml --warm-up 2 --steps 5 --json \
      --set "memory.activation_checkpointing=$1" --set "train.batch_size=$2" 2>&1 | tail -1
  }
  fsdp2() { timeout 140 torchrun --nproc_per_node=2 benchmarks/flux_training_diffusers.py --fsdp "$@" 2>&1 | tail -1; }
  step none 1
  step selective 1
  step full 1
  step full 4
  step selective 4
  for settings in "" "--compile" "--checkpointing" "--checkpointing --compile" "--checkpointing --batch 4" \
                  "--checkpointing --compile --batch 4"; do
    # shellcheck disable=SC2086  # words
    fsdp2 $settings
  done
  [ -z "$overlap" ] || { echo "==> computing beside communication"; timeout 60 torchrun --nproc_per_node=2 "$overlap"; }
  echo "==> saving"
  tools/gpu_save_stall.sh "$flowshard" "$scratch" 2
fi
exit $failed
