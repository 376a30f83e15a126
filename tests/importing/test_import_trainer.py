"""Which engine an import prices: torch's replicas where nothing else is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from import_scoring import cases, read_case

import dsforge
from dsforge.importing.read import read_texts
from dsforge.importing.styles import colossalai

MULTI_GPU = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 8\n"
TRAINER = "python train.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --bf16"
ARGUMENTS = (
    "from transformers import TrainingArguments\nargs = TrainingArguments('out', bf16=True)\n"
)
REPLICAS: dict[str, Mapping[str, str]] = {
    "accelerate on several devices": {"accelerate.yaml": MULTI_GPU},
    "accelerate on one": {
        "accelerate.yaml": "distributed_type: 'NO'\nnum_processes: 1\nmixed_precision: bf16\n"
    },
    "torchrun": {"run.sh": TRAINER.replace("python", "torchrun --nproc_per_node 8")},
    "one device": {"run.sh": TRAINER},
    "a source": {"train.py": ARGUMENTS},
    "lightning": {
        "train.yaml": "trainer:\n  strategy: ddp\n  devices: 8\n  precision: bf16-mixed\n"
    },
    "axolotl": {"axolotl.yml": "base_model: gpt2\nmicro_batch_size: 2\nsequence_len: 512\n"},
    "adapters": {"q.yml": "base_model: gpt2\nadapter: qlora\nload_in_4bit: true\n"},
}
OTHERS: dict[str, tuple[Mapping[str, str], str | None]] = {
    "deepspeed": ({"run.sh": TRAINER + " --deepspeed zero2.json"}, "deepspeed"),
    "fsdp": ({"run.sh": TRAINER + " --fsdp full_shard"}, "fsdp"),
    "accelerate's FSDP": ({"a.yaml": MULTI_GPU.replace("MULTI_GPU", "FSDP")}, "fsdp"),
    "tensor parallel": (
        {"a.yaml": MULTI_GPU + "parallelism_config:\n  parallelism_config_tp_size: 2\n"},
        None,
    ),
    "a strategy of its own": (
        {"train.yaml": "trainer:\n  strategy: mine\n  devices: 8\n  precision: bf16-mixed\n"},
        None,
    ),
    "a hybrid plugin": (
        {"run.sh": "colossalai run --nproc_per_node 8 train.py --plugin 3d --tp 1 -b 4"},
        None,
    ),
}


@pytest.mark.parametrize("name", REPLICAS)
def test_without_an_engine_it_is_replicas_of_torch(name: str) -> None:
    """One device, or DDP; the reason is where the sharding is."""
    found = read_texts(REPLICAS[name])

    assert found.setup.engine == "ddp", found.styles
    assert found.setup.zero_stage == 0


@pytest.mark.parametrize("name", OTHERS)
def test_another_engine_or_an_open_one_stays(name: str) -> None:
    """What the files name, and nothing where they leave it open."""
    texts, engine = OTHERS[name]

    assert read_texts(texts).setup.engine == engine


def test_public_files_have_replicas_exactly_where_they_name_nothing_else() -> None:
    """Every file of the corpus: neither sharding, nor a split model, nor an engine."""
    wrong, replicas = [], 0
    for case in cases():
        found = read_case(case)
        setup = found.setup
        named = any(held.field == "engine" and held.origin != "derived" for held in found.said)
        sizes = (setup.tensor_parallel_size, setup.pipeline_parallel_size)
        whole = (*sizes, setup.context_parallel_size, setup.expert_parallel_size) == (1, 1, 1, 1)
        plain = setup.zero_stage == 0 and whole and found.style != colossalai.STYLE.name
        replicas += setup.engine == "ddp"
        if not named and (setup.engine == "ddp") != plain:
            wrong.append(case.name)

    assert wrong == []
    assert replicas > 20


@pytest.mark.parametrize("name", REPLICAS)
def test_it_is_priced_as_replicas(name: str, tmp_path: Path) -> None:
    """On one card or on each, in scripts of others."""
    for file, text in REPLICAS[name].items():
        (tmp_path / file).write_text(text)
    found = dsforge.import_config(tmp_path / file, model="gpt2", cluster="a100-80gb")

    assert found.plan is not None, found.not_priced
    strategy = found.plan.strategy
    assert strategy.runs_as.trainer == "ddp"
    assert strategy.runs_as.software == "others"
    assert strategy.zero_stage == 0


FACTORY = "model_name_or_path: gpt2\nfinetuning_type: full\ntemplate: default\ncutoff_len: 512\n"
AXOLOTL = "base_model: gpt2\nmicro_batch_size: 2\nsequence_len: 512\n"
LIGER_PARTS = ("liger_rms_norm", "liger_glu_activation", "liger_rope")
KERNELS: dict[str, tuple[Mapping[str, str], tuple[str | None, str | None, bool]]] = {
    "Trainer": ({"run.sh": TRAINER + " --use_liger_kernel True"}, ("fused", "fused", False)),
    "Trainer without": ({"run.sh": TRAINER + " --use_liger_kernel False"}, (None, None, False)),
    "LLaMA-Factory": (
        {"sft.yaml": FACTORY + "enable_liger_kernel: true\npure_bf16: true\n"},
        ("fused", "fused", True),
    ),
    "axolotl, the loss": (
        {"a.yml": AXOLOTL + "liger_fused_linear_cross_entropy: true\n"},
        ("fused", None, False),
    ),
    "axolotl, all": (
        {
            "a.yml": AXOLOTL
            + "liger_cross_entropy: true\n"
            + "".join(f"{key}: true\n" for key in LIGER_PARTS)
        },
        ("fused_cross_entropy", "fused", False),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_and_types_that_a_file_switches_on_are_read(name: str) -> None:
    """Liger's loss and layers, and training in bf16 alone."""
    files, expected = KERNELS[name]
    setup = read_texts(files).setup

    assert (setup.loss, setup.kernels, setup.bf16_states) == expected


SWITCHES = {
    "LLaMA-Factory": ("sft.yaml", FACTORY + "freeze_vision_tower: false\n", "all"),
    "its projector": ("sft.yaml", FACTORY + "freeze_multi_modal_projector: false\n", "projector"),
    "both": (
        "sft.yaml",
        FACTORY + "freeze_multi_modal_projector: false\nfreeze_vision_tower: false\n",
        "all",
    ),
    "frozen": ("sft.yaml", FACTORY + "freeze_vision_tower: true\n", None),
    "ms-swift": (
        "run.sh",
        "swift sft --model Qwen/Qwen2.5-VL-7B-Instruct --freeze_vit false --freeze_aligner false",
        "all",
    ),
    "Qwen2.5-VL": (
        "run.sh",
        TRAINER + " --tune_mm_vision False --tune_mm_mlp True --tune_mm_llm True",
        "projector",
    ),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_what_trains_of_a_vision_tower_is_read(name: str) -> None:
    """Switches that freeze, and switches that train; who trains the tower trains its projector."""
    file, text, expected = SWITCHES[name]

    assert read_texts({file: text}).setup.vision_training == expected


MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 4 --bf16 "
    "--num-layers 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 128 "
)
NEMO = (
    "model:\n  tensor_model_parallel_size: 4\n  encoder_seq_length: 4096\n  micro_batch_size: 1\n"
)
OVERLAPS = {
    "Megatron-LM": ("run.sh", MEGATRON + "--sequence-parallel --tp-comm-overlap", True),
    "Megatron-LM without": ("run.sh", MEGATRON + "--sequence-parallel", False),
    "NeMo": ("gpt.yaml", NEMO + "  ub_tp_comm_overlap: true\n", True),
    "NeMo without": ("gpt.yaml", NEMO + "  ub_tp_comm_overlap: false\n", False),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_overlap_of_tensor_parallel_collectives_is_read(name: str) -> None:
    """Transformer Engine's user buffers, by the flag of Megatron-LM and the key of NeMo."""
    file, text, expected = OVERLAPS[name]

    assert read_texts({file: text}).setup.overlaps_tensor is expected


def test_what_is_read_of_kernels_is_priced(tmp_path: Path) -> None:
    """Less memory with Liger's loss, and less again in bf16 alone; DeepSpeed keeps its masters."""

    def estimated(more: str) -> tuple[float, str]:
        path = tmp_path / "sft.yaml"
        path.write_text(FACTORY.replace("gpt2", "llama-3.2-1b").replace("512", "8192") + more)
        found = dsforge.import_config(path, cluster={"gpu": "h100-80gb", "gpus_per_node": 8})
        assert found.plan is not None, found.not_priced
        plan = found.plan
        return plan.choice.memory.allocated_bytes.likely, plan.strategy.label()

    plain, _ = estimated("bf16: true\n")
    fused, _ = estimated("bf16: true\nenable_liger_kernel: true\n")
    narrow, label = estimated("enable_liger_kernel: true\npure_bf16: true\n")

    assert plain > fused > narrow
    assert "bf16 states" in label
