"""The `torch` block of train.yaml: what is read of it, and what is refused before ranks meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsforge.constraints import ModelShape
from dsforge.constraints.torch import torch_model_problems, torch_stage_problems
from dsforge.errors import SpecError
from dsforge.job import TorchSettings, TrainJob
from dsforge.reading.job import read_job
from dsforge.train.engines.plain_torch.config import read_config, shared
from dsforge.train.parallel.engine_config import EngineConfig

LEAST = {"model": "m", "data": {"train": "t"}, "sequence_length": 8}


def read(
    torch: dict[str, Any], world_size: int = 4, kept: int | None = None, **more: Any
) -> EngineConfig:
    """The config of a job with a `torch` block."""
    job = TrainJob.model_validate({**LEAST, **more, "torch": torch})
    return read_config(job, Path(), world_size, kept)


@pytest.mark.parametrize(
    ("torch", "stage"),
    [
        ({"strategy": "ddp"}, 0),
        ({"strategy": "zero1"}, 1),
        ({"sharding": "gradients"}, 2),
        ({}, 3),
        ({"sharding": "hybrid", "shard_size": 2}, 3),
    ],
)
def test_a_strategy_shards_as_a_zero_stage(torch: dict[str, Any], stage: int) -> None:
    """What a measurement and a checkpoint say of it."""
    assert read(torch).zero_stage == stage


def test_accumulation_makes_the_global_batch() -> None:
    """Without a global batch it is the product, and a resume keeps that of the checkpoint."""
    torch = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
    first = read(torch)
    then = read(torch, world_size=8, kept=32)

    assert (first.asked_batch_size, first.gradient_accumulation_steps) == (32, 2)
    assert (then.micro_batch_size, then.gradient_accumulation_steps) == (4, 1)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.sampled_from((1, 2, 4)))
def test_a_share_is_whole_or_refused(total: int, replicas: int, micro: int, tensor: int) -> None:
    """The micro batch never grows; refused ranks are told those that can, and these can."""
    torch = TorchSettings(micro_batch_size=micro, tensor_parallel_size=tensor)
    if total % replicas == 0:
        share = shared(torch, total, replicas)
        assert share.micro * share.steps * replicas == total
        assert share.micro <= micro
        return
    with pytest.raises(SpecError) as caught:
        shared(torch, total, replicas)
    (problem,) = caught.value.problems
    named = [int(word) for word in problem.hint.replace(",", " ").split() if word.isdigit()]
    assert named
    for ranks in named[:3]:
        assert ranks % tensor == 0
        assert total % (ranks // tensor) == 0


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("torch-fsdp2-only", {"strategy": "ddp", "cpu_offload": True}, {}, "requires strategy fsdp2"),
    ("torch-fsdp2-only", {"strategy": "zero1", "tensor_parallel_size": 2}, {}, "fsdp2"),
    ("torch-fsdp2-only", {"strategy": "ddp", "sharding": "hybrid"}, {}, "torch.sharding=hybrid"),
    ("torch-fsdp2-only", {"strategy": "ddp", "no_sync": True}, {}, "torch.no_sync"),
    ("torch-shard-size", {"shard_size": 2}, {}, "requires sharding hybrid (got full)"),
    (
        "torch-batch-twice",
        {"global_batch_size": 8, "gradient_accumulation_steps": 2},
        {},
        "leave one of them out",
    ),
    ("torch-fsdp2-only", {"strategy": "ddp", "pipeline_parallel_size": 2}, {}, "fsdp2"),
    ("torch-split", {"pipeline_parallel_size": 2}, {"packing": True}, "`packing` cannot be"),
    ("torch-split", {"pipeline_parallel_size": 2, "cpu_offload": True}, {}, "`torch.cpu_offload`"),
    ("torch-split", {"tensor_parallel_size": 2}, {"lora": {"rank": 4}}, "`lora` cannot be"),
    ("torch-split", {"tensor_parallel_size": 2, "precision": "fp16"}, {}, "precision=fp16"),
    ("torch-qlora", {}, {"lora": {"rank": 4, "bits": 4}}, "QLoRA (`lora.bits` 4)"),
    ("torch-optimizer-states", {}, {"optimizer_states": "8bit"}, "8bit"),
    ("torch-model-ranks", {"tensor_parallel_size": 3}, {}, "a multiple of 3 ranks"),
    (
        "torch-model-ranks",
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 3},
        {},
        "a multiple of 6 ranks",
    ),
    ("torch-shard-ranks", {"sharding": "hybrid", "shard_size": 3}, {}, "1, 2 or 4"),
    ("batch-resume", {"global_batch_size": 6}, {}, "start 1, 2, 3 or 6 ranks"),
]


@pytest.mark.parametrize(("rule", "torch", "more", "said"), REFUSED)
def test_what_cannot_run_is_refused(
    rule: str, torch: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    """One line with the value, the rule and the way out."""
    with pytest.raises(SpecError) as caught:
        read(torch, **more)

    assert rule in {problem.rule for problem in caught.value.problems}
    assert said in str(caught.value) or any(said in str(p) for p in caught.value.problems)
    assert all(problem.hint for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("shape", "rules"),
    [
        (ModelShape(attention_heads=8, kv_heads=8, tensor_styles=frozenset(("colwise",))), []),
        (
            ModelShape(attention_heads=8, kv_heads=1, tensor_styles=frozenset(("rowwise",))),
            ["torch-tensor-heads"],
        ),
        (ModelShape(model_type="gpt2", tensor_styles=frozenset()), ["torch-tensor-model"]),
        (ModelShape(tensor_styles=frozenset(("moe_tp_experts",))), ["torch-tensor-model"]),
    ],
)
def test_a_model_that_ranks_cannot_share_is_refused(shape: ModelShape, rules: list[str]) -> None:
    """By its plan in transformers and its heads."""
    assert [problem.rule for problem in torch_model_problems(2, shape)] == rules


@pytest.mark.parametrize(
    ("shape", "tied", "rules"),
    [
        (ModelShape(model_type="llama", layers=4), False, []),
        (ModelShape(model_type="llama", layers=4), True, ["torch-stages-tied"]),
        (ModelShape(model_type="gemma2", layers=4), False, ["torch-stages-model"]),
        (ModelShape(model_type="gpt2", layers=4), False, ["torch-stages-model"]),
        (ModelShape(model_type="gpt_neox", layers=1), False, ["torch-stages-layers"]),
    ],
)
def test_a_model_without_stages_is_refused(shape: ModelShape, tied: bool, rules: list[str]) -> None:
    """By its kind, its layers and its embeddings."""
    assert [problem.rule for problem in torch_stage_problems(2, shape, tied=tied)] == rules
    assert not list(torch_stage_problems(1, shape, tied=tied))


def test_a_job_has_one_engine(tmp_path: Path) -> None:
    """A DeepSpeed config or a `torch` block: neither and both are told."""
    start = "model: m\nsequence_length: 8\ndata: {train: t}\n"
    for text, said in (
        ("", "`deepspeed_config` is missing (or give a `torch` block"),
        ("deepspeed_config: d.json\ntorch: {}\n", "cannot be combined with `torch`"),
        ("torch: {strategy: fsdp}\n", "`torch.strategy` (=fsdp) must be `ddp`, `zero1` or `fsdp2`"),
    ):
        (tmp_path / "train.yaml").write_text(start + text)
        with pytest.raises(SpecError) as caught:
            read_job(tmp_path / "train.yaml")
        (problem,) = caught.value.problems
        assert said in str(problem)
