# Sourced by the other scripts: where the Python environment that carries LibTorch lives, and its torch folder.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
env_key=$(cat "$root"/requirements*.txt | sha256sum | cut -c1-12)
env_dir=${XDG_CACHE_HOME:-$HOME/.cache}/flowshard/env-$env_key
libtorch_dir() { echo "$env_dir"/lib/python3*/site-packages/torch; }
# The machine's own CUDA toolkit, if it has one.
cuda_toolkit() { local nvcc; nvcc=$(command -v nvcc) && dirname "$(dirname "$nvcc")" || echo /usr/local/cuda; }
step() { printf '\n==> %s\n' "$*"; }
die() { printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# Compiled objects survive a clean checkout: ccache sees paths below the root as relative ones.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
export CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-8G}
