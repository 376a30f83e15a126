#!/usr/bin/env bash
# Starts Megatron-LM's pretrain_gpt.py on this node with the arguments of megatron/args.txt.
# Call it on every host, with NODE_RANK=0, 1, 2 ... in the order of the hostfile. With MASTER_ADDR,
# the host of rank 0, the hostfile is not read. slurm.sbatch does all of this.
#   MEGATRON_PATH    checkout of Megatron-LM
#   DATA_PATH        prefix of the data written by its tools/preprocess_data.py; without it: mock data
#   TOKENIZER_MODEL  Hugging Face tokenizer of that data; without it: that of the model
#   PRETRAINED_PATH  checkpoint of Megatron-LM with trained weights, where a run without a checkpoint starts from those
# It resumes from the checkpoint in output/megatron if there is one, else starts from PRETRAINED_PATH or random weights.
set -euo pipefail

fail() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit 1
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -e .dsforge-commit ] || fail "the last dsforge gen was interrupted: run it again"
: "${MEGATRON_PATH:?set it to a checkout of https://github.com/NVIDIA/Megatron-LM}"
[ -f "$MEGATRON_PATH/pretrain_gpt.py" ] || fail "MEGATRON_PATH (=$MEGATRON_PATH) has no pretrain_gpt.py"
command -v torchrun >/dev/null || fail "torchrun is not installed"

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

# All variables of the ranks are set in .deepspeed_env.
while IFS= read -r line || [ -n "$line" ]; do
  export "${line?}"
done <.deepspeed_env
# Megatron-LM requires it for tensor and context parallelism on Hopper and older cards.
export CUDA_DEVICE_MAX_CONNECTIONS=1

ranks=(--nnodes 2 --nproc_per_node 8)
NODE_RANK=${NODE_RANK:-${SLURM_NODEID:-}}
: "${NODE_RANK:?set it to the position of this host in hostfile, counted from 0}"
ranks+=(--node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR" --master_port "${MASTER_PORT:-29500}")

arguments=()
while read -r flag value || [ -n "$flag" ]; do
  arguments+=("$flag")
  [ -z "$value" ] || arguments+=("$value")
done <megatron/args.txt
[ -z "${PRETRAINED_PATH:-}" ] || arguments+=(--pretrained-checkpoint "$PRETRAINED_PATH")
if [ -n "${DATA_PATH:-}" ]; then
  tokenizer=meta-llama/Llama-2-7b-hf
  read -ra prefixes <<<"$DATA_PATH"
  arguments+=(--data-path "${prefixes[@]}" --tokenizer-type HuggingFaceTokenizer)
  arguments+=(--tokenizer-model "${TOKENIZER_MODEL:-$tokenizer}")
else
  arguments+=(--mock-data --tokenizer-type NullTokenizer --vocab-size 32000)
fi

exec torchrun "${ranks[@]}" "$MEGATRON_PATH/pretrain_gpt.py" "${arguments[@]}" \
  --exit-signal-handler --split 99,1,0 --log-interval 1 --eval-interval 1000 --eval-iters 10 --save-interval 1000 \
  --save output/megatron --load output/megatron
