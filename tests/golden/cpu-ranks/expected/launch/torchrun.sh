#!/usr/bin/env bash
# Starts the ranks of this node with torchrun. It needs no ssh: use it in containers and under other
# schedulers.
set -euo pipefail

fail() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit 1
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -e .dsforge-commit ] || fail "the last dsforge gen was interrupted: run it again"
launcher=$(command -v torchrun) || fail "torchrun is not on PATH: activate the environment of the run"

port=${MASTER_PORT:-29500}
case $port in
  *[!0123456789]* | ??????*) fail "MASTER_PORT (=$port) must be a whole number from 1 to 65535" ;;
esac

# All variables of the ranks are set in .deepspeed_env.
while IFS= read -r line || [ -n "$line" ]; do
  export "${line?}"
done <.deepspeed_env

ranks=(--nnodes 1 --nproc_per_node 2)
ranks+=(--master_addr 127.0.0.1 --master_port "${MASTER_PORT:-29500}")

# Forwards signals to the ranks, waits while they save a checkpoint and end.
python=$(dirname "$(readlink -f "$launcher")")/python
[ -x "$python" ] || python=python3
export PYTHONSAFEPATH=1 # a file of this folder that is named like a module is not imported
exec "$python" -m dsforge.train.attend \
  torchrun "${ranks[@]}" --module dsforge.train train.yaml
