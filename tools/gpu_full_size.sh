#!/usr/bin/env bash
# Generation at the full size of FLUX.1-dev on one GPU, with random weights: speed of a step beside diffusers, loading,
# memory by phase in every --low-memory mode, the same bytes in all of them, bf16 against fp32.
#   tools/gpu_full_size.sh FLOWSHARD BENCH FOLDER     programs (flowshard, flow_transformer_bench) and a scratch folder in
#                                                     memory for the model (36 GB); needs diffusers in python3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
flowshard=$1 bench=$2 scratch=$3
out=$scratch/out
mkdir -p "$out"

echo "==> a step"
"$bench"
python3 benchmarks/flow_transformer_diffusers.py
"$bench"

echo "==> the model"
python3 tools/make_random_model.py "$scratch/model"
du -sh "$scratch/model"

generate() {  # name, then options
  local name=$1 start; shift
  start=$(date +%s.%N)
  "$flowshard" generate --model "$scratch/model" --prompt "a red circle left of a blue square" --seed 1 --device cuda \
    --output "$out/$name.png" "$@" 2>&1 | sed "s/^/$name: /"
  printf '%s: whole command %.1f s\n' "$name" "$(echo "$(date +%s.%N) - $start" | bc)"
}
# Takes memory of the GPU until so many GB are free, as other programs would.
leave_free() {  # GB
  python3 -c "
import sys, time, torch
free, total = torch.cuda.mem_get_info()
ballast = torch.empty(max(0, int(free - $1 * 1e9)), dtype=torch.uint8, device='cuda')
print('ready', flush=True)
time.sleep(600)" >"$scratch/ballast" &
  ballast=$!
  until grep -q ready "$scratch/ballast"; do sleep 0.5; done
}

echo "==> pictures"
generate 1024
generate 1024-again
generate 1024-encoders --low-memory encoders
generate 512 --height 512 --width 512
for gb in 24 16 12; do
  leave_free $gb
  generate 1024-blocks-$gb --low-memory blocks
  kill $ballast; wait $ballast 2>/dev/null || true
done
generate 512-fp32 --height 512 --width 512 --precision fp32

python3 - "$scratch" <<'PYTHON'
import sys
import torch
from diffusers import FluxPipeline
for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
    pipeline = FluxPipeline.from_pretrained(f"{sys.argv[1]}/model", torch_dtype=dtype).to("cuda")
    pipeline.set_progress_bar_config(disable=True)
    image = pipeline("a red circle left of a blue square", height=512, width=512, num_inference_steps=28, guidance_scale=3.5,
                     max_sequence_length=512, generator=torch.Generator("cpu").manual_seed(1)).images[0]
    image.save(f"{sys.argv[1]}/out/diffusers-{name}.png")
    del pipeline
    torch.cuda.empty_cache()
PYTHON

python3 - "$out" <<'PYTHON'
import sys
import numpy as np
from PIL import Image
out = sys.argv[1]
pixels = lambda name: np.asarray(Image.open(f"{out}/{name}.png").convert("RGB")).astype(float)
for name in ("again", "encoders", "blocks-24", "blocks-16", "blocks-12"):
    print(f"1024-{name}: {np.sum(pixels('1024') != pixels('1024-' + name))} values differ from 1024")
def distance(what, a, b):
    difference = pixels(a) - pixels(b)
    print(f"{what}: PSNR {10 * np.log10(255**2 / max(np.mean(difference**2), 1e-9)):.1f} dB, mean difference "
          f"{np.abs(difference).mean():.2f}, largest {np.abs(difference).max():.0f} of 255")
distance("512x512, flowshard fp32 against diffusers fp32", "512-fp32", "diffusers-fp32")
distance("512x512, flowshard bf16 against flowshard fp32", "512", "512-fp32")
distance("512x512, diffusers bf16 against diffusers fp32", "diffusers-bf16", "diffusers-fp32")
PYTHON
