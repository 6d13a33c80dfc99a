#!/usr/bin/env bash
# Installs what the build needs: Debian packages and the Python environment that carries LibTorch.
# With --test also the reference packages that the tests compare with. Does nothing twice.
set -euo pipefail
source "$(dirname "$0")/env.sh"

install_packages() {  # file
  # dpkg-query fails when it knows one of them not at all: that is no failure here.
  local installed missing sudo=
  installed=$(sed 's/#.*//' "$root/$1" | xargs dpkg-query -W -f '${Package} ${db:Status-Status}\n' 2>/dev/null |
              awk '$2 == "installed" {print $1}' || true)
  missing=$(comm -23 <(sed 's/#.*//' "$root/$1" | xargs -n1 | sort) <(sort <<<"$installed") | xargs)
  [ -n "$missing" ] || return 0
  step "installing Debian packages:" $missing
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq || die "apt-get update failed: is the network up?"
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
    die "could not install: $missing"
}
install_packages packages.txt
if [ "${1:-}" = --test ]; then
  (install_packages packages-test.txt) || step "going on without these packages: the tests that need them will say so"
fi

install_requirements() {  # file
  [ -e "$env_dir/$1.done" ] && return
  step "installing $1 into $env_dir ($2)"
  [ -x "$env_dir/bin/pip" ] || python3 -m venv "$env_dir"
  "$env_dir/bin/pip" install -q --disable-pip-version-check -r "$root/$1" || die "pip could not install $1"
  touch "$env_dir/$1.done"
}
install_requirements requirements.txt "about 2 minutes, 5 GB"
[ "${1:-}" != --test ] || install_requirements requirements-test.txt "about 1 minute"
if ! "$(cuda_toolkit)/bin/nvcc" --version 2>/dev/null | grep -q 'release 13'; then
  install_requirements requirements-cuda.txt "the CUDA compiler, 270 MB"
fi
