"""Rules: values against the types, limits and choices that a release of DeepSpeed checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsforge.findings import Hit
from dsforge.lint.checked_file import CheckedFile, quoted, rule, shown
from dsforge.lint.rules.keys import CLOSED, near

TRUTH = ("true", "false", "yes", "no", "on", "off", "1", "0", "t", "f", "y", "n")
WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "str": "text",
}
LARGEST = 2.0**63  # of a whole number that is written as `1e30`
LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
BROKEN = {
    "ge": lambda value, limit: value < limit,
    "gt": lambda value, limit: value <= limit,
    "le": lambda value, limit: value > limit,
    "lt": lambda value, limit: value >= limit,
}
UNCHECKED: dict[str, tuple[tuple[type, ...], str]] = {
    "optimizer.type": ((str,), "the name of an optimizer"),
    "optimizer.params": ((dict,), "a block"),
    "scheduler.type": ((str,), "the name of a schedule"),
    "scheduler.params": ((dict,), "a block"),
    "checkpoint.parallel_write.pipeline_stage": ((bool,), "true or false"),
    "data_types.keep_in_fp32_modules": ((list,), "a list of names"),
    "vocabulary_size": ((int, float), "a number"),
    "pipeline": ((dict,), "a block"),
}
REFUSES_NULL = ("checkpoint.parallel_write.pipeline_stage",)
FILLED = {  # by transformers (trainer_config_process, trainer_config_finalize) and accelerate
    "": "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
    "gradient_clipping steps_per_print",
    "fp16": "enabled",
    "bf16": "enabled",
    "zero_optimization": "reduce_bucket_size stage3_prefetch_bucket_size stage "
    "stage3_param_persistence_threshold stage3_gather_16bit_weights_on_model_save "
    "stage3_max_live_parameters stage3_max_reuse_distance",
    "zero_optimization.offload_optimizer": "device nvme_path",
    "zero_optimization.offload_param": "device nvme_path",
}


@rule(
    "block-type",
    "error",
    why="DeepSpeed reads keys of this block: any other value, null included, raises a "
    "TypeError on every rank.",
    evidence="DeepSpeed runtime/config.py, the readers of each block",
)
def block_type(file: CheckedFile) -> Iterator[Hit]:
    """A value where a block is required."""
    for entry in file.entries:
        if entry.type != "block" or isinstance(entry.value, dict) or entry.value == "auto":
            continue
        optional = entry.value is None and (entry.closed or entry.key == "aio")
        boolean = entry.key == "zero_optimization" and isinstance(entry.value, bool)
        if not optional and not boolean:
            message = f"`{entry.key}` (={shown(entry.value)}) must be a block"
            yield Hit(entry.loc, message, 'write {"enabled": true}' if entry.value is True else "")


@rule(
    "value-fraction",
    "error",
    fixable=True,
    why="Sizes are whole numbers of elements. A fraction of hidden_size squared is usually "
    "not a whole number, and the check runs after all ranks have started.",
    evidence="deepspeedai/DeepSpeed#6525, hiyouga/LlamaFactory#5252, "
    "huggingface/transformers#36081",
)
def value_fraction(file: CheckedFile) -> Iterator[Hit]:
    """A fraction where a whole number is required."""
    for entry in file.entries:
        value = entry.value
        unchecked = bool(entry.path) and not entry.closed
        if unchecked or entry.type != "int" or not isinstance(value, float):
            continue
        if value != int(value):
            whole = int(value) or 1  # 0 is refused or switches something off
            edits = file.document.replaced(entry.loc, whole)
            message = f"`{entry.key}` (={value!r}) must be a whole number"
            yield Hit(entry.loc, message, f"use {whole}", edits)


@rule(
    "value-type",
    "error",
    why="The block checks the types of its values; a text that is not a number stops every rank.",
    evidence=CLOSED,
)
def value_type(file: CheckedFile) -> Iterator[Hit]:
    """A value of the wrong type."""
    for entry in file.entries:
        value = entry.value
        wrong = entry.closed and _is_wrong(entry.type, value)
        null = value is None and not (entry.life or {"null": True}).get("null")
        if wrong or (null and entry.closed and entry.type != "block"):
            message = f"`{entry.key}` (={shown(value)}) must be {WORDS.get(entry.type, 'set')}"
            yield Hit(entry.loc, message)


def _is_wrong(kind: str, value: Any) -> bool:
    """Whether pydantic refuses the value for a field of that type."""
    if value is None or value == "auto" or kind not in WORDS:
        return False
    if kind in ("list", "str"):
        return not isinstance(value, str) and (kind == "str" or not isinstance(value, list))
    if isinstance(value, str):
        return value.lower() not in TRUTH if kind == "bool" else not _parses(kind, value)
    if kind == "bool":
        return not isinstance(value, bool) and value not in (0, 1)
    return isinstance(value, (dict, list))


def _parses(kind: str, text: str) -> bool:
    try:
        int(text) if kind == "int" else float(text)
    except ValueError:
        return False
    return True


@rule(
    "value-quoted",
    "warning",
    fixable=True,
    why="pydantic converts the text, but programs that read the file before DeepSpeed use "
    "it as text.",
    evidence="transformers integrations/deepspeed.py compares values of the file with its own",
)
def value_quoted(file: CheckedFile) -> Iterator[Hit]:
    """A number or boolean in quotes."""
    for entry in file.entries:
        value, kind = entry.value, entry.type
        choices = entry.life.get("choices", []) if entry.life else []
        if _is_quoted_choice(value, choices):
            meant = next(choice for choice in choices if str(choice) == value)
            edits = file.document.replaced(entry.loc, meant)
            yield Hit(
                entry.loc, f"`{entry.key}` (={quoted(value)}) is text", f"write {meant}", edits
            )
            continue
        if not isinstance(value, str) or kind not in ("int", "float", "bool") or value == "auto":
            continue
        if not entry.closed or _is_wrong(kind, value):
            continue
        plain = value.lower() in ("true", "yes", "on", "1", "t", "y")
        right: Any = plain if kind == "bool" else int(value) if kind == "int" else float(value)
        edits = file.document.replaced(entry.loc, right)
        yield Hit(
            entry.loc, f"`{entry.key}` (={shown(value)}) is text", f"write {shown(right)}", edits
        )


@rule(
    "value-truthy",
    "error",
    why='Nothing checks the type here: any non-empty text counts as true, even `"false"`.',
    evidence="DeepSpeed runtime/config_utils.py, get_scalar_param",
)
def value_truthy(file: CheckedFile) -> Iterator[Hit]:
    """Text where a boolean is used unchecked."""
    for entry in file.entries:
        unchecked = entry.type == "bool" and not entry.closed
        if unchecked and isinstance(entry.value, (str, list, dict)) and entry.value != "auto":
            message = f"`{entry.key}` (={shown(entry.value)}) counts as true"
            yield Hit(entry.loc, message, "write true or false")


@rule(
    "value-range",
    "error",
    why="The block checks the limits of its values when it is read, on every rank.",
    evidence=CLOSED,
)
def value_range(file: CheckedFile) -> Iterator[Hit]:
    """A value outside its limits."""
    for entry in file.entries:
        value = _as_number(entry.value) if entry.type in ("int", "float") else None
        if not entry.life or value is None:
            continue
        if entry.type == "int" and isinstance(value, float) and abs(value) >= LARGEST:
            yield Hit(entry.loc, f"`{entry.key}` (={shown(value)}) must fit in 64 bits")
        for name, limit in entry.life.get("limits", {}).items():
            if BROKEN[name](value, limit):
                message = f"`{entry.key}` (={shown(value)}) must be {LIMITS[name]} {limit:g}"
                yield Hit(entry.loc, message)


def _as_number(value: Any) -> float | None:
    """The number that pydantic makes of a value before it checks limits; none where it refuses."""
    if isinstance(value, str):
        return float(value) if _parses("float", value) and value.isascii() else None
    return value if isinstance(value, (int, float)) else None


@rule(
    "value-choice",
    "error",
    fixable=True,
    why="Only the listed values are accepted.",
    evidence=CLOSED,
)
def value_choice(file: CheckedFile) -> Iterator[Hit]:
    """A value that is not among the choices."""
    for entry in file.entries:
        choices = entry.life.get("choices", []) if entry.life else []
        value = entry.value
        if not choices or value == "auto" or _is_choice(value, choices):
            continue
        right = near(value, [str(c) for c in choices]) if isinstance(value, str) else ""
        edits = file.document.replaced(entry.loc, right) if right else ()
        listed = ", ".join(str(choice) for choice in choices)
        yield Hit(
            entry.loc, f"`{entry.key}` (={shown(value)}) must be one of {listed}", right, edits
        )


def _is_quoted_choice(value: Any, choices: list[Any]) -> bool:
    """Whether the value is a choice in quotes, and no choice itself."""
    written = isinstance(value, str) and value not in choices
    return written and value in [str(choice) for choice in choices]


def _is_choice(value: Any, choices: list[Any]) -> bool:
    """Whether pydantic takes the value for one of the choices; it makes 3 of `"3"`."""
    if _is_quoted_choice(value, choices):
        return True
    return not isinstance(value, (dict, list)) and value in choices


@rule(
    "value-shape",
    "error",
    why="DeepSpeed uses the value without a check of its own, or with one that comes after all "
    "ranks have started: another shape ends the run.",
    evidence="DeepSpeed runtime/config.py, get_optimizer_name, get_optimizer_params, "
    "get_checkpoint_parallel_write_pipeline, DeepSpeedConfig._initialize_params",
)
def value_shape(file: CheckedFile) -> Iterator[Hit]:
    """A value of another shape than the engine uses."""
    for path, (kinds, words) in UNCHECKED.items():
        loc = tuple(path.split("."))
        value = file.at(*loc)
        null = value is None and (path not in REFUSES_NULL or loc[-1] not in file.block(*loc[:-1]))
        if not null and value != "auto" and not isinstance(value, kinds):
            yield Hit(loc, f"`{loc[-1]}` (={quoted(value)}) must be {words}")


@rule(
    "value-auto",
    "warning",
    why="transformers and accelerate fill in a fixed list of keys. Elsewhere inside a "
    "block DeepSpeed drops `auto` silently and takes its default; at the top level it "
    "reaches arithmetic.",
    evidence="transformers integrations/deepspeed.py, trainer_config_process; DeepSpeed "
    "runtime/config_utils.py, DeepSpeedConfigModel.__init__",
)
def value_auto(file: CheckedFile) -> Iterator[Hit]:
    """`auto` where no program fills it in."""
    for entry in file.entries:
        if entry.value != "auto" or not entry.life:
            continue
        open_block = entry.path and not entry.closed
        if not open_block and entry.key not in FILLED.get(entry.path, "").split():
            yield Hit(
                entry.loc,
                f"`auto` is not filled in for `{entry.key}`",
                "write a value, or leave it out",
            )
