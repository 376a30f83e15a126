"""Small files of each style, with what their programs make of them: one case for one rule."""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    """Texts by name, and fields of the setup that follow; `open` are fields nobody knows."""

    name: str
    texts: dict[str, str]
    setup: dict[str, Any]
    open: tuple[str, ...] = ()


HF = "--output_dir o --per_device_train_batch_size 2"
DS3 = (
    '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}, '
    '"train_batch_size": "auto"}'
)
MEGATRON = (
    "--num-layers 32 --hidden-size 64 --num-attention-heads 8 --seq-length 128 "
    "--micro-batch-size 2 --global-batch-size 64 "
)
NEOX = '{"model_parallel_size": 2, "num_layers": 8, "hidden_size": 64, "seq_length": 128, '
TITAN = (
    '[model]\nname = "llama3"\n[training]\nlocal_batch_size = 2\n[optimizer]\nlr = 1e-4\n'
    '[activation_checkpoint]\nmode = "full"\n[parallelism]\n'
)
FSDP = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n"
    "num_machines: 2\nnum_processes: 16\n"
)


def _fsdp(strategy: str) -> dict[str, str]:
    return {"a.yaml": f"{FSDP}fsdp_config:\n  fsdp_sharding_strategy: {strategy}\n"}


CASES = (
    Case(
        "a script whose first line starts Python",
        {"a.sh": f"CUDA_VISIBLE_DEVICES=0,1,2 python t.py {HF} --bf16\n"},
        {"gpus_per_node": 3, "nodes": 1, "precision": "bf16", "global_batch_size": 6},
    ),
    Case(
        "a program of its own under DeepSpeed",
        {"a.sh": "torchrun --nproc_per_node 2 own.py --deepspeed ds.json\n", "ds.json": DS3},
        {"zero_stage": 3, "engine": "deepspeed", "gpus_per_node": 2},
    ),
    Case(
        "defaults of TrainingArguments",
        {"a.sh": "torchrun --nproc_per_node 4 t.py --save_strategy no --eval_strategy no\n"},
        {
            "micro_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "learning_rate": 5e-5,
            "precision": "fp32",
            "zero_stage": 0,
            "global_batch_size": 32,
        },
    ),
    Case(
        "values that only the run knows",
        {"a.sh": f"torchrun --nproc_per_node=$GPUS --nnodes $(hostname) t.py {HF} --bf16 $X\n"},
        {"gpus_per_node": None, "nodes": None, "global_batch_size": None},
        ("gpus_per_node", "nodes", "precision"),
    ),
    Case(
        "arithmetic, arrays and conditions",
        {
            "a.sh": "G=${GPUS:-8}\nA=(--bf16 --gradient_accumulation_steps $((G / 2)))\n"
            'if [ "$G" -gt 4 ]; then M=3; else M=5; fi\n'
            f'torchrun --nproc_per_node $G t.py {HF} "${{A[@]}}" --per_device_train_batch_size $M\n'
        },
        {"gpus_per_node": 8, "gradient_accumulation_steps": 4, "micro_batch_size": 3},
    ),
    Case(
        "options of a script that nobody gives",
        {
            "a.sh": 'B=4\nwhile [[ "$1" != "" ]]; do\n'
            "case $1 in -b) shift; B=$1;; esac; shift; done\n"
            "torchrun --nproc_per_node 2 t.py --output_dir o --per_device_train_batch_size $B\n"
        },
        {"micro_batch_size": 4, "global_batch_size": 8},
    ),
    Case(
        "a ds_config beside, with offload that counts at stage 3",
        {"a.sh": f"deepspeed --num_gpus 4 t.py {HF} --deepspeed x/ds.json\n", "ds.json": DS3},
        {"zero_stage": 3, "offload_parameters": "cpu", "nodes": 1, "global_batch_size": 8},
    ),
    Case(
        "offload of parameters below stage 3 is ignored",
        {"ds.json": DS3.replace("3", "2")},
        {"zero_stage": 2, "offload_parameters": "none"},
    ),
    Case(
        "a ds_config that was not given, by its name",
        {
            "a.sh": f"deepspeed --include localhost:0,1 t.py {HF} --deepspeed"
            " conf/zero2_offload.json\n"
        },
        {"zero_stage": 2, "offload_optimizer": "cpu", "gpus_per_node": 2},
    ),
    Case("full sharding", _fsdp("FULL_SHARD"), {"zero_stage": 3, "gpus_per_node": 8}),
    Case("sharding of gradients", _fsdp("SHARD_GRAD_OP"), {"zero_stage": 2, "shard_group": None}),
    Case("no sharding", _fsdp("NO_SHARD"), {"zero_stage": 0}),
    Case("hybrid sharding", _fsdp("HYBRID_SHARD"), {"zero_stage": 3, "shard_group": 8}),
    Case("sharding by number", _fsdp("2"), {"zero_stage": 2}),
    Case(
        "FSDP2 that keeps weights",
        {"a.yaml": FSDP + "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n"},
        {"zero_stage": 2, "engine": "fsdp"},
    ),
    Case(
        "flags win over the file of accelerate",
        {
            "a.sh": f"accelerate launch --config_file c.yaml --num_processes 4 t.py {HF}\n",
            "c.yaml": FSDP.replace("2\n", "1\n"),
        },
        {"gpus_per_node": 4, "nodes": 1},
    ),
    Case(
        "LLaMA-Factory: LoRA of rank 8, scale 16, checkpointing, length 2048",
        {
            "a.yaml": "model_name_or_path: m/n\nstage: sft\ndo_train: true\n"
            "template: t\ndataset: d\n"
        },
        {
            "adapter": "lora",
            "lora_rank": 8,
            "lora_alpha": 16.0,
            "recompute": "full",
            "sequence_length": 2048,
            "micro_batch_size": 8,
        },
        ("precision",),
    ),
    Case(
        "LLaMA-Factory: 4 bits are QLoRA",
        {"a.yaml": "finetuning_type: lora\nquantization_bit: 4\nbf16: true\ncutoff_len: 512\n"},
        {"adapter": "qlora", "precision": "bf16", "sequence_length": 512},
    ),
    Case(
        "axolotl: auto is bf16",
        {
            "a.yml": "base_model: m/n\ndatasets: []\nmicro_batch_size: 2\n"
            "adapter: lora\nbf16: auto\n"
        },
        {"precision": "bf16", "adapter": "lora", "recompute": "none", "sequence_length": 512},
    ),
    Case(
        "axolotl: fp32 where both are off",
        {"a.yml": "base_model: m\ndatasets: []\nmicro_batch_size: 2\nbf16: false\nfp16: false\n"},
        {"precision": "fp32", "adapter": "none"},
    ),
    Case(
        "ms-swift: steps that make 16 samples",
        {"a.sh": "NPROC_PER_NODE=4 swift sft --model m/n --per_device_train_batch_size 2\n"},
        {"gradient_accumulation_steps": 2, "global_batch_size": 16, "adapter": "lora"},
    ),
    Case(
        "ms-swift: built-in ds_config",
        {
            "a.sh": "CUDA_VISIBLE_DEVICES=0,1 swift pt --model m --train_type full"
            " --deepspeed zero3_offload\n"
        },
        {
            "zero_stage": 3,
            "offload_optimizer": "cpu",
            "offload_parameters": "cpu",
            "adapter": "none",
        },
    ),
    Case(
        "torchtune: the recipe of the comment",
        {
            "a.yaml": "# tune run --nnodes 2 --nproc_per_node 8"
            " lora_finetune_distributed --config x\n"
            "model:\n  _component_: torchtune.models.llama3.lora_llama3_8b\nbatch_size: 2\n"
            "tokenizer:\n  _component_: t\noptimizer:\n  _component_: torch.optim.AdamW\n"
        },
        {"zero_stage": 3, "nodes": 2, "adapter": "lora", "lora_rank": 8, "global_batch_size": 32},
    ),
    Case(
        "torchtitan: -1 is all other ranks",
        {"a.toml": TITAN + "tensor_parallel_degree = 4\ndata_parallel_shard_degree = -1\n"},
        {"zero_stage": 3, "tensor_parallel_size": 4, "data_parallel_size": None},
    ),
    Case(
        "torchtitan: shards and replicas",
        {"a.toml": TITAN + "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4\n"},
        {"zero_stage": 3, "shard_group": 4, "data_parallel_size": 8, "global_batch_size": 16},
    ),
    Case(
        "Megatron: data-parallel ranks follow",
        {
            "a.sh": f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {MEGATRON} --bf16 "
            "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
            "--num-layers-per-virtual-pipeline-stage 4 --use-distributed-optimizer\n"
        },
        {
            "data_parallel_size": 4,
            "gradient_accumulation_steps": 8,
            "virtual_stages": 4,
            "zero_stage": 1,
        },
    ),
    Case(
        "Megatron: a file of arguments",
        {"args.txt": MEGATRON.replace(" --", "\n--") + "\n--fp16\n--recompute-activations\n"},
        {"precision": "fp16", "recompute": "selective", "global_batch_size": 64, "zero_stage": 0},
    ),
    Case(
        "GPT-NeoX: 0 and 1 are no pipeline",
        {"a.yml": NEOX + '"pipe_parallel_size": 0, "precision": "bfloat16"}'},
        {"pipeline_parallel_size": 1, "tensor_parallel_size": 2, "precision": "bf16"},
    ),
    Case(
        "GPT-NeoX: several files",
        {
            "a.yml": NEOX + '"pipe_parallel_size": 4}',
            "b.yml": '{"pos_emb": "rotary", "no_weight_tying": true, '
            '"zero_optimization": {"stage": 1}}',
        },
        {"pipeline_parallel_size": 4, "zero_stage": 1},
    ),
    Case(
        "Slurm: headers and what they launch",
        {
            "a.slurm": "#!/bin/bash\n#SBATCH --nodes=4 --exclusive\n#SBATCH --gres=gpu:a100:8\n"
            f"srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE t.py {HF}\n"
        },
        {"nodes": 4, "gpus_per_node": 8, "global_batch_size": 64},
    ),
    Case(
        "Slurm: one task a device",
        {
            "a.slurm": "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\n"
            f"srun python t.py {HF}\n"
        },
        {"nodes": 2, "gpus_per_node": 4},
    ),
    Case(
        "OpenRLHF: accumulation of the batch of a step",
        {
            "a.sh": "deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --train_batch_size 256 "
            "--micro_train_batch_size 2 --zero_stage 3 --adam_offload --lora_rank"
            " 16 --load_in_4bit\n"
        },
        {"gradient_accumulation_steps": 16, "offload_optimizer": "cpu", "adapter": "qlora"},
    ),
    Case(
        "Colossal-AI: plugins",
        {
            "a.sh": "colossalai run --nproc_per_node 4 train.py --plugin zero2_cpu"
            " --batch_size 2 --tp 2\n"
        },
        {"zero_stage": 2, "offload_optimizer": "cpu", "tensor_parallel_size": 2, "nodes": 1},
    ),
    Case(
        "Lightning: strategies of its CLI",
        {
            "a.yaml": "trainer:\n  devices: 4\n  num_nodes: 2\n  precision: bf16-mixed\n"
            "  strategy: deepspeed_stage_3_offload\n  accumulate_grad_batches: 2\n"
            "data:\n  init_args:\n    batch_size: 3\n"
        },
        {"zero_stage": 3, "offload_optimizer": "cpu", "global_batch_size": 48, "precision": "bf16"},
    ),
    Case(
        "Lightning: a strategy in Python",
        {
            "a.py": "import lightning as L\nSTAGE = 2\n"
            "s = L.pytorch.strategies.DeepSpeedStrategy(stage=STAGE, offload_optimizer=True)\n"
            "t = L.Trainer(devices=[0, 1], strategy=s, precision='16-mixed', max_epochs=1)\n"
        },
        {"zero_stage": 2, "offload_optimizer": "cpu", "gpus_per_node": 2, "precision": "fp16"},
    ),
    Case(
        "TrainingArguments in Python, with constants and defaults of arguments",
        {
            "a.py": "import argparse\np = argparse.ArgumentParser()\n"
            "p.add_argument('--micro', type=int, default=2)\nargs = p.parse_args()\nBATCH = 64\n"
            "t = TrainingArguments(output_dir='o', per_device_train_batch_size=args.micro,\n"
            "  gradient_accumulation_steps=BATCH // 2, bf16=True)\n"
            "c = LoraConfig(r=4, lora_alpha=8)\nb = BitsAndBytesConfig(load_in_4bit=True)\n"
        },
        {
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 32,
            "adapter": "qlora",
            "lora_rank": 4,
        },
    ),
    Case(
        "Megatron-Bridge: assignments to a recipe",
        {
            "a.py": "cfg = llama3_8b_pretrain_config()\ncfg.model.tensor_model_parallel_size = 2\n"
            "cfg.model.context_parallel_size = 2\ncfg.train.global_batch_size = 128\n"
            "cfg.train.micro_batch_size = 1\n"
        },
        {"tensor_parallel_size": 2, "context_parallel_size": 2, "global_batch_size": 128},
    ),
    Case(
        "NeMo: YAML",
        {
            "a.yaml": "trainer: {devices: 8, num_nodes: 2, precision: bf16}\nmodel:\n"
            "  micro_batch_size: 1\n  global_batch_size: 64\n  tensor_model_parallel_size: 4\n"
            "  optim: {name: distributed_fused_adam}\n"
            "  activations_checkpoint_granularity: selective\n"
        },
        {"zero_stage": 1, "data_parallel_size": 4, "recompute": "selective", "precision": "bf16"},
    ),
)
