#!/usr/bin/env bash
# Runs the instructions of the Containerfile in a bare Ubuntu 24.04 in place of its base image (so without CUDA's
# compiler), and says how long and how large each RUN is:
#   sudo scripts/run_containerfile.sh http://archive.ubuntu.com/ubuntu
# Needs root, debootstrap and 10 GB; the system lies in a temporary folder and is removed at the end.
set -euo pipefail

# shellcheck source=scripts/fresh_system.sh
. "$(dirname "$0")/fresh_system.sh"
fresh_system noble "${1:?the address of a mirror of Ubuntu}" ca-certificates

copied() { # sources and a target, as COPY has them: of this clone's last commit
  local target=$root${*: -1} source
  for source in "${@:1:$#-1}"; do
    local into=$target
    [ "${target%/}" = "$target" ] || into=$target$source
    mkdir -p "$(dirname "$into")"
    git -C "$here" archive HEAD "$source" | tar -x -C "$root/root"
    mv "$root/root/$source" "$into"
  done
}

number=0
while read -r name words; do
  case $name in
    ENV) read -r -a settings <<<"${words//\$PATH//usr/sbin:/usr/bin:/sbin:/bin}" && environment+=("${settings[@]}") ;;
    COPY) read -r -a paths <<<"$words" && copied "${paths[@]}" ;;
    RUN)
      number=$((number + 1))
      timed "RUN $number: ${words:0:30}" "$words"
      ;;
  esac
done < <(grep -v '^#' "$here/Containerfile" | sed -e ':again' -e '/\\$/ { N; s/\\\n */ /; b again' -e '}')

inside "python3 --version; dsforge --version; dsforge train --help | head -1
  python3 -c 'import torch, deepspeed; print(torch.__version__, torch.version.cuda, deepspeed.__version__)'"
