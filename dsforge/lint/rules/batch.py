"""Rules: batch sizes and their arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.case import Case, rule, shown

TOTAL, MICRO, STEPS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
CHECK = "DeepSpeed runtime/config.py, DeepSpeedConfig._batch_assertion"


@rule(
    "batch-missing",
    "warning",
    why="DeepSpeed needs the global or the micro batch size and derives the rest. Without both it "
    "stops, unless the program that loads the file puts one in.",
    evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._set_batch_related_parameters",
)
def batch_missing(case: Case) -> Iterator[Hit]:
    """Neither the global nor the micro batch size."""
    if case.at(TOTAL) is None and case.at(MICRO) is None:
        yield Hit((), f"neither `{TOTAL}` nor `{MICRO}` is set", f"set `{MICRO}`")


@rule(
    "batch-positive",
    "error",
    why="A batch of nothing is refused by an assertion, after all ranks are up.",
    evidence=f"{CHECK}; LIN-SHANG/InstructERC#16",
)
def batch_positive(case: Case) -> Iterator[Hit]:
    """A batch size that is not a positive whole number."""
    for key in (TOTAL, MICRO, STEPS):
        value = case.at(key)
        if value in (None, "auto"):
            continue
        if case.whole(key) is None or isinstance(value, float) or case.whole(key) < 1:  # type: ignore[operator]
            yield Hit((key,), f"`{key}` (={shown(value)}) must be a positive whole number")


@rule(
    "batch-half-auto",
    "warning",
    why="transformers fills each `auto` from its own arguments, on its own. A fixed value beside "
    "it agrees with the product only by luck, and then only on one number of GPUs.",
    evidence="transformers integrations/deepspeed.py, trainer_config_process; "
    "huggingface/blog#1270",
)
def batch_half_auto(case: Case) -> Iterator[Hit]:
    """Some batch sizes fixed, others `auto`."""
    fixed = [key for key in (TOTAL, MICRO) if case.whole(key) is not None]
    auto = [key for key in (TOTAL, MICRO, STEPS) if case.word(key) == "auto"]
    if fixed and auto:
        message = f"`{fixed[0]}` (={case.whole(fixed[0])}) is fixed and `{auto[0]}` is auto"
        yield Hit((fixed[0],), message, f'set `{fixed[0]}` to "auto" too')


@rule(
    "clipping-off",
    "info",
    why="DeepSpeed clips nothing unless told to; large language models are trained with a norm of "
    "1.0 (Brown et al. 2020), and one bad batch can otherwise undo hours.",
    evidence="DeepSpeed runtime/constants.py, GRADIENT_CLIPPING_DEFAULT",
)
def clipping_off(case: Case) -> Iterator[Hit]:
    """No gradient clipping."""
    written = case.at("gradient_clipping")
    if (written is None or case.number("gradient_clipping") == 0) and case.block("optimizer"):
        where = () if written is None else ("gradient_clipping",)
        yield Hit(where, "gradients are not clipped", "set `gradient_clipping` to 1.0")


@rule(
    "clipping-negative",
    "error",
    why="A norm below zero turns every gradient round or switches clipping off without a word.",
    evidence="DeepSpeed runtime/engine.py, gradient_clipping",
)
def clipping_negative(case: Case) -> Iterator[Hit]:
    """A negative norm for gradient clipping."""
    value = case.number("gradient_clipping")
    if value is not None and value < 0:
        yield Hit(("gradient_clipping",), f"`gradient_clipping` (={value}) must not be negative")


@rule(
    "drop-last-off",
    "info",
    why="Without it the last batch of an epoch can be smaller on some ranks, which ends in a hang "
    "where the model computes something only for full batches.",
    evidence="DeepSpeed runtime/dataloader.py; deepspeedai/DeepSpeed#1960",
)
def drop_last_off(case: Case) -> Iterator[Hit]:
    """The last, smaller batch is kept."""
    if case.is_off("dataloader_drop_last"):
        message = "`dataloader_drop_last` is false: the last batch may differ between ranks"
        yield Hit(("dataloader_drop_last",), message)
