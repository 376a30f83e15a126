#!/usr/bin/env bash
# Installs the system packages that a few tests need, where that is possible without asking:
# pdsh and sshd with iproute2 for the two-host tests, libaio for NVMe offload, Chromium for the page.
# Where it is not possible it says what is missing; those tests then skip with the same reason.
set -euo pipefail

missing=()
command -v pdsh >/dev/null || missing+=(pdsh)
[ -x /usr/sbin/sshd ] || missing+=(openssh-server)
command -v ip >/dev/null || missing+=(iproute2)
[ -e /usr/include/libaio.h ] || missing+=(libaio-dev)
command -v chromium >/dev/null || command -v chromium-browser >/dev/null ||
  command -v google-chrome >/dev/null || missing+=(chromium)

if [ ${#missing[@]} -eq 0 ]; then
  echo "system packages: all present"
elif [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  echo "system packages: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # A package that cannot be had costs a few skipped tests, not the whole run.
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/dev/null \
    || echo "system packages: apt-get failed; the tests that need ${missing[*]} will skip"
else
  echo "system packages: missing ${missing[*]}; the tests that need them will skip"
  echo "  to install them: sudo apt-get install ${missing[*]}"
fi
