# shellcheck shell=bash
# A bare Debian or Ubuntu in a temporary folder, removed at the end; sourced by scripts that install there.
#   fresh_system SUITE MIRROR PACKAGES   makes it: needs root and debootstrap; KEYRING is a file of archive keys
#   inside COMMAND                       runs a command in it, with the settings of the array `environment`
#   timed NAME COMMAND                   the same, and prints seconds and megabytes
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
root=$(mktemp -d)
environment=(HOME=/root PATH=/root/.local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive)

clean() {
  umount "$root/proc" 2>/dev/null || true
  rm -rf --one-file-system "$root"
}
trap clean EXIT

fresh_system() {
  local suite=$1 mirror=$2 packages=$3 components=main script=/usr/share/debootstrap/scripts/$1
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/jammy # a debootstrap older than the suite
  case $mirror in *ubuntu*) components=main,universe ;; esac
  debootstrap --variant=minbase --components="$components" --include="$packages" \
    ${KEYRING:+--keyring="$KEYRING"} "$suite" "$root" "$mirror" "$script" >/dev/null
  mount --bind /proc "$root/proc"
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
}

inside() {
  env -i "${environment[@]}" chroot "$root" bash -o pipefail -c "$1"
}

megabytes() { du -sm --exclude="$root/proc" "$root" | cut -f1; }

timed() {
  local before start
  before=$(megabytes)
  start=$EPOCHREALTIME
  inside "$2" >"$root/output.txt" 2>&1 || {
    tail -20 "$root/output.txt"
    return 1
  }
  awk -v name="$1" -v s="$start" -v e="$EPOCHREALTIME" -v b="$before" -v a="$(megabytes)" \
    'BEGIN { printf "%-40s %6.1f s  %5d MB\n", name, e - s, a - b }'
}
