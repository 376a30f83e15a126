"""Whose file a mapping is: the kind of file, or the other program that it belongs to.

Keys that only DeepSpeed has decide alone. Keys that trainers have too (`bf16`, `optimizer`) decide
only together and in DeepSpeed's shape, and the keys of another program decide against them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import PurePath
from typing import Any, NamedTuple

from dsforge.importing.programs import Match, match_of
from dsforge.lint.reading.document import Kind
from dsforge.lint.schemas.accelerate_keys import KEYS, OF_SAGEMAKER
from dsforge.lint.schemas.releases import frozen

DECIDING = (
    *("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"),
    "zero_allow_untested_optimizer",
)
BLOCKS = (  # that other programs have as a word or a boolean
    *("fp16", "bf16", "optimizer", "scheduler", "activation_checkpointing", "aio", "pipeline"),
    *("tensor_parallel", "compile", "wandb", "tensorboard", "checkpoint"),
)
HALVES = ("fp16", "bf16")  # a block in DeepSpeed, a boolean elsewhere
ACCELERATE = ("compute_environment", "distributed_type")
WITH_ACCELERATE = ("deepspeed_config", "num_processes", "mixed_precision", "num_machines")
OF_TRAIN = ("data", "sequence_length")  # of train.yaml, which shares other keys with trainers
NAMES = re.compile(r"ds[_-]?conf|^deepspeed|zero[_-]?[0-3]", re.IGNORECASE)
CERTAIN_NAME = re.compile(r"ds[_-]?conf", re.IGNORECASE)
NEAR, NEAR_TO_DECIDING = 0.75, 0.85  # similarity from which a key is a misspelt one
LONGEST_COMPARED = 60
LOOKED_AT = 50  # keys from which the kind is told
FEWEST_STRANGE = 3  # keys that DeepSpeed does not have, before they decide anything
TEXT_KEY = re.compile(r"""^(?:\{?[ \t]*)["']?([A-Za-z_][\w-]*)["']?[ \t]*:""", re.MULTILINE)
OUTER_KEY = re.compile(r"""^["']?([A-Za-z_][\w-]*)["']?[ \t]*:""", re.MULTILINE)


class Told(NamedTuple):
    """What a file is taken for, and why it is not judged where it is of no known kind."""

    kind: Kind
    reason: str = ""


def told_of(name: str, root: Any) -> Told:
    """What a mapping is taken for, by its keys, their shapes and its name."""
    if not isinstance(root, dict):
        named = root is not None and CERTAIN_NAME.search(PurePath(name).name)
        return Told("ds_config" if named else "unknown")
    keys = [str(key) for key in root][:LOOKED_AT]
    match = match_of(keys)
    of_train = match is None or any(key in keys for key in OF_TRAIN)
    engine = isinstance(root.get("deepspeed_config"), str) or isinstance(root.get("torch"), dict)
    if engine and of_train:
        return Told("train")
    if _is_of_accelerate(keys):
        return Told("accelerate")
    return _as_ds_config(name, root, keys, match)


def told_of_text(name: str, text: str) -> Told:
    """What a text is taken for that could not be read to its end, by the keys in it."""
    keys = dict.fromkeys(TEXT_KEY.findall(text))
    if CERTAIN_NAME.search(PurePath(name).name):
        return Told("ds_config")
    if _is_of_accelerate([*keys][:LOOKED_AT]):
        return Told("accelerate")
    outer = dict.fromkeys(OUTER_KEY.findall(text)) or keys  # `stage` within a block is nobody's
    telling = (*DECIDING, *HALVES)
    ours = match_of(outer) is None and any(key in outer for key in telling)
    return Told("ds_config" if ours else "unknown")


def _is_of_accelerate(keys: list[str]) -> bool:
    """Whether keys are accelerate's: trainers that pass some of them on have many of their own."""
    signs = sum(key in ACCELERATE for key in keys)
    if signs == len(ACCELERATE):
        return True
    strange = sum(key not in KEYS and key not in OF_SAGEMAKER for key in keys)
    telling = signs or sum(key in WITH_ACCELERATE for key in keys) > 1
    return bool(telling) and strange * 2 <= len(keys)


def _as_ds_config(name: str, root: Mapping[str, Any], keys: list[str], match: Match | None) -> Told:
    """A ds_config, or nothing that lint knows."""
    decided = any(_is_distinctive(key, root[key]) for key in keys if key in root)
    halves = any(isinstance(root.get(key), dict) for key in HALVES)
    shaped = _has_shape(root, keys)
    telling_name = NAMES.search(PurePath(name).name)
    if not (decided or halves or shaped or telling_name):
        return Told("unknown", "" if match is None else _belongs(root, match))
    strange = _foreign_keys(keys)
    many = len(strange) >= FEWEST_STRANGE
    if match is not None and (not decided or (many and len(strange) * 3 >= len(keys))):
        return Told("unknown", _belongs(root, match))
    if many and len(strange) * 2 > len(keys):
        why = f"{len(strange)} of its {len(keys)} keys are not keys of DeepSpeed"
        return Told("unknown", f"probably not a ds_config: {why}" if decided else "")
    named = telling_name and len(strange) < max(len(keys), 1)
    ours = decided or named or (halves and not strange) or shaped
    return Told("ds_config" if ours else "unknown")


def _belongs(root: Mapping[str, Any], match: Match) -> str:
    """The program whose file it is, and the ds_config that it names."""
    named = root.get("deepspeed")
    text = f"{match.program.file}, which lint does not check"
    if isinstance(named, str) and named.endswith((".json", ".yaml", ".yml")):
        text += f"; the ds_config that it names is {named[:LONGEST_COMPARED]}"
    return text


def _is_distinctive(key: str, value: Any) -> bool:
    """Whether a key, or a misspelt form of it, is one that only DeepSpeed has, in its shape."""
    if key not in DECIDING:
        close = _nearest(key[:LONGEST_COMPARED].lower(), DECIDING, NEAR_TO_DECIDING)
        return bool(close) and _fits(close, value)
    return True


@lru_cache(maxsize=4096)  # the files of a folder repeat their keys
def _nearest(key: str, known: tuple[str, ...], cutoff: float) -> str:
    """The known key that a key resembles most; empty where it resembles none."""
    return next(iter(get_close_matches(key, known, 1, cutoff)), "")


def _fits(key: str, value: Any) -> bool:
    """Whether a value has the shape that a deciding key wants."""
    if key == "zero_optimization":
        return isinstance(value, dict)
    return isinstance(value, bool | int | float) or value == "auto"


def _has_shape(root: Mapping[str, Any], keys: list[str]) -> bool:
    """Whether at least two keys are DeepSpeed's, one of them a block that others have otherwise."""
    known = frozen().blocks[""].keys
    ours = [key for key in keys if key in known and not _is_misshaped(key, root.get(key))]
    return len(ours) > 1 and any(isinstance(root.get(key), dict) for key in ours)


def _is_misshaped(key: str, value: Any) -> bool:
    if key in ("optimizer", "scheduler"):
        return not isinstance(value, dict) or not ("type" in value or "params" in value)
    return key in BLOCKS and not isinstance(value, dict)


def _foreign_keys(keys: list[str]) -> list[str]:
    """Keys that DeepSpeed does not have anywhere, not even misspelt."""
    blocks = frozen().blocks
    known = tuple(blocks[""].keys)
    rest = [key for key in keys if key not in blocks[""].keys and not is_remark(key)]
    if not rest:
        return []
    inner = {key for path, block in blocks.items() if path for key in block.keys}
    return [
        key
        for key in rest
        if key not in inner and not _nearest(key[:LONGEST_COMPARED].lower(), known, NEAR)
    ]


def is_remark(key: str) -> bool:
    """Whether a key is there for readers: `_comment`, `//`, `note`."""
    return key.startswith(("_", "//", "$", "#")) or key.lower().rstrip("s0123456789_-") in (
        *("comment", "note", "description", "name", "remark", "doc"),
    )
