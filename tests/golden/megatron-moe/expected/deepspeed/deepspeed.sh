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
[ -z "$bad" ] || fail "hostfile:$bad must read: ADDRESS slots=8; an address \
must not begin with a dash or hold a user name (set ssh_user in the cluster file)"
[ "${#hosts[@]}" -gt 0 ] || fail "hostfile contains no host; a line must read: 10.0.0.1 slots=8"
[ "${#hosts[@]}" -eq 4 ] \
  || fail "hostfile names ${#hosts[@]} hosts, the plan is for 4: run dsforge gen again"
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

port=${MASTER_PORT:-29500}
case $port in
  *[!0123456789]* | ??????*) fail "MASTER_PORT (=$port) must be a whole number from 1 to 65535" ;;
esac

# Every host must respond and have this folder and this installation at the same paths. DeepSpeed
# checks only the first host; a missing one makes the others wait until the rendezvous times out.
command -v pdsh >/dev/null || fail "pdsh is not installed: apt-get install pdsh"
read -ra ssh_options <<<"${PDSH_SSH_ARGS_APPEND:-}"
printf -v seen 'test -r %q && test -x %q' "$PWD"/train-deepspeed.yaml "$launcher"
check() {
  local said code=0
  said=$(timeout 15 ssh -o BatchMode=yes -o ConnectTimeout=5 "${ssh_options[@]}" \
    -p 22 -- "$1" "$seen" 2>&1 </dev/null) || code=$?
  case $code in
    0) ;;
    1) printf 'host %s lacks %s or deepspeed at the same path\n' "$1" "$PWD" >&2 ;;
    *) printf 'host %s does not respond over ssh: %s\n' "$1" "${said:-no reply}" >&2 ;;
  esac
  return "$code"
}
checks=()
for host in "${hosts[@]}"; do
  check "$host" &
  checks+=("$!")
done
failed=0
for job in "${checks[@]}"; do wait "$job" || failed=1; done
[ "$failed" -eq 0 ] || fail "nothing was started; this must work for each host: ssh -o BatchMode=yes -p 22 HOST true"

# DeepSpeed reads this file from the home folder, then from here; values from here win.
export DS_ENV_FILE=.deepspeed_env

# Forwards signals to the ranks, waits while they save a checkpoint and end.
python=$(dirname "$(readlink -f "$launcher")")/python
[ -x "$python" ] || python=python3
export PYTHONSAFEPATH=1 # a file of this folder that is named like a module is not imported
exec "$python" -m dsforge.train.attend \
  deepspeed --hostfile hostfile --master_addr "${hosts[0]}" --master_port "$port" \
  --ssh_port 22 --no_ssh_check --no_local_rank --module dsforge.train train-deepspeed.yaml
