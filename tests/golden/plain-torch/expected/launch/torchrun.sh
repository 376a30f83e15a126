#!/usr/bin/env bash
# Starts the ranks of this node with torchrun. It needs no ssh: use it in containers and under other
# schedulers.
# Call it on every host, with NODE_RANK=0, 1, 2 ... in the order of the hostfile. With MASTER_ADDR,
# the host of rank 0, the hostfile is not read.
set -euo pipefail

fail() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit 1
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -e .dsforge-commit ] || fail "the last dsforge gen was interrupted: run it again"
launcher=$(command -v torchrun) || fail "torchrun is not on PATH: activate the environment of the run"

# Rank 0 runs on MASTER_ADDR, which schedulers set; the default is the first host of the hostfile.
if [ -z "${MASTER_ADDR:-}" ]; then

# The hostfile decides where the job runs. Without it, DeepSpeed would train on this machine alone;
# with other hosts than planned, it would train on those.
[ -f hostfile ] || fail "there is no hostfile here; write one with: dsforge gen --hostfile FILE"
mapfile -t hosts < <(sed -nE 's/^[[:space:]]*([^#[:space:]]+)[[:space:]]+slots=[0-9]+.*/\1/p' hostfile)
line='[A-Za-z0-9:]([A-Za-z0-9_.:-]*[A-Za-z0-9])?[[:blank:]]+slots=0*[1-9][0-9]{0,3}'
bad=$(grep -nvE "^[[:space:]]*(#.*|$line)?[[:space:]]*$" hostfile | cut -d : -f 1 | head -n 1) || true
[ -z "$bad" ] || fail "hostfile:$bad must read: ADDRESS slots=8; an address \
must not begin with a dash or hold a user name (set ssh_user in the cluster file)"
[ "${#hosts[@]}" -gt 0 ] || fail "hostfile contains no host; a line must read: 10.0.0.1 slots=8"
[ "${#hosts[@]}" -eq 2 ] \
  || fail "hostfile names ${#hosts[@]} hosts, the plan is for 2: run dsforge gen again"
twice=$(printf '%s\n' "${hosts[@]}" | sort | uniq -d | head -n 1)
[ -z "$twice" ] || fail "hostfile names $twice twice"
for host in "${hosts[@]}"; do
  case $host in
    192.0.2.* | 198.51.100.* | 203.0.113.* | 198.18.*)
      fail "hostfile still holds the example address $host: write the addresses of your hosts there"
      ;;
    localhost | 127.* | ::1) fail "hostfile holds $host, which means each host itself" ;;
  esac
done
MASTER_ADDR=${hosts[0]}
fi

port=${MASTER_PORT:-29500}
case $port in
  *[!0123456789]* | ??????*) fail "MASTER_PORT (=$port) must be a whole number from 1 to 65535" ;;
esac

# All variables of the ranks are set in .deepspeed_env.
while IFS= read -r line || [ -n "$line" ]; do
  export "${line?}"
done <.deepspeed_env

ranks=(--nnodes 2 --nproc_per_node 8)
NODE_RANK=${NODE_RANK:-${SLURM_NODEID:-}}
: "${NODE_RANK:?set it to the position of this host in hostfile, counted from 0}"
ranks+=(--node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR" --master_port "${MASTER_PORT:-29500}")

# Forwards signals to the ranks, waits while they save a checkpoint and end.
python=$(dirname "$(readlink -f "$launcher")")/python
[ -x "$python" ] || python=python3
export PYTHONSAFEPATH=1 # a file of this folder that is named like a module is not imported
exec "$python" -m dsforge.train.attend \
  torchrun "${ranks[@]}" --module dsforge.train train.yaml
