#!/usr/bin/env bash
# Builds into build/release (or build/PRESET with --preset PRESET). Other arguments are targets: scripts/build.sh flowshard
set -euo pipefail
source "$(dirname "$0")/env.sh"

preset=release
if [ "${1:-}" = --preset ]; then preset=$2; shift 2; fi
[ -e "$env_dir/requirements.txt.done" ] || die "LibTorch is not installed: run scripts/setup.sh first"
cd "$root"
build=build/$preset
if [ ! -e "$build/build.ninja" ]; then
  cmake --preset "$preset" -DLIBTORCH_DIR="$(libtorch_dir)"
fi
cmake --build "$build" ${@:+--target "$@"}
