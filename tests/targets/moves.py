"""Files of one program that are moved to another, and what is lost on the way."""

from __future__ import annotations

from typing import NamedTuple

GPU = ("--gpu", "h100-80gb")
NODE = ("--gpus-per-node", "8")
AXOLOTL = """\
base_model: meta-llama/Llama-3.1-8B
datasets: [{path: data.jsonl, type: alpaca}]
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 0.00002
optimizer: adamw_torch
bf16: auto
gradient_checkpointing: true
fsdp: [full_shard, auto_wrap]
fsdp_config: {fsdp_version: 2, reshard_after_forward: true}
"""
LLAMA_FACTORY = """\
model_name_or_path: meta-llama/Llama-3.1-8B
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
lora_alpha: 32
dataset: alpaca
template: llama3
cutoff_len: 2048
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
bf16: true
neat_packing: true
fsdp: full_shard auto_wrap
"""
TRAINER = """\
#!/bin/bash
torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B \\
  --output_dir out --bf16 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \\
  --fsdp "full_shard auto_wrap" --gradient_checkpointing --learning_rate 2e-5 \\
  --model_max_length 2048 --hub_strategy end
"""
DDP = TRAINER.replace('--fsdp "full_shard auto_wrap" ', "")
MEGATRON = """\
#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8
srun torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \\
  --use-distributed-optimizer --micro-batch-size 2 --global-batch-size 128 --lr 3e-4 --bf16 \\
  --recompute-granularity selective --tokenizer-type GPTSentencePieceTokenizer
"""
MODEL = ("--model", "llama-3.1-8b")


class Move(NamedTuple):
    """A file, the program that it is moved to, and keys without a counterpart."""

    file: str
    text: str
    to: str
    lost: tuple[str, ...]
    flags: tuple[str, ...] = NODE
    changed: tuple[str, ...] = ()  # fields that the file leaves open, or that flags replace

    @property
    def id(self) -> str:
        """Its name in the output of pytest."""
        return f"{self.file}-{self.to}"


# Gradients that accelerate reduces once a step, and what dsforge writes in each micro step.
EACH = ("no_sync",)
RANKS = ("nodes", "gpus_per_node", "data_parallel_size", "global_batch_size")  # given by NODE
MOVES = (
    Move(
        "axolotl.yaml", AXOLOTL, "torchtitan", ("sample_packing", "datasets"), changed=RANKS + EACH
    ),
    Move("axolotl.yaml", AXOLOTL, "trl", ("sample_packing",), changed=RANKS + EACH),
    Move("llama-factory.yaml", LLAMA_FACTORY, "torchtune", ("neat_packing",), changed=RANKS + EACH),
    Move("llama-factory.yaml", LLAMA_FACTORY, "axolotl", ("template",), changed=RANKS + EACH),
    Move("trainer.sh", TRAINER, "accelerate-fsdp", ("hub_strategy",), (), EACH),
    Move("trainer.sh", TRAINER, "lightning", ("hub_strategy",), (), EACH),
    Move("trainer.sh", TRAINER, "ms-swift", ("hub_strategy",), (), EACH),
    Move("megatron.sh", MEGATRON, "megatron-bridge", ("tokenizer_type",), MODEL),
    Move("megatron.sh", MEGATRON, "ms-swift", ("tokenizer_type",), MODEL),
)
