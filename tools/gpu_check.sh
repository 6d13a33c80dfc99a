#!/usr/bin/env bash
# Runs every GPU test and the kernel benchmark on a machine with a GPU. Fails if any of them fails or is skipped.
#   tools/gpu_check.sh                 the programs of build/release
#   tools/gpu_check.sh FOLDER          those of a packed folder; LibTorch is that of this machine's python3
#   tools/gpu_check.sh --pack FOLDER [PROGRAM...]
#                                      copies the programs of build/release, and others named, stripped, with the
#                                      system libraries they need to FOLDER, to be taken to a GPU machine
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build/release

programs() { find "$1" -type f \( -name '*_gpu_test' -o -name kernels_bench \) -perm -u+x | sort; }

if [ "${1:-}" = --pack ]; then
  folder=${2:?the folder to pack into}
  shift 2
  rm -rf "$folder"; mkdir -p "$folder/lib"
  for program in $(programs $build) "$@"; do
    strip -o "$folder/$(basename "$program")" "$program"
    # The C and C++ runtimes must be those of the machine that runs it; LibTorch comes with its python3.
    ldd "$program" | awk '$3 ~ "^(/usr)?/lib/" {print $3}' |
      { grep -vE '/lib(c|m|dl|rt|util|pthread|stdc\+\+|gcc_s|gomp)\.so' || true; } | xargs -r cp -Lt "$folder/lib"
  done
  du -sh "$folder"
  exit
fi

folder=${1:-$build}
torch=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null) || torch=
if [ -n "$torch" ]; then
  LD_LIBRARY_PATH=$folder/lib:$torch/lib:$(printf '%s:' "$torch"/../nvidia/*/lib)${LD_LIBRARY_PATH:-}
  export LD_LIBRARY_PATH
fi

failed=0
count=0
for program in $(programs "$folder"); do
  printf '\n==> %s\n' "$(basename "$program")"
  count=$((count + 1))
  rc=0
  "$program" --gtest_brief=1 2>&1 | tee /tmp/gpu_check.$$ || rc=${PIPESTATUS[0]}
  if [ "$rc" = 77 ] || grep -q '^\[  SKIPPED' /tmp/gpu_check.$$; then
    echo "gpu_check: $(basename "$program") was skipped"; failed=1
  elif [ "$rc" != 0 ]; then
    echo "gpu_check: $(basename "$program") ended with code $rc"; failed=1
  fi
done
rm -f /tmp/gpu_check.$$
[ $count -gt 0 ] || { echo "gpu_check: no GPU program in $folder"; failed=1; }
exit $failed
