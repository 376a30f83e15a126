"""Rules: Megatron argument files, and the flags of launch scripts.

The reader makes a mapping of them: `--tensor-model-parallel-size` -> `"8"`, a switch -> `""`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from itertools import islice
from pathlib import Path

from dsforge.findings import Hit, Severity
from dsforge.lint.checked_file import CheckedFile, rule, shown
from dsforge.lint.conditions import If
from dsforge.lint.reading.argument_lines import words_of
from dsforge.lint.rows import Look, Row, rules
from dsforge.lint.rules.keys import MOST_SLIPS, edits_between

PROGRAM = re.compile(r"(?<![\w-])[\w-]+\.py\b")
SCHEMAS = Path(__file__).parents[1] / "schemas"
FLAGS = (SCHEMAS / "megatron_flags.txt", SCHEMAS / "megatron_deepspeed_flags.txt")
ARGUMENTS = "Megatron-LM megatron/training/arguments.py"
TP, PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
CP, EP = "--context-parallel-size", "--expert-model-parallel-size"
MICRO, GLOBAL = "--micro-batch-size", "--global-batch-size"
VIRTUAL = "--num-virtual-stages-per-pipeline-rank"
LAYERS_OF_CHUNK = "--num-layers-per-virtual-pipeline-stage"
HEADS, GROUPS, LAYERS = "--num-attention-heads", "--num-query-groups", "--num-layers"
MOST_UNKNOWN = 50  # the search for similar ones is slow
FEWEST_STRANGE = 2  # unknown flags that are slips; more than a tenth of all are a fork's
OF_LAUNCHERS = frozenset(  # torchrun, deepspeed and srun, which a script calls
    f"--{name}"
    for name in (
        "nproc_per_node nnodes node_rank master_addr master_port rdzv_id rdzv_backend log_dir tee "
        "rdzv_endpoint max_restarts nproc-per-node node-rank master-addr master-port rdzv-id role "
        "log-dir rdzv-backend rdzv-endpoint rdzv-conf max-restarts redirects standalone module "
        "no-python num_nodes num_gpus num_accelerators hostfile include exclude launcher no_ssh "
        "launcher_args no_local_rank num-nodes num-gpus deepspeed deepspeed_config nodes ntasks "
        "ntasks-per-node gres cpus-per-task gpus-per-node gpus-per-task job-name jobid partition "
        "account qos time output error exclusive wait kill-on-bad-exit cpu-bind mem overlap "
        "nodelist constraint"
    ).split()
)
UNEVEN = (
    *("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"),
    *("--pipeline-model-parallel-layout", "--account-for-embedding-in-pipeline-split"),
)
SWITCHES = (
    "--bf16",
    "--fp16",
    "--sequence-parallel",
    "--no-",
    "--use-",
    "--disable-",
    "--overlap-",
)
WITH_VALUES = ("--no-rope-freq", "--no-weight-decay-cond-type", "--use-dataset-only")  # of those
SIZES = (TP, PP, CP, EP, MICRO, GLOBAL, HEADS, GROUPS, LAYERS, "--hidden-size", "--seq-length")


@cache
def known_flags() -> frozenset[str]:
    """Every flag that `scripts/megatron_flags.py` found in Megatron-LM and in its forks."""
    texts = (path.read_text(encoding="utf-8") for path in FLAGS)
    return frozenset(flag for text in texts for flag in text.split())


def count_of(file: CheckedFile, flag: str, default: int = 0) -> int:
    """The whole number behind a flag; the default where it is absent or no number."""
    text = file.at(flag)
    is_number = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 12  # noqa: PLR2004
    return int(text) if is_number else default


def has(file: CheckedFile, flag: str) -> bool:
    """Whether the flag is there."""
    return file.at(flag) is not None


@rule(
    "megatron-line",
    "error",
    "megatron",
    why="Arguments are split at blanks: a value without its flag is a positional argument, "
    "which the parser refuses.",
    evidence=ARGUMENTS + ", parse_args",
)
def megatron_line(file: CheckedFile) -> Iterator[Hit]:
    """A line that begins with a value whose flag is not there."""
    last, given = "", 0
    for word in () if file.document.script else words_of(file.document.text):
        if word.text.startswith("-") and not word.text[1:2].isdigit():
            last, given = word.flag, int("=" in word.text)
            continue
        is_switch = last.startswith(SWITCHES) and last not in WITH_VALUES
        most = 0 if not last or is_switch else 1 if last in SIZES else given + 1
        given += 1
        if word.begins and given > most:
            yield Hit((), f"`{shown(word.text)}` is not a flag", "begin with `--`", (), word.start)


@rule(
    "megatron-flag-misspelt",
    "error",
    "megatron",
    why="argparse refuses unknown flags, on every rank.",
    evidence=ARGUMENTS + "; read from it by scripts/megatron_flags.py",
)
def megatron_flag_misspelt(file: CheckedFile) -> Iterator[Hit]:
    """An unknown flag that resembles a known one."""
    strange = [flag for flag in file.block() if flag not in known_flags() | OF_LAUNCHERS]
    if len(strange) > FEWEST_STRANGE and len(strange) * 10 > len(file.block()):
        message = (
            f"{len(strange)} of {len(file.block())} flags are not those of Megatron-LM: a fork?"
        )
        yield Hit((strange[0],), message, "", (), None, "info")
        return
    for flag in islice(strange, MOST_UNKNOWN):
        dashes = flag.replace("_", "-")
        near = [dashes] if dashes in known_flags() else []
        near = near or get_close_matches(flag[:60], known_flags(), n=1, cutoff=0.85)
        certain = not file.document.script or dashes in near  # a script's program may add flags
        if near and (certain or _is_slip(flag, near[0])):
            message = f"unknown Megatron-LM flag `{shown(flag)}`"
            severity: Severity = "warning" if _is_of_another(file) else "error"
            yield Hit((flag,), message, f"did you mean `{near[0]}`?", severity=severity)


def _is_slip(flag: str, near: str) -> bool:
    """Whether a flag is a known one misspelt; a number behind a known one makes another."""
    numbered = flag.rstrip("0123456789-_") == near
    return not numbered and flag[:3] == near[:3] and edits_between(flag, near) <= MOST_SLIPS


def _is_of_another(file: CheckedFile) -> bool:
    """Whether a script starts programs and none of Megatron-LM's own: each may add flags."""
    programs = PROGRAM.findall(file.document.text) if file.document.script else []
    return bool(programs) and not any(name.startswith("pretrain_") for name in programs)


@rule(
    "megatron-flag-twice",
    "warning",
    "megatron",
    why="The last one overrides the first, which readers of the file may miss.",
    evidence="Python's argparse",
)
def megatron_flag_twice(file: CheckedFile) -> Iterator[Hit]:
    """A flag that is given twice."""
    seen: set[str] = set()
    for word in () if file.document.script else words_of(file.document.text):  # branches repeat
        if word.flag in seen:
            yield Hit((), f"`{shown(word.flag)}` is given twice", "keep one", offset=word.start)
        seen |= {word.flag} - {""}


ROWS = rules(
    Row(
        "megatron-sequence-parallel",
        "warning",
        If("--sequence-parallel", "present"),
        "`{key}` is ignored with `--tensor-model-parallel-size` 1",
        title="Sequence parallelism that does not match the tensor parallel size.",
        why="Sequence parallelism shards activations over the tensor-parallel ranks: with one "
        "rank it is switched off, and experts with several ranks require it.",
        evidence=ARGUMENTS + ", validate_args",
        when=(If(TP, "not above", 1),),
        also=(
            Look(
                If(TP, "above", 1),
                "experts with tensor parallelism require `--sequence-parallel`",
                "add it",
                when=(
                    If("--num-experts", "above", 1),
                    If("--sequence-parallel", "absent"),
                ),
            ),
        ),
        kinds=("megatron",),
    ),
    Row(
        "megatron-recompute",
        "error",
        If("--recompute-granularity", "is", "full"),
        "full recomputation requires `--recompute-method`",
        "add `uniform`",
        title="Recomputation flags that do not match.",
        why="Full recomputation needs a method and a number of layers; selective recomputation "
        "takes neither.",
        evidence=ARGUMENTS + ", validate_args",
        when=(If("--recompute-method", "absent"),),
        also=(
            Look(
                If("--recompute-method", "present"),
                "selective recomputation takes no method",
                "remove it",
                when=(If("--recompute-granularity", "is", "selective"),),
            ),
        ),
        kinds=("megatron",),
    ),
    Row(
        "megatron-value",
        "error",
        If(" ".join(SIZES), "no size"),
        "`{key}` (={value}) must be a whole number above 0",
        title="A size that is not a whole number above 0.",
        why="Sizes are whole numbers above 0.",
        evidence=ARGUMENTS + ", validate_args",
        kinds=("megatron",),
    ),
    Row(
        "megatron-layers",
        "error",
        If(PP, "does not divide", LAYERS),
        "`{key}` (={value}) must divide `{operand}` (={of})",
        title="Layers that cannot be divided over the pipeline stages.",
        why="Layers are divided evenly over the stages, unless the first and last have their "
        "own number; an old version dropped the remainder silently.",
        evidence="NVIDIA/Megatron-LM#1304 (30 layers on 4 stages trained 28)",
        when=(
            *(If(flag, "absent") for flag in UNEVEN),
            If("--deepspeed", "absent"),  # whose pipelines may be uneven
        ),
        kinds=("megatron",),
    ),
    Row(
        "megatron-precision",
        "error",
        If("--fp16", "present"),
        "`--fp16` and `--bf16` are both given",
        "keep `--bf16`",
        title="fp16 and bf16 are both set.",
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
        title="Overlap of a gather that does not take place.",
        why="The parameter gather belongs to the distributed optimizer and requires the "
        "overlapped gradient reduction.",
        evidence=ARGUMENTS + ", validate_args",
        when=(If("--overlap-param-gather", "present"),),
        at="--overlap-param-gather",
        kinds=("megatron",),
    ),
)
