#!/usr/bin/env bash
# Sets up, builds and runs every test.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"
scripts/setup.sh --test
step "format and layers"
git ls-files "*.h" "*.cpp" "*.cu" "*.cuh" | xargs clang-format --dry-run --Werror
tools/check_layers
step "build"
scripts/build.sh
step "unit tests"
ctest --test-dir build/release --output-on-failure
step "the modules without LibTorch under the address, undefined-behaviour and thread sanitizers"
sanitize() {  # preset, then modules
  local preset=$1; shift
  scripts/build.sh --preset "$preset" $(printf 'flowshard_%s_test ' "$@")
  ctest --test-dir "build/$preset" --output-on-failure -R "^($(IFS='|'; echo "$*"))\$"
}
sanitize dev core storage image telemetry tokenizer dataset train_config
sanitize tsan core dataset
step "fuzzers"
if command -v clang++-16 >/dev/null; then
  tests/fuzz/run 12
else
  echo "not run: the fuzzers: clang++-16 is not installed"
fi
step "parity with the reference packages"
"$env_dir/bin/python" -m pytest -q -rs tests/parity
step "ranks as processes"
"$env_dir/bin/python" -m pytest -q -rs tests/distributed
step "end to end"
"$env_dir/bin/python" -m pytest -q -rs tests/end_to_end
