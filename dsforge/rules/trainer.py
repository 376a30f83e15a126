"""What `dsforge train` can do with a kind of model: its chunked loss, and Ulysses.

Asked twice: by the planner, of a model's numbers, and by the trainer, of the model that it has
loaded (`train/parallel/modes.py`). So a plan and a run agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dsforge.errors import Problem
from dsforge.layout import Layout
from dsforge.rules.case import Case, Rule, divisors, listed
from dsforge.specs import ModelSpec

# `model_type`s whose `forward` changes the logits after the output layer (scales, caps, copies).
WHOLE_LOGITS: tuple[str, ...] = (
    *("cohere", "cohere2", "falcon", "gemma2", "gemma3_text", "granite", "granitemoe"),
    *("granitemoeshared", "nemotron_h", "opt", "vaultgemma"),
)

# `model_type`s that give the same on two ranks as on one (tests/engine/test_sequence_kinds.py).
SEQUENCE_KINDS: tuple[str, ...] = (
    *("arcee", "cohere", "cohere2", "cwm", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4"),
    *("flex_olmo", "gemma", "gemma3_text", "glm", "glm4", "glm4_moe", "granite", "granitemoe"),
    *("granitemoeshared", "helium", "hunyuan_v1_dense", "internlm3", "iquestcoder", "jais2"),
    *("llama", "minimax_m2", "ministral", "ministral3", "mistral", "mixtral", "nemotron", "olmo"),
    *("olmo2", "olmo3", "olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3"),
    *("qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2"),
)


def is_split(layout: Layout) -> bool:
    """Whether the output layer is one of AutoTP or of the pipeline engine."""
    return layout.tensor_parallel_size > 1 or layout.pipeline_parallel_size > 1


def holds_whole_logits(model: ModelSpec, *, split: bool) -> bool:
    """Whether `dsforge train` holds the logits of a whole micro batch.

    Where it cannot ask the output layer for the loss (`train/model/answer_loss.py`).
    """
    return split or model.model_type in WHOLE_LOGITS


def chunked_loss(case: Case) -> Problem | None:
    """A chunked loss asked of a trainer that holds whole logits.

    `dsforge train` has it for most models; Megatron-LM has none.
    """
    if case.strategy.runs_as.loss != "chunked":
        return None
    if case.on_megatron:
        return Problem(
            "chunked-loss",
            "`loss` (=chunked) must be plain with Megatron-LM, which holds whole logits",
            "use --loss plain, or --for deepspeed",
        )
    if holds_whole_logits(case.model, split=is_split(case.layout)):
        return Problem(
            "chunked-loss",
            "`loss` (=chunked) must be plain where the output layer is split or something follows "
            f"it ({case.model.name}, {case.layout.label()})",
            "use --loss plain, or neither tensor nor pipeline parallelism",
        )
    return None


class Heads(NamedTuple):
    """What Ulysses needs to know of attention."""

    model_type: str | None
    attention_heads: int
    kv_heads: int | None  # none: the configuration does not say
    latent: bool = False  # keys and values of different width
    windowed: bool = False


def sequence_problems(size: int, heads: Heads, *, attention: str = "sdpa") -> Iterator[Problem]:
    """Why `size` ranks cannot share the tokens of a sample.

    `ulysses_sp.py` gives each rank all tokens of some of the heads, and drops masks: it leaves
    attention causal and nothing else.
    """
    kind = heads.model_type
    if heads.attention_heads % size:
        yield _not_shared("sequence-heads", size, "attention heads", heads.attention_heads)
    if heads.kv_heads is None or heads.latent or not (kind is None or kind in SEQUENCE_KINDS):
        message = f"the heads of models of type {kind} must not be shared out by Ulysses (={size})"
        yield Problem("sequence-model", message, "use pipeline stages or ZeRO-3 instead")
    elif size % heads.kv_heads and heads.kv_heads % size:
        yield _not_shared("sequence-kv-heads", size, "key/value heads", heads.kv_heads)
    if heads.windowed and attention != "flash_attention_2":
        message = "a sliding window must have flash_attention_2: sequence parallelism drops masks"
        yield Problem("sequence-window", message, "use flash_attention_2")


def _not_shared(rule: str, size: int, what: str, count: int) -> Problem:
    message = f"the sequence parallel size (={size}) must divide the {what} (={count})"
    return Problem(rule, message, f"use {listed(divisors(count))}")


def sequence_sharing(case: Case) -> Problem | None:
    """Ulysses asked for a model, or beside a second copy of the weights, that it does not go with.

    hpZ: DeepSpeed makes its groups without those of the sequence. Ours: not tested together.
    """
    size, model = case.layout.context_parallel_size, case.model
    if case.on_megatron or size == 1:
        return None
    copies = case.strategy.hpz_partition_size
    if copies > 1:
        return Problem(
            "sequence-hpz",
            f"`hpz_partition_size` (={copies}) must be 1 with sequence parallelism (={size}) in "
            "DeepSpeed",
            "use hpz_partition_size 1",
        )
    return next(sequence_problems(size, heads_of(model)), None)


def heads_of(model: ModelSpec) -> Heads:
    """The heads of a model; a size without a kind is a Llama."""
    return Heads(
        model.model_type,
        model.attention_heads,
        model.kv_heads,
        latent=model.mla is not None,
        windowed=model.sliding_window is not None,
    )


RULES: tuple[Rule, ...] = (chunked_loss, sequence_sharing)
