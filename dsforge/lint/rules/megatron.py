"""Rules: Megatron argument files, one flag with its values a line.

The reader makes a mapping of them: `--tensor-model-parallel-size` -> `"8"`, a switch -> `""`.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from itertools import islice
from pathlib import Path

from dsforge.findings import Hit
from dsforge.lint.case import Case, rule, shown
from dsforge.lint.reading.document import Loc

FLAGS = Path(__file__).parents[1] / "schemas" / "megatron_flags.txt"
ARGUMENTS = "Megatron-LM megatron/training/arguments.py"
TP, PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
CP, EP = "--context-parallel-size", "--expert-model-parallel-size"
MICRO, GLOBAL = "--micro-batch-size", "--global-batch-size"
HEADS, GROUPS, LAYERS = "--num-attention-heads", "--num-query-groups", "--num-layers"
MOST_UNKNOWN = 50  # the search for similar ones is slow
UNEVEN = (
    *("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"),
    *("--pipeline-model-parallel-layout", "--account-for-embedding-in-pipeline-split"),
)
SIZES = (TP, PP, CP, EP, MICRO, GLOBAL, HEADS, GROUPS, LAYERS, "--hidden-size", "--seq-length")


@cache
def known_flags() -> frozenset[str]:
    """Every flag that `scripts/megatron_flags.py` found."""
    return frozenset(FLAGS.read_text(encoding="utf-8").split())


def count_of(case: Case, flag: str, default: int = 0) -> int:
    """The whole number behind a flag; the default where it is absent or no number."""
    text = case.at(flag)
    return int(text) if isinstance(text, str) and text.isdigit() and len(text) < 12 else default  # noqa: PLR2004


def has(case: Case, flag: str) -> bool:
    """Whether the flag is there."""
    return case.at(flag) is not None


@rule(
    "megatron-line",
    "error",
    "megatron",
    why="Arguments are split at blanks: a value without its flag is a positional argument, which "
    "the parser refuses.",
    evidence=ARGUMENTS + ", parse_args",
)
def megatron_line(case: Case) -> Iterator[Hit]:
    """A line that does not begin with a flag."""
    for row in case.document.rows:
        text = row.text.strip()
        if text and not text.startswith(("-", "#")):
            yield Hit((), f"`{shown(text)}` is no flag", "begin with `--`", offset=row.start)


@rule(
    "megatron-flag-misspelt",
    "error",
    "megatron",
    why="argparse refuses a flag that it does not know, on every rank.",
    evidence=ARGUMENTS + "; read from it by scripts/megatron_flags.py",
)
def megatron_flag_misspelt(case: Case) -> Iterator[Hit]:
    """A flag that Megatron does not have, nearly like one that it has."""
    strange = (flag for flag in case.block() if flag not in known_flags())
    for flag in islice(strange, MOST_UNKNOWN):
        dashes = flag.replace("_", "-")
        near = [dashes] if dashes in known_flags() else []
        near = near or get_close_matches(flag[:60], known_flags(), n=1, cutoff=0.85)
        if near:
            yield Hit(
                (flag,), f"`{shown(flag)}` is no flag of Megatron", f"did you mean `{near[0]}`?"
            )


@rule(
    "megatron-flag-twice",
    "warning",
    "megatron",
    why="The last one wins, for a reader who sees the first.",
    evidence="Python's argparse",
)
def megatron_flag_twice(case: Case) -> Iterator[Hit]:
    """A flag that is given twice."""
    seen: set[str] = set()
    for row in case.document.rows:
        flag = row.text.strip().split(" ")[0].split("=")[0]
        if flag.startswith("--") and flag in seen:
            yield Hit((), f"`{shown(flag)}` is given twice", "keep one", offset=row.start)
        seen.add(flag)


@rule(
    "megatron-value",
    "error",
    "megatron",
    why="Sizes are whole numbers above 0.",
    evidence=ARGUMENTS + ", validate_args",
)
def megatron_value(case: Case) -> Iterator[Hit]:
    """A size that is no whole number."""
    for flag in SIZES:
        if has(case, flag) and count_of(case, flag) < 1:
            yield Hit((flag,), f"`{flag}` (={shown(case.at(flag))}) must be a whole number above 0")


def _divides(case: Case, flag: str, of: str, default: int) -> Iterator[Hit]:
    """A hit where one size does not divide another."""
    size, whole = count_of(case, flag, 1), count_of(case, of, default)
    if size > 1 and whole and whole % size:
        yield Hit((flag,), f"`{flag}` (={size}) must divide `{of}` (={whole})")


@rule(
    "megatron-layers",
    "error",
    "megatron",
    why="Layers are shared evenly over stages, unless the first and last are given their own "
    "number; an old version dropped the rest without a word.",
    evidence="NVIDIA/Megatron-LM#1304 (30 layers on 4 stages trained 28)",
)
def megatron_layers(case: Case) -> Iterator[Hit]:
    """Layers that the stages cannot share."""
    if not any(has(case, flag) for flag in UNEVEN):
        yield from _divides(case, PP, LAYERS, 0)


@rule(
    "megatron-precision",
    "error",
    "megatron",
    why="Weights have one type.",
    evidence=ARGUMENTS + ", validate_args",
)
def megatron_precision(case: Case) -> Iterator[Hit]:
    """fp16 and bf16 together."""
    if has(case, "--fp16") and has(case, "--bf16"):
        yield Hit(("--fp16",), "`--fp16` and `--bf16` are both given", "keep `--bf16`")


@rule(
    "megatron-sequence-parallel",
    "warning",
    "megatron",
    why="Sequence parallelism splits activations over tensor ranks: with one it is switched off, "
    "and with experts and several it is needed.",
    evidence=ARGUMENTS + ", validate_args",
)
def megatron_sequence_parallel(case: Case) -> Iterator[Hit]:
    """Sequence parallelism that does not fit the tensor ranks."""
    on, size = has(case, "--sequence-parallel"), count_of(case, TP, 1)
    if on and size == 1:
        yield Hit(("--sequence-parallel",), f"`--sequence-parallel` does nothing with `{TP}` 1")
    if not on and size > 1 and has(case, "--num-experts"):
        yield Hit((TP,), "experts with tensor parallelism need `--sequence-parallel`", "add it")


@rule(
    "megatron-overlap",
    "error",
    "megatron",
    why="The gather that is to be overlapped belongs to the distributed optimizer, and it "
    "follows the overlapped reduction.",
    evidence=ARGUMENTS + ", validate_args",
)
def megatron_overlap(case: Case) -> Iterator[Hit]:
    """Overlap of a gather that does not happen."""
    if not has(case, "--overlap-param-gather"):
        return
    for flag in ("--use-distributed-optimizer", "--overlap-grad-reduce"):
        if not has(case, flag):
            yield Hit(
                ("--overlap-param-gather",), f"`--overlap-param-gather` needs `{flag}`", "add it"
            )


@rule(
    "megatron-recompute",
    "error",
    "megatron",
    why="Full recomputation needs a method and a number of layers; selective takes neither.",
    evidence=ARGUMENTS + ", validate_args",
)
def megatron_recompute(case: Case) -> Iterator[Hit]:
    """Recomputation flags that do not go together."""
    loc: Loc = ("--recompute-granularity",)
    kind = case.at("--recompute-granularity")
    if kind == "full" and not has(case, "--recompute-method"):
        yield Hit(loc, "full recomputation needs `--recompute-method`", "add `uniform`")
    if kind == "selective" and has(case, "--recompute-method"):
        yield Hit(("--recompute-method",), "selective recomputation takes no method", "remove it")
