"""Rules: words, numbers and the FSDP block of accelerate's YAML, as its launcher takes them.

The launcher hands settings on as text, in variables, which the plugin on each rank reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from dsforge.findings import Hit
from dsforge.lint.checked_file import CheckedFile, rule, shown
from dsforge.lint.reading.kind import FILLED_IN
from dsforge.lint.rules.keys import is_slip
from dsforge.lint.schemas.accelerate_keys import ENUMS, FSDP, RELEASE, WHOLE, WORDS

BLOCK, PREFIX = "fsdp_config", "fsdp_"
PLUGIN = "accelerate utils/dataclasses.py, FullyShardedDataParallelPlugin.__post_init__"
TRUE, FALSE = ("y", "yes", "t", "true", "on", "1"), ("n", "no", "f", "false", "off", "0")
YAML_FALSE = ("no", "false", "off", "null", "~", "0", "")  # without quotes
BOOLEANS = [key for key, default in FSDP.items() if default in ("true", "false")]
OF_FIRST = ("fsdp_use_orig_params", "fsdp_sync_module_states", "fsdp_forward_prefetch")
RESHARD, VERSION, STATE = "fsdp_reshard_after_forward", "fsdp_version", "fsdp_state_dict_type"
CHOICES = {
    "fsdp_sharding_strategy": WORDS["FSDP_SHARDING_STRATEGY"],
    "fsdp_auto_wrap_policy": WORDS["FSDP_AUTO_WRAP_POLICY"],
    "fsdp_backward_prefetch": WORDS["FSDP_BACKWARD_PREFETCH"],
    STATE: WORDS["FSDP_STATE_DICT_TYPE"],
}
NUMBERED = {  # which may be given by number, too, from 1
    "fsdp_sharding_strategy": 5,
    "fsdp_backward_prefetch": 2,
    STATE: 3,
}
VERSIONS = (1, 2)
LAST_PORT = 65535
FEWEST = {"num_processes": 1, "num_machines": 1, "machine_rank": 0, "main_process_port": 0}
BY_FLAG = -1  # processes that the command line gives


@rule(
    "accelerate-word",
    "error",
    "accelerate",
    why="accelerate makes a word of its own list of each, in capital letters, and stops at any "
    "other.",
    evidence=f"accelerate {RELEASE} commands/config/config_args.py, BaseConfig.__post_init__",
)
def accelerate_word(file: CheckedFile) -> Iterator[Hit]:
    """An environment or a distributed type that does not exist."""
    sagemaker = file.at("compute_environment") == "AMAZON_SAGEMAKER"
    types = ENUMS["SageMakerDistributedType" if sagemaker else "DistributedType"]
    for key, words in (
        ("compute_environment", ENUMS["ComputeEnvironment"]),
        ("distributed_type", types),
    ):
        value = file.at(key)
        is_strange = isinstance(value, str) and value not in words and not _is_filled_in(value)
        if is_strange and not _is_false(file, key):
            near = get_close_matches(value[:60].upper(), words, 1, 0.6)
            fix = f"did you mean {near[0]}?" if near else f"use one of {', '.join(words)}"
            yield Hit((key,), f"`{key}` (={shown(value)}) is not one that accelerate knows", fix)


@rule(
    "accelerate-number",
    "error",
    "accelerate",
    why="Counts, ranks and ports are whole numbers; any other is passed on and stops the launch.",
    evidence=f"accelerate {RELEASE} commands/config/config_args.py, ClusterConfig; "
    "utils/launch.py, prepare_multi_gpu_env",
)
def accelerate_number(file: CheckedFile) -> Iterator[Hit]:
    """A count, rank or port that is none."""
    for key in WHOLE:
        value = file.at(key)
        fewest = FEWEST.get(key, 0)
        by_flag = key == "num_processes" and value == BY_FLAG
        if value is None or by_flag or _is_filled_in(value):
            continue
        number = _number(value)
        if number is None or number < fewest:
            message = f"`{key}` (={shown(str(value))}) must be a whole number from {fewest}"
            yield Hit((key,), message)
        elif key == "main_process_port" and number > LAST_PORT:
            yield Hit((key,), f"`{key}` (={number}) must be at most {LAST_PORT}")
    rank, machines = file.whole("machine_rank"), file.whole("num_machines")
    if rank and machines and rank >= machines > 0:
        message = f"`machine_rank` (={rank}) must be below `num_machines` (={machines})"
        fix = f"ranks are 0 to {machines - 1}"
        yield Hit(("machine_rank",), message, fix, severity="warning")


@rule(
    "accelerate-fsdp-key",
    "error",
    "accelerate",
    fixable=True,
    why="accelerate takes any key here and reads those that it knows: the setting of any other "
    "is not applied.",
    evidence=f"accelerate {RELEASE} utils/launch.py, prepare_multi_gpu_env",
)
def accelerate_fsdp_key(file: CheckedFile) -> Iterator[Hit]:
    """A key of `fsdp_config` that accelerate does not read."""
    for key in file.block(BLOCK):
        if _full(key) in FSDP:
            continue
        near = get_close_matches(_full(key)[:60], FSDP, n=1, cutoff=0.75)
        slip = bool(near) and is_slip(_full(key), near[0])
        edits = file.document.renamed((BLOCK, key), near[0]) if slip else ()
        fix = f"did you mean `{near[0]}`?" if near else "remove it"
        message = f"accelerate ignores `{shown(key)}` here"
        yield Hit((BLOCK, key), message, fix, edits, severity=None if slip else "info")


@rule(
    "accelerate-fsdp-value",
    "error",
    "accelerate",
    why="Every rank stops while the plugin is made: the words, booleans and numbers of FSDP are "
    "those of accelerate and torch.",
    evidence=PLUGIN,
)
def accelerate_fsdp_value(file: CheckedFile) -> Iterator[Hit]:
    """A value of `fsdp_config` that accelerate refuses."""
    if file.at("distributed_type") != "FSDP":
        return
    given = {_full(key): (key, value) for key, value in file.block(BLOCK).items()}
    version = _version(given)
    for name, (key, value) in given.items():
        wanted = _wanted(name, value, version, given)
        if wanted and not _is_filled_in(value):
            yield Hit((BLOCK, key), f"`{shown(key)}` (={shown(str(value))}) must be {wanted}")


@rule(
    "accelerate-fsdp-together",
    "error",
    "accelerate",
    why="Ranks that load nothing get the weights from the first, and inputs are offloaded only of "
    "layers that are checkpointed.",
    evidence=f"accelerate {RELEASE} utils/launch.py, prepare_multi_gpu_env; {PLUGIN}",
)
def accelerate_fsdp_together(file: CheckedFile) -> Iterator[Hit]:
    """Settings of FSDP of which one needs another."""
    if file.at("distributed_type") != "FSDP":
        return
    names = {_full(key): key for key in file.block(BLOCK)}
    load, sync = "fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states"
    at = (BLOCK, names.get(sync, sync))
    if sync in names and _is_false(file, *at):
        loads = load not in names or not _is_false(file, BLOCK, names[load])
        if loads:
            said = "" if load in names else ", which is the default,"
            yield Hit(
                at, f"`{load}`{said} needs `{sync}`", f"set `{load}` to false, or this to true"
            )
    offload, recompute = (f"fsdp_activation_checkpointing{end}" for end in ("_offload", ""))
    if _is_on(file, names, offload):
        where = (BLOCK, names[offload])
        if not _is_on(file, names, recompute):
            yield Hit(where, f"`{offload}` needs `{recompute}`", "set it to true")
        given = {_full(key): (key, value) for key, value in file.block(BLOCK).items()}
        if _version(given) not in (2, None):
            yield Hit(where, f"`{offload}` needs `{VERSION}` 2", "set it to 2")


Given = dict[str, tuple[str, Any]]


def _wanted(name: str, value: Any, version: int | None, given: Given) -> str:
    """What a setting must be, where accelerate refuses it as it is; empty where it does not."""
    text = str(value).strip().lower()
    if name == VERSION:
        return "" if version in VERSIONS else "1 or 2"
    if name == RESHARD:
        return "true or false with FSDP 2" if version == 2 and not _is_word(text) else ""  # noqa: PLR2004
    if name in BOOLEANS:
        is_read = version == 1 or name not in OF_FIRST
        return "true or false" if is_read and not _is_word(text) else ""
    if name == "fsdp_min_num_params":
        policy = str(given.get("fsdp_auto_wrap_policy", ("", ""))[1]).upper()
        is_whole = _number(value) is not None
        return "a whole number" if policy == "SIZE_BASED_WRAP" and not is_whole else ""
    return _wanted_word(name, value, version) if name in CHOICES else ""


def _wanted_word(name: str, value: Any, version: int | None) -> str:
    """The words of which a setting must be one, where it is none."""
    if name == "fsdp_sharding_strategy":
        if version != 1:
            return ""
    elif value is None:
        return ""
    words, text = CHOICES[name], str(value).upper()
    number = _number(text) if text.isdecimal() else None
    known = text in words if number is None else 1 <= number <= NUMBERED.get(name, 0)
    if known and name == STATE and version == 2:  # noqa: PLR2004
        known = text not in ("LOCAL_STATE_DICT", "2")
        words = [word for word in words if word != "LOCAL_STATE_DICT"]
    return "" if known else f"one of {', '.join(words)}"


def _version(given: Given) -> int | None:
    """The version of FSDP; none where it is no number."""
    return _number(given.get(VERSION, ("", FSDP[VERSION]))[1])


def _number(value: Any) -> int | None:
    """The whole number that a value is, also as text; none for anything else."""
    if isinstance(value, bool | float):
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _is_filled_in(value: Any) -> bool:
    """Whether another program puts the value there: `${N}`, `{{ n }}`."""
    return isinstance(value, str) and bool(FILLED_IN.search(value))


def _full(key: str) -> str:
    """The name of a key as accelerate completes it."""
    return key if key.startswith("fsdp") else PREFIX + key


def _is_word(text: str) -> bool:
    """Whether accelerate takes a text for true or false."""
    return text in TRUE or text in FALSE


def _is_on(file: CheckedFile, names: dict[str, str], name: str) -> bool:
    return name in names and str(file.at(BLOCK, names[name])).lower() in TRUE


def _is_false(file: CheckedFile, *loc: str) -> bool:
    """Whether Python takes a value for false after PyYAML has read it; `no` is, `'no'` is not."""
    mark = file.document.marks.get(loc)
    written = file.document.text[mark.start : mark.end] if mark else ""
    return written.lower() in YAML_FALSE or written in ('""', "''")
