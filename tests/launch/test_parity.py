"""One job under every mode: the losses, gradient norms and weights of a single rank.

The reference is one rank with ZeRO stage 1 and four micro batches a step; every mode sees the same
samples in the same order. In fp32 the curves agree to 2e-4, in bf16 to 2e-2 over six steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from tiny_job import ds_config, write_job
from tiny_models import KINDS, write_kind

pytestmark = [pytest.mark.launch, pytest.mark.engine]

TENSOR = {"tensor_parallel": {"autotp_size": 2}}
PIPELINE = {"pipeline": {"stages": 2}}
SEQUENCE = {"sequence_parallel_size": 2}
BF16 = {"bf16": {"enabled": True}}
TENSORS = ("gpt_neox", "llama", "mistral", "qwen2", "qwen3")  # GPT-2 has no plan in transformers


class Runs:
    """Models and finished runs, each made once."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def model(self, kind: str) -> Path:
        """The folder of a tiny model."""
        folder = self.home / "models" / kind
        return folder if folder.exists() else write_kind(kind, folder)

    def output(self, name: str, kind: str, count: int, config: dict[str, Any], **job: Any) -> Path:
        """The output folder of a run on so many ranks."""
        folder = self.home / kind / name
        if not folder.exists():
            write_job(folder, self.model(kind), config, **{"steps": 6, **job})
            ranks.train(folder, count)
        return folder / "output"

    def alone(self, kind: str, **config: Any) -> Path:
        """The reference: one rank."""
        name = "-".join(("alone", *config))
        return self.output(name, kind, 1, ds_config(1, gradient_accumulation_steps=4, **config))

    def split(self, name: str, kind: str, stage: int, **config: Any) -> Path:
        """Two ranks that share one replica."""
        wanted = ds_config(stage, gradient_accumulation_steps=4, **config)
        return self.output(f"{name}-zero{stage}", kind, 2, wanted)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs that tests share."""
    return Runs(tmp_path_factory.mktemp("parity"))


def check_same(found: Path, expected: Path, tolerance: float = 2e-4) -> None:
    """Compare loss curve, gradient norms where there are any, and logits of the final weights."""
    losses = runs.figures(expected, "loss")
    norms = runs.figures(found, "gradient_norm")
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.1
    assert runs.figures(found, "loss") == pytest.approx(losses, abs=tolerance)
    if all(norms):
        expected_norms = runs.figures(expected, "gradient_norm")
        assert norms == pytest.approx(expected_norms, rel=max(1e-3, 5 * tolerance))
    difference = (logits(found) - logits(expected)).abs().max()
    assert float(difference) < 20 * tolerance


def logits(output: Path) -> Any:
    """What the exported model says."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(output / "model", dtype=torch.float32)
        return model(torch.arange(2, 40).reshape(2, 19)).logits


@pytest.mark.parametrize(
    "config", [TENSOR, PIPELINE, SEQUENCE], ids=["tensor", "pipeline", "sequence"]
)
def test_a_split_model_trains_as_a_whole_one(config: dict[str, Any], made: Runs) -> None:
    """Qwen3 (tied embeddings, normed queries) on two ranks of a replica, under ZeRO-1."""
    check_same(made.split("-".join(config), "qwen3", 1, **config), made.alone("qwen3"))


LONG = {"sequence_length": 256, "gradient_checkpointing": True}
SPARING = {**LONG, "offload_activations": True, "tiled_mlp": True}


@pytest.mark.parametrize(
    ("stage", "config"),
    [(3, {}), pytest.param(3, SEQUENCE, marks=pytest.mark.slow)],
    ids=["data", "sequence"],
)
def test_checkpoints_in_ram_and_tiled_mlps(stage: int, config: dict[str, Any], made: Runs) -> None:
    """Samples of four tiles on two ranks that shard everything; one rank that checkpoints alone."""
    steps = 4 if config else 2
    wanted = ds_config(stage, gradient_accumulation_steps=steps, **config)
    found = made.output("-".join(("tiles", *config)), "llama", 2, wanted, **SPARING)
    alone = ds_config(1, gradient_accumulation_steps=4)
    check_same(found, made.output("alone-long", "llama", 1, alone, **LONG))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("kind", TENSORS)
def test_tensor_parallel_kinds(kind: str, stage: int, made: Runs) -> None:
    """Every kind with a plan, under every ZeRO stage that AutoTP trains with."""
    check_same(made.split("tensor", kind, stage, **TENSOR), made.alone(kind))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_pipeline_kinds(kind: str, stage: int, made: Runs) -> None:
    """Every kind that is split into stages, under both ZeRO stages of the pipeline engine."""
    check_same(made.split("pipeline", kind, stage, **PIPELINE), made.alone(kind))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_stages_and_accumulation(stage: int, made: Runs) -> None:
    """Two data-parallel ranks with two micro batches each; one rank with one of eight."""
    check_same(made.output(f"zero{stage}", "llama", 2, ds_config(stage)), made.alone("llama"))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_sequence_parallel_kinds(kind: str, stage: int, made: Runs) -> None:
    """Ulysses on gloo ranks, under every ZeRO stage."""
    check_same(made.split("sequence", kind, stage, **SEQUENCE), made.alone(kind))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_shared_sequences_with_adapters_and_offload(stage: int, made: Runs) -> None:
    """What plans put together: the losses of one rank with the same adapters."""
    lora = {"rank": 4, "alpha": 8.0, "dropout": 0.0}
    zero = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
    config = ds_config(stage, gradient_accumulation_steps=4, zero_optimization=zero, **SEQUENCE)
    found = made.output(f"sequence-lora-{stage}", "llama", 2, config, lora=lora)
    alone = made.output(
        "alone-lora", "llama", 1, ds_config(1, gradient_accumulation_steps=4), lora=lora
    )

    assert runs.figures(found, "loss") == pytest.approx(runs.figures(alone, "loss"), abs=2e-4)


@pytest.mark.slow
def test_accumulation_of_one_step_and_of_four(made: Runs) -> None:
    """Eight samples at once or two at a time: the answers of long samples keep their weight."""
    whole = ds_config(1, gradient_accumulation_steps=1, train_micro_batch_size_per_gpu=8)

    check_same(made.output("at-once", "llama", 1, whole), made.alone("llama"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "offload"),
    [
        (1, {"offload_optimizer": {"device": "cpu"}}),
        (2, {"offload_optimizer": {"device": "cpu"}}),
        (3, {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}),
        (3, {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}),
    ],
    ids=["zero1", "zero2", "zero3", "zero3-partial"],
)
def test_offload(stage: int, offload: dict[str, Any], made: Runs) -> None:
    """States on the host, all of them or a part."""
    name = f"offload{stage}-{'-'.join(str(v) for b in offload.values() for v in b.values())}"
    config = ds_config(stage, zero_optimization={"stage": stage, **offload})

    check_same(made.output(name, "llama", 2, config), made.alone("llama"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3", "tensor", "pipeline", "sequence"])
def test_bf16(name: str, made: Runs) -> None:
    """The same curve as one rank in bf16, within what its 8 bits allow."""
    parts = {"tensor": TENSOR, "pipeline": PIPELINE, "sequence": SEQUENCE}
    stage = int(name[-1]) if name[-1].isdigit() else 1
    steps = 4 if name in parts else 2
    config = ds_config(stage, gradient_accumulation_steps=steps, **parts.get(name, {}), **BF16)

    check_same(made.output(f"bf16-{name}", "qwen3", 2, config), made.alone("qwen3", **BF16), 2e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [TENSOR, PIPELINE, SEQUENCE], ids=["tensor", "pipeline", "sequence"]
)
def test_two_replicas_of_two_ranks(config: dict[str, Any], made: Runs) -> None:
    """Four ranks: both axes at once."""
    name = f"four-{'-'.join(config)}"

    check_same(made.output(name, "llama", 4, ds_config(1, **config)), made.alone("llama"))


@pytest.mark.slow
@pytest.mark.parametrize("partition", [[1, 3], [4, 0], "uniform"], ids=["1-3", "4-0", "uniform"])
def test_stages_cut_elsewhere(partition: Any, made: Runs) -> None:
    """The cut does not change what is learnt; a stage may have the head alone."""
    config = {"pipeline": {"stages": 2, "partition": partition}}
    name = f"cut-{partition}".replace(" ", "")

    check_same(made.split(name, "gpt2", 1, **config), made.alone("gpt2"))


@pytest.mark.slow
@pytest.mark.parametrize("config", [TENSOR, PIPELINE], ids=["tensor", "pipeline"])
@pytest.mark.parametrize("kind", ["gpt_neox", "mistral"])
def test_packs_recomputation_and_validation(kind: str, config: dict[str, Any], made: Runs) -> None:
    """Positions of packs reach every stage, layers are recomputed, validation agrees."""
    job = {"packing": True, "sequence_length": 192, "gradient_checkpointing": True}
    job["data"] = {"train": "data.jsonl", "validation_fraction": 0.2}
    name = f"packs-{'-'.join(config)}"
    alone = made.output("packs-alone", kind, 1, ds_config(1, gradient_accumulation_steps=4), **job)
    wanted = ds_config(1, gradient_accumulation_steps=4, **config)
    found = made.output(name, kind, 2, wanted, **job)

    check_same(found, alone)
    expected = runs.figures(alone, "validation_loss")
    assert runs.figures(found, "validation_loss") == pytest.approx(expected, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [TENSOR, PIPELINE, SEQUENCE], ids=["tensor", "pipeline", "sequence"]
)
def test_resume_of_a_split_model(config: dict[str, Any], made: Runs) -> None:
    """Taken back to step 4, a split run gives its last two losses again to the last digit."""
    wanted = ds_config(1, gradient_accumulation_steps=4, **config)
    name = f"resume-{'-'.join(config)}"
    output = made.output(name, "qwen2", 2, wanted, checkpoint_every=4)
    undisturbed = runs.figures(output, "loss")
    back = ["--resume", "output/checkpoints/global_step4", "--overwrite", "--no-export"]
    ranks.train(output.parent, 2, *back)

    assert runs.figures(output, "loss") == undisturbed
