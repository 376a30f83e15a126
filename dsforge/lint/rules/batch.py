"""Rules: batch sizes and their arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.checked_file import CheckedFile, quoted, rule
from dsforge.lint.conditions import If
from dsforge.lint.rows import Row, rules

TOTAL, MICRO, STEPS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
CHECK = "DeepSpeed runtime/config.py, DeepSpeedConfig._batch_assertion"


@rule(
    "batch-positive",
    "error",
    why="An assertion refuses an empty batch, after all ranks have started.",
    evidence=f"{CHECK}; LIN-SHANG/InstructERC#16",
)
def batch_positive(file: CheckedFile) -> Iterator[Hit]:
    """A batch size that is not a positive whole number."""
    for key in (TOTAL, MICRO, STEPS):
        value = file.at(key)
        if value in (None, "auto"):
            continue
        if file.whole(key) is None or isinstance(value, float) or file.whole(key) < 1:  # type: ignore[operator]
            yield Hit((key,), f"`{key}` (={quoted(value)}) must be a positive whole number")


@rule(
    "batch-half-auto",
    "warning",
    why="transformers fills in each `auto` independently, from its own arguments. A fixed "
    "global batch then matches the product only by chance, and only on one number of GPUs.",
    evidence="transformers integrations/deepspeed.py, trainer_config_process; "
    "huggingface/blog#1270",
)
def batch_half_auto(file: CheckedFile) -> Iterator[Hit]:
    """A fixed global batch size with parts that are `auto`."""
    total = file.whole(TOTAL)
    auto = [key for key in (MICRO, STEPS) if file.word(key) == "auto"]
    if total is not None and auto:
        message = f"`{TOTAL}` (={total}) is fixed and `{auto[0]}` is auto"
        yield Hit((TOTAL,), message, f'set `{TOTAL}` to "auto" too')


@rule(
    "clipping-off",
    "info",
    why="DeepSpeed does not clip unless configured to; large language models are trained "
    "with a norm of 1.0 (Brown et al. 2020), and one bad batch can otherwise undo "
    "hours of training.",
    evidence="DeepSpeed runtime/constants.py, GRADIENT_CLIPPING_DEFAULT",
)
def clipping_off(file: CheckedFile) -> Iterator[Hit]:
    """No gradient clipping."""
    written = file.at("gradient_clipping")
    if (written is None or file.number("gradient_clipping") == 0) and file.block("optimizer"):
        where = () if written is None else ("gradient_clipping",)
        yield Hit(where, "gradients are not clipped", "set `gradient_clipping` to 1.0")


ROWS = rules(
    Row(
        "batch-missing",
        "warning",
        If("train_batch_size", "missing"),
        "neither `train_batch_size` nor `train_micro_batch_size_per_gpu` is set",
        "set `train_micro_batch_size_per_gpu`",
        title="Neither the global nor the micro batch size is set.",
        why="DeepSpeed needs the global or the micro batch size and derives the rest. Without "
        "both it stops, unless the program that loads the file sets one.",
        evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._set_batch_related_parameters",
        when=(
            If("train_micro_batch_size_per_gpu", "missing"),
            If("autotuning", "no block"),  # the tuner tries sizes
            If("@name", "does not name", ("template",)),
        ),
        at="",
    ),
    Row(
        "clipping-negative",
        "error",
        If("gradient_clipping", "below", 0),
        "`{key}` (={number}) must not be negative",
        title="A negative clipping norm.",
        why="A norm below zero reverses every gradient, or switches clipping off silently.",
        evidence="DeepSpeed runtime/engine.py, gradient_clipping",
    ),
    Row(
        "drop-last-off",
        "info",
        If("dataloader_drop_last", "off"),
        "`{key}` is false: the last batch may differ between ranks",
        title="The last, smaller batch is not dropped.",
        why="The last batch of an epoch can then be smaller on some ranks, which causes a hang "
        "where the model communicates only for full batches.",
        evidence="DeepSpeed runtime/dataloader.py; deepspeedai/DeepSpeed#1960",
    ),
)
