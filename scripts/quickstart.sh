#!/usr/bin/env bash
# From a bare machine to a trained tiny FLUX model and a picture of what it draws. Run it again: what is done is skipped.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"
flowshard=build/release/flowshard
data=data/quickstart run=runs/quickstart

step "1/5 setting up and building (the first time: about 20 minutes)"
scripts/setup.sh
scripts/build.sh flowshard

step "2/5 making the data set: $data"
[ -e "$data/heldout.jsonl" ] || $flowshard dataset shapes --output "$data"

step "3/5 training on two processes: $run (about 5 minutes)"
$flowshard launch --nproc_per_node 2 -- train configs/quickstart.toml --set "run.output_dir=$run" --resume auto
# The same model before its first step, to compare with.
$flowshard train configs/quickstart.toml --resume auto --set "run.output_dir=$run-untrained" --set train.steps=0

step "4/5 making images of held-out prompts, trained and untrained"
generate=(--height 64 --width 64 --steps 12 --guidance 1 --true-cfg-scale 2.5 --max-sequence-length 12)
draw() {  # one thread each: the model is tiny
  OMP_NUM_THREADS=1 $flowshard generate --model "$1" --prompts "$data/heldout.jsonl" "${generate[@]}" \
    --output "$1/images" --grid "$1/grid.png" >"$1/generate.log"
}
draw "$run-untrained" & untrained=$!
draw "$run"
wait $untrained

step "5/5 do the images show what the prompts say?"
$flowshard eval --images "$run/images" --compare "$run-untrained/images" --prompts "$data/heldout.jsonl"
cat <<END

The picture: $run/grid.png
Next:
  $flowshard generate --model $run --prompt "a red circle above a blue square" ${generate[*]} --output first.png
  $flowshard train --explain
  $flowshard launch --nproc_per_node 2 -- train configs/quickstart.toml --set run.output_dir=runs/second --set run.seed=2
END
