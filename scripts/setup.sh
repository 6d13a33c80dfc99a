#!/usr/bin/env bash
# Installs what the build needs: Debian packages and the Python environment that carries LibTorch.
# With --test also the reference packages that the tests compare with. Does nothing twice.
set -euo pipefail
source "$(dirname "$0")/env.sh"

requirements=requirements.txt
[ "${1:-}" = --test ] && requirements=requirements-test.txt

missing=$(sed 's/#.*//' "$root/packages.txt" | xargs dpkg-query -W -f '${Package} ${db:Status-Status}\n' 2>&1 |
          awk '/no packages found/{print $NF} $2=="not-installed"{print $1}')
if [ -n "$missing" ]; then
  step "installing Debian packages:" $missing
  sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq || die "apt-get update failed: is the network up?"
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
    die "could not install: $missing"
fi

if [ ! -e "$env_dir/$requirements.done" ]; then
  step "installing $requirements into $env_dir (about 2 minutes, 5 GB)"
  [ -x "$env_dir/bin/pip" ] || python3 -m venv "$env_dir"
  "$env_dir/bin/pip" install -q --disable-pip-version-check -r "$root/$requirements" || die "pip could not install $requirements"
  touch "$env_dir/requirements.txt.done" "$env_dir/$requirements.done"
fi
