#!/usr/bin/env bash
# Starts the run with the deepspeed launcher. Change the hosts in hostfile, not here.
# MASTER_PORT and PDSH_SSH_ARGS_APPEND of the calling shell are respected.
set -euo pipefail

fail() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit 1
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -e .dsforge-commit ] || fail "the last dsforge gen was cut short: run it again"
command -v deepspeed >/dev/null || fail "deepspeed is not installed: pip install 'dsforge[train]'"

# The hostfile decides where the job runs. DeepSpeed itself would train on this machine alone if the
# file were missing, and on whatever is in it if that no longer is what the plan was made for.
[ -f hostfile ] || fail "there is no hostfile here; write one with: dsforge gen --hostfile FILE"
mapfile -t hosts < <(sed -nE 's/^[[:space:]]*([^#[:space:]]+)[[:space:]]+slots=[0-9]+.*/\1/p' hostfile)
[ "${#hosts[@]}" -gt 0 ] || fail "hostfile names no host; a line reads: 10.0.0.1 slots=1"
[ "${#hosts[@]}" -eq 1 ] \
  || fail "hostfile names ${#hosts[@]} hosts, the plan is for 1: run dsforge gen again"
for host in "${hosts[@]}"; do
  case $host in
    -*) fail "hostfile holds an address that begins with a dash: $host" ;;
  esac
done

# On one node DeepSpeed starts the ranks here, whatever address the hostfile has.
case ${hosts[0]} in
  localhost | 127.*) ;;
  *) [[ " $(hostname -I) " == *" ${hosts[0]} "* ]] || fail "hostfile names ${hosts[0]}, this machine is $(hostname -I)" ;;
esac

# The variables of every rank stand in .deepspeed_env and nowhere else.
while IFS= read -r line || [ -n "$line" ]; do
  export "${line?}"
done <.deepspeed_env

exec deepspeed --hostfile hostfile --no_ssh_check --master_addr 127.0.0.1 \
  --master_port "${MASTER_PORT:-29500}" --no_local_rank --module dsforge.train train.yaml
