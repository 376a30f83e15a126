#!/usr/bin/env bash
# Installs dsforge in a fresh Debian or Ubuntu with two commands, and says how long and how large:
#   sudo scripts/fresh_install.sh trixie http://deb.debian.org/debian
#   sudo scripts/fresh_install.sh noble http://archive.ubuntu.com/ubuntu
# Needs root and debootstrap; the system lies in a temporary folder and is removed at the end.
set -euo pipefail

suite=${1:?a suite such as trixie, bookworm or noble}
mirror=${2:?the address of its mirror}
here=$(cd "$(dirname "$0")/.." && pwd)
root=$(mktemp -d)
script=/usr/share/debootstrap/scripts/$suite
[ -e "$script" ] || script=/usr/share/debootstrap/scripts/jammy # a debootstrap older than the suite

clean() {
  umount "$root/proc" 2>/dev/null || true
  rm -rf --one-file-system "$root"
}
trap clean EXIT

components=main
case $mirror in *ubuntu*) components=main,universe ;; esac
debootstrap --variant=minbase --components="$components" --include=ca-certificates,python3,python3-venv \
  ${KEYRING:+--keyring="$KEYRING"} "$suite" "$root" "$mirror" "$script" >/dev/null
mount --bind /proc "$root/proc"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
git -C "$here" archive HEAD --prefix=dsforge/ | tar -x -C "$root/root"

inside() {
  env -i HOME=/root PATH=/root/.local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
    chroot "$root" bash -c "cd /root/dsforge && $1"
}
megabytes() { du -sm --exclude="$root/proc" "$root" | cut -f1; }
timed() { # a name, a command: seconds and megabytes
  local before start
  before=$(megabytes)
  start=$EPOCHREALTIME
  inside "$2" >/dev/null 2>&1
  awk -v name="$1" -v s="$start" -v e="$EPOCHREALTIME" -v b="$before" -v a="$(megabytes)" \
    'BEGIN { printf "%-24s %5.1f s  %4d MB\n", name, e - s, a - b }'
}

timed "apt-get: pipx" "apt-get update && apt-get install -y --no-install-recommends pipx"
timed "pipx: dsforge" "pipx install ."
timed "dsforge --help" "dsforge --help"
inside "python3 --version; dsforge plan --model llama-2-7b --gpu h100 --gpus-per-node 8 | head -2"
