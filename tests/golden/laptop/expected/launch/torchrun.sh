#!/usr/bin/env bash
# Starts the ranks of this node with torchrun. It needs no ssh: use it in containers and under other
# schedulers.
set -euo pipefail

fail() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit 1
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -e .dsforge-commit ] || fail "the last dsforge gen was cut short: run it again"
command -v torchrun >/dev/null || fail "torchrun is not installed: pip install 'dsforge[train]'"

# The variables of every rank stand in .deepspeed_env and nowhere else.
while IFS= read -r line || [ -n "$line" ]; do
  export "${line?}"
done <.deepspeed_env

ranks=(--nnodes 1 --nproc_per_node 1)
ranks+=(--master_addr 127.0.0.1 --master_port "${MASTER_PORT:-29500}")

exec torchrun "${ranks[@]}" --module dsforge.train train.yaml
