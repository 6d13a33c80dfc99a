#!/usr/bin/env bash
# The quick-start model on a GPU against the CPU, with one binary: training losses, images, and the whole recipe.
#   tools/gpu_end_to_end.sh [FLOWSHARD]      (default build/release/flowshard; LD_LIBRARY_PATH as for tools/gpu_check.sh)
# Fails if the GPU strays from the CPU by more than the bounds below.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
flowshard=${1:-build/release/flowshard}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
size=(--height 64 --width 64 --steps 12 --guidance 1 --true-cfg-scale 2.5 --max-sequence-length 12)

"$flowshard" dataset shapes --output "$out/data" >/dev/null 2>&1
train() {  # name, then settings
  local name=$1; shift
  "$flowshard" train configs/quickstart.toml --set "data.shards=[\"$out/data/shapes-{000000..000007}.tar\"]" \
    --set train.batch_size=32 --set run.log_every_steps=400 --set "run.output_dir=\"$out/$name\"" "$@"
}
train cpu --set train.steps=100
train gpu --set train.steps=100 --device cuda
train gpu-again --set train.steps=100 --device cuda
train bf16 --set train.steps=100 --device cuda --mixed_precision=bf16
train full --device cuda --mixed_precision=bf16

prompt=(--prompt "a red circle left of a blue square" --seed 3)
"$flowshard" generate --model "$out/full" "${prompt[@]}" "${size[@]}" --output "$out/cpu.png"
"$flowshard" generate --model "$out/full" "${prompt[@]}" "${size[@]}" --device cuda --precision fp32 --output "$out/gpu.png"
"$flowshard" generate --model "$out/full" "${prompt[@]}" "${size[@]}" --device cuda --precision fp32 --output "$out/gpu2.png"
"$flowshard" generate --model "$out/full" "${prompt[@]}" "${size[@]}" --device cuda --precision bf16 --output "$out/bf16.png"
start=(--init-image "$out/cpu.png" --strength 0.6 --preview-every 3)
"$flowshard" generate --model "$out/full" "${prompt[@]}" "${size[@]}" "${start[@]}" --output "$out/from-cpu.png"
"$flowshard" generate --model "$out/full" "${prompt[@]}" "${size[@]}" "${start[@]}" --device cuda --precision fp32 --output "$out/from-gpu.png"
"$flowshard" generate --model "$out/full" --prompts "$out/data/heldout.jsonl" "${size[@]}" --device cuda --output "$out/images" >/dev/null
"$flowshard" eval --images "$out/images" --prompts "$out/data/heldout.jsonl"

python3 - "$out" <<'END'
import json, statistics, sys
import numpy as np
from PIL import Image
out = sys.argv[1]
def records(name): return [json.loads(line) for line in open(f"{out}/{name}/metrics.jsonl")]
def losses(name): return np.array([r["loss"] for r in records(name)])
def pixels(name): return np.asarray(Image.open(f"{out}/{name}.png").convert("RGB")).astype(int)
def step_ms(name): return 1e3 * statistics.median(r["step_seconds"] for r in records(name)[20:])
failed = []
def bound(what, value, limit):
    print(f"{what}: {value:.3g} (at most {limit:g})")
    if not value <= limit: failed.append(what)
cpu = losses("cpu")
bound("loss of 100 steps, GPU fp32 against CPU fp32, largest relative difference", np.max(np.abs(losses("gpu") / cpu - 1)), 1e-3)
bound("the same on the GPU twice, different steps", np.sum(losses("gpu") != losses("gpu-again")), 0)
bound("loss of 100 steps, GPU bf16 against CPU fp32, largest relative difference", np.max(np.abs(losses("bf16") / cpu - 1)), 0.03)
bound("image, GPU fp32 against CPU fp32, largest difference of 255", np.abs(pixels("gpu") - pixels("cpu")).max(), 2)
for name in ("from-{}", "from-{}.preview"):
    bound(f"image to image ({name}), GPU fp32 against CPU fp32, largest difference of 255",
          np.abs(pixels(name.format("gpu")) - pixels(name.format("cpu"))).max(), 2)
bound("image on the GPU twice, different pixels", np.sum(pixels("gpu") != pixels("gpu2")), 0)
error = np.mean((pixels("bf16") - pixels("cpu")) ** 2.0)
bound("image, GPU bf16 against CPU fp32, PSNR missing to 25 dB", max(0.0, 25 - 10 * np.log10(255**2 / max(error, 1e-9))), 0)
print(f"bf16 PSNR {10 * np.log10(255**2 / max(error, 1e-9)):.1f} dB; step of 32 samples: CPU {step_ms('cpu'):.1f} ms, GPU fp32 "
      f"{step_ms('gpu'):.1f} ms, GPU bf16 {step_ms('bf16'):.1f} ms")
sys.exit(f"outside the bounds: {', '.join(failed)}" if failed else 0)
END
