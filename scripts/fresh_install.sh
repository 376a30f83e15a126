#!/usr/bin/env bash
# Installs dsforge in a fresh Debian or Ubuntu with two commands, and says how long and how large:
#   sudo scripts/fresh_install.sh trixie http://deb.debian.org/debian
#   sudo scripts/fresh_install.sh noble http://archive.ubuntu.com/ubuntu
# Needs root and debootstrap; the system lies in a temporary folder and is removed at the end.
set -euo pipefail

# shellcheck source=scripts/fresh_system.sh
. "$(dirname "$0")/fresh_system.sh"
fresh_system "${1:?a suite such as trixie, bookworm or noble}" "${2:?the address of its mirror}" \
  ca-certificates,python3,python3-venv
git -C "$here" archive HEAD --prefix=dsforge/ | tar -x -C "$root/root"

timed "apt-get: pipx" "apt-get update && apt-get install -y --no-install-recommends pipx"
timed "pipx: dsforge" "cd /root/dsforge && pipx install ."
timed "dsforge --help" "dsforge --help"
inside "python3 --version; dsforge plan --model llama-2-7b --gpu h100 --gpus-per-node 8 | head -2"
