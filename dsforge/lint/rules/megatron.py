"""Rules: Megatron argument files, one flag with its values a line.

The reader makes a mapping of them: `--tensor-model-parallel-size` -> `"8"`, a switch -> `""`.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from itertools import islice
from math import prod
from pathlib import Path

from dsforge.findings import Hit
from dsforge.lint.case import Case, rule, shown
from dsforge.lint.reading.marks import Loc
from dsforge.lint.rows import If, Row, rules

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
    for row in case.document.lines:
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
    for row in case.document.lines:
        flag = row.text.strip().split(" ")[0].split("=")[0]
        if flag.startswith("--") and flag in seen:
            yield Hit((), f"`{shown(flag)}` is given twice", "keep one", offset=row.start)
        seen.add(flag)


@rule(
    "megatron-groups",
    "error",
    "megatron",
    why="Query groups must be a multiple or a divisor of the tensor ranks.",
    evidence="megatron-core TransformerConfig.__post_init__; pytorch/torchtitan#2574",
)
def megatron_groups(case: Case) -> Iterator[Hit]:
    """Query groups that the tensor ranks cannot share."""
    size, groups = count_of(case, TP, 1), count_of(case, GROUPS)
    if groups and size > 1 and groups % size and size % groups:
        message = f"`{GROUPS}` (={groups}) must be a multiple or divisor of `{TP}` (={size})"
        yield Hit((GROUPS,), message)


@rule(
    "megatron-sequence",
    "error",
    "megatron",
    why="Each context rank takes two chunks of the sequence, so that causal work is even.",
    evidence="Megatron-LM megatron/core/utils.py, get_batch_on_this_cp_rank",
)
def megatron_sequence(case: Case) -> Iterator[Hit]:
    """A sequence that the context ranks cannot share."""
    ranks, length = count_of(case, CP, 1), count_of(case, "--seq-length")
    if ranks > 1 and length and length % (2 * ranks):
        yield Hit((CP,), f"`--seq-length` (={length}) must be a multiple of 2 x `{CP}` (={ranks})")


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


@rule(
    "megatron-batch",
    "error",
    "megatron",
    why="The global batch is micro batch x micro batches x data-parallel ranks.",
    evidence="megatron-core num_microbatches_calculator.py",
)
def megatron_batch(case: Case) -> Iterator[Hit]:
    """A global batch that the ranks cannot share."""
    micro, total = count_of(case, MICRO, 1), count_of(case, GLOBAL)
    model = prod(count_of(case, flag, 1) or 1 for flag in (TP, PP, CP))
    ranks = case.cluster.gpus if case.cluster else 0
    if ranks and ranks % model:
        yield Hit((TP,), f"tensor x pipeline x context (={model}) must divide the {ranks} cards")
        return
    each = max(1, micro) * (ranks // model if ranks else 1)
    if total and total % each:
        yield Hit((GLOBAL,), f"`{GLOBAL}` (={total}) must be a multiple of {each}")


@rule(
    "megatron-tensor-node",
    "warning",
    "megatron",
    why="Tensor ranks exchange activations four times a layer; across nodes that runs at the speed "
    "of the network.",
    evidence="Narayanan et al. 2021, section 3.2",
)
def megatron_tensor_node(case: Case) -> Iterator[Hit]:
    """Tensor parallelism across nodes."""
    size = count_of(case, TP, 1)
    if case.cluster and size > case.cluster.gpus_per_node:
        message = f"`{TP}` (={size}) is above the {case.cluster.gpus_per_node} cards of a node"
        yield Hit((TP,), message)


ROWS = rules(
    Row(
        "megatron-value",
        "error",
        If(" ".join(SIZES), "no size"),
        "`{key}` (={value}) must be a whole number above 0",
        title="A size that is no whole number.",
        why="Sizes are whole numbers above 0.",
        evidence=ARGUMENTS + ", validate_args",
        kinds=("megatron",),
    ),
    Row(
        "megatron-heads",
        "error",
        If(TP, "does not divide", HEADS),
        "`{key}` (={value}) must divide `{operand}` (={of})",
        title="Heads that the tensor ranks cannot share.",
        why="Each tensor rank holds whole attention heads.",
        evidence="megatron-core TransformerConfig.__post_init__ (tried)",
        kinds=("megatron",),
    ),
    Row(
        "megatron-layers",
        "error",
        If(PP, "does not divide", LAYERS),
        "`{key}` (={value}) must divide `{operand}` (={of})",
        title="Layers that the stages cannot share.",
        why="Layers are shared evenly over stages, unless the first and last are given their "
        "own number; an old version dropped the rest without a word.",
        evidence="NVIDIA/Megatron-LM#1304 (30 layers on 4 stages trained 28)",
        when=(*(If(flag, "absent") for flag in UNEVEN),),
        kinds=("megatron",),
    ),
    Row(
        "megatron-experts",
        "error",
        If(EP, "does not divide", "--num-experts"),
        "`{key}` (={value}) must divide `{operand}` (={of})",
        title="Experts that the expert ranks cannot share.",
        why="Each expert rank holds whole experts.",
        evidence="megatron-core TransformerConfig.__post_init__",
        kinds=("megatron",),
    ),
    Row(
        "megatron-positions",
        "error",
        If("--seq-length", "above", "--max-position-embeddings"),
        "`{key}` (={value}) is above `{operand}` (={of})",
        title="A sequence longer than the positions.",
        why="Positions beyond the table have no embedding.",
        evidence=ARGUMENTS + ", validate_args",
        when=(If("--max-position-embeddings", "above", 0),),
        kinds=("megatron",),
    ),
    Row(
        "megatron-precision",
        "error",
        If("--fp16", "present"),
        "`--fp16` and `--bf16` are both given",
        "keep `--bf16`",
        title="fp16 and bf16 together.",
        why="Weights have one type.",
        evidence=ARGUMENTS + ", validate_args",
        when=(If("--bf16", "present"),),
        kinds=("megatron",),
    ),
    Row(
        "megatron-overlap",
        "error",
        If("--use-distributed-optimizer --overlap-grad-reduce", "absent"),
        "`--overlap-param-gather` needs `{key}`",
        "add it",
        title="Overlap of a gather that does not happen.",
        why="The gather that is to be overlapped belongs to the distributed optimizer, and it "
        "follows the overlapped reduction.",
        evidence=ARGUMENTS + ", validate_args",
        when=(If("--overlap-param-gather", "present"),),
        at="--overlap-param-gather",
        kinds=("megatron",),
    ),
)
