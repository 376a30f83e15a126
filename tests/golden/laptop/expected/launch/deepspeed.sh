#!/usr/bin/env bash
# Starts the run with the deepspeed launcher. Change the hosts in hostfile, not here.
# MASTER_PORT and PDSH_SSH_ARGS_APPEND of the calling shell are used; without MASTER_PORT the ranks
# meet at port 29500, or at a free one if it is in use.
set -euo pipefail

fail() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit 1
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -e .dsforge-commit ] || fail "the last dsforge gen was interrupted: run it again"
launcher=$(command -v deepspeed) || fail "deepspeed is not on PATH: activate the environment of the run"

# The hostfile decides where the job runs. Without it, DeepSpeed would train on this machine alone;
# with other hosts than planned, it would train on those.
[ -f hostfile ] || fail "there is no hostfile here; write one with: dsforge gen --hostfile FILE"
mapfile -t hosts < <(sed -nE 's/^[[:space:]]*([^#[:space:]]+)[[:space:]]+slots=[0-9]+.*/\1/p' hostfile)
line='[A-Za-z0-9:]([A-Za-z0-9_.:-]*[A-Za-z0-9])?[[:blank:]]+slots=0*[1-9][0-9]{0,3}'
bad=$(grep -nvE "^[[:space:]]*(#.*|$line)?[[:space:]]*$" hostfile | cut -d : -f 1 | head -n 1) || true
[ -z "$bad" ] || fail "hostfile:$bad must read: ADDRESS slots=1; an address \
must not begin with a dash or hold a user name (set ssh_user in the cluster file)"
[ "${#hosts[@]}" -gt 0 ] || fail "hostfile contains no host; a line must read: 10.0.0.1 slots=1"
[ "${#hosts[@]}" -eq 1 ] \
  || fail "hostfile names ${#hosts[@]} hosts, the plan is for 1: run dsforge gen again"
twice=$(printf '%s\n' "${hosts[@]}" | sort | uniq -d | head -n 1)
[ -z "$twice" ] || fail "hostfile names $twice twice"

port=${MASTER_PORT:-29500}
case $port in
  *[!0123456789]* | ??????*) fail "MASTER_PORT (=$port) must be a whole number from 1 to 65535" ;;
esac

# On one node DeepSpeed starts the ranks here, whatever address the hostfile has.
case ${hosts[0]} in
  localhost | 127.*) ;;
  *) [[ " $(hostname -I) " == *" ${hosts[0]} "* ]] || fail "hostfile names ${hosts[0]}, this machine is $(hostname -I)" ;;
esac

# All variables of the ranks are set in .deepspeed_env.
while IFS= read -r line || [ -n "$line" ]; do
  export "${line?}"
done <.deepspeed_env

# Forwards signals to the ranks, waits while they save a checkpoint and end.
python=$(dirname "$(readlink -f "$launcher")")/python
[ -x "$python" ] || python=python3
export PYTHONSAFEPATH=1 # a file of this folder that is named like a module is not imported
exec "$python" -m dsforge.train.attend \
  deepspeed --hostfile hostfile --no_ssh_check --master_addr 127.0.0.1 --master_port "$port" \
  --no_local_rank --module dsforge.train train.yaml
