"""Rules: keys against what a release of DeepSpeed reads (`releases.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from dsforge.findings import Edit, Hit, Severity
from dsforge.lint.checked_file import CheckedFile, rule, shown
from dsforge.lint.reading.config_keys import Entry, is_coming, is_gone
from dsforge.lint.reading.telling import is_remark
from dsforge.lint.rules.precision import SCALER
from dsforge.lint.schemas.releases import Block, Releases, number

NEAR = 0.75  # similarity from which another key is taken to be meant
LONGEST_COMPARED = 60
CLOSED = "DeepSpeed runtime/config_utils.py, DeepSpeedConfigModel (extra=forbid)"
FROZEN_FROM = "read from the source of the releases by scripts/deepspeed_schema.py"
MOST_SLIPS = 2  # letters by which a name may differ and still be certainly the one that was meant
SHAPES: dict[str, tuple[type, ...]] = {
    "int": (int, float),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "list": (list,),
    "block": (dict,),
}
OF_TRAINERS = {  # keys of transformers and of other trainers that mean one of DeepSpeed's
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "max_grad_norm": "gradient_clipping",
}
SUCCESSORS = {  # of removed keys: DeepSpeed docs, "DeepSpeed Configuration JSON"
    "amp": "`fp16`, `bf16` or `torch_autocast`",
    "curriculum_learning": "`data_efficiency.data_sampling.curriculum_learning`",
}
AS_BLOCKS = {  # deprecated switches that became blocks
    "cpu_offload": 'write "offload_optimizer": {"device": "cpu"}',
    "cpu_offload_params": 'write "offload_param": {"device": "cpu"}',
    "cpu_offload_use_pin_memory": "set `pin_memory` in the offload blocks",
}
ERROR: Severity = "error"
# Blocks whose keys mean nothing elsewhere; `seed`, say, may be the program's own.
SURE_HOMES = ("zero_optimization", "fp16", "activation_checkpointing", "aio", "optimizer.params")
OF_OPTIMIZER = ("lr", "betas", "eps", "weight_decay", "momentum", "torch_adam")


def near(key: str, choices: list[str]) -> str:
    """The choice that is nearly the key; empty where none is."""
    small = {choice.lower(): choice for choice in choices}
    found = get_close_matches(key.lower()[:LONGEST_COMPARED], list(small), n=1, cutoff=NEAR)
    return small[found[0]] if found else ""


def meant(file: CheckedFile, entry: Entry) -> str:
    """The key of its block that an unknown key stands for; empty where none is like it."""
    other = OF_TRAINERS.get(entry.key, "") if not entry.path else ""
    found = other or near(entry.key, living(file, entry.block))
    return "" if not other and _is_longer(entry.key, found) else found


def _is_longer(key: str, right: str) -> bool:
    """Whether a key is a whole other one with a word more: `end_profile_step` is no slip."""
    more = len(key) - len(right)
    return bool(right) and more > MOST_SLIPS and (key.startswith(right) or key.endswith(right))


def rename(file: CheckedFile, entry: Entry, right: str) -> tuple[Edit, ...]:
    """The edit that renames a key; none unless it is certain that the other key was meant.

    That is: a slip of at most two letters, a value that fits, and a name that nothing else has or
    would be given too.
    """
    if not right or not is_slip(entry.key, right):
        return ()
    life = entry.block.keys[right]
    rivals = sum(e.path == entry.path and meant(file, e) == right for e in _unknown(file))
    if rivals > 1 or is_wrong(life.get("type", ""), entry.value):
        return ()
    return file.document.renamed(entry.loc, right)


def _unknown(file: CheckedFile) -> Iterator[Entry]:
    return (entry for entry in file.entries if entry.life is None)


def is_slip(written: str, right: str) -> bool:
    """Whether two names differ by two letters at most, or only by `_`, `-` and capitals."""
    plain = [word.lower().replace("_", "").replace("-", "") for word in (written, right)]
    if plain[0] == plain[1]:
        return True
    return edits_between(written, right) <= MOST_SLIPS


def edits_between(written: str, right: str) -> int:
    """Letters to insert, remove or replace until two names are the same (Levenshtein 1965)."""
    if abs(len(written) - len(right)) > MOST_SLIPS:
        return MOST_SLIPS + 1
    row = list(range(len(right) + 1))
    for above, letter in enumerate(written, start=1):
        corner, row[0] = row[0], above
        for at, other in enumerate(right, start=1):
            kept = corner + (letter != other)
            corner, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, kept)
    return row[-1]


def is_wrong(kind: str, value: Any) -> bool:
    """Whether a value cannot be one of that type; where the type is unknown, only a number can."""
    if value == "auto":
        return False
    if isinstance(value, bool) and kind != "bool":
        return True
    return not isinstance(value, SHAPES.get(kind, (int, float)))


def living(file: CheckedFile, block: Block) -> list[str]:
    """Keys of a block that the release has."""
    return [
        key
        for key, life in block.keys.items()
        if not is_gone(life, file.release) and not is_coming(life, file.release)
    ]


@rule(
    "key-unknown",
    "error",
    fixable=True,
    why="This block refuses unknown keys: every rank stops when it reads the config.",
    evidence=CLOSED,
)
def key_unknown(file: CheckedFile) -> Iterator[Hit]:
    """A key that its block refuses."""
    for entry in file.entries:
        scaler = entry.path in ("bf16", "bfloat16") and entry.key in SCALER
        if entry.life is not None or scaler or not entry.closed:
            continue
        right = meant(file, entry)
        edits = rename(file, entry, right)
        home = home_of(file.releases, entry.key)
        fix = f"did you mean `{right}`?" if right else f"it belongs in `{home}`" if home else ""
        message = f"`{shown(entry.key)}` is not a key of `{entry.path}`"
        yield Hit(entry.loc, message, fix or "remove it", edits)


@rule(
    "key-misspelt",
    "error",
    fixable=True,
    why="DeepSpeed reads the keys that it knows and ignores all others: a misspelt block "
    "is ignored silently, and training runs without it, for instance unsharded.",
    evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._initialize_params (tried)",
)
def key_misspelt(file: CheckedFile) -> Iterator[Hit]:
    """A misspelt key, which is ignored silently."""
    for entry in file.entries:
        if entry.life is not None or entry.closed or is_remark(entry.key):
            continue
        right = meant(file, entry)
        if right:
            edits = rename(file, entry, right)
            message = f"`{shown(entry.key)}` is ignored: DeepSpeed has no such key"
            yield Hit(entry.loc, message, f"did you mean `{right}`?", edits)


@rule(
    "key-misplaced",
    "error",
    why="At the top level, a key that belongs in a block is ignored silently.",
    evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._initialize_params",
)
def key_misplaced(file: CheckedFile) -> Iterator[Hit]:
    """A key at the top level that belongs in a block."""
    for entry in strangers(file):
        home = home_of(file.releases, entry.key)
        if home.startswith(SURE_HOMES) and not meant(file, entry):
            message = f"`{shown(entry.key)}` is ignored at the top level"
            yield Hit(entry.loc, message, f"move it to `{home}`")


def strangers(file: CheckedFile) -> Iterator[Entry]:
    """Top-level keys that no release has."""
    return (e for e in file.entries if not e.path and e.life is None)


def home_of(releases: Releases, key: str) -> str:
    """The one block that has such a key; empty where none or several have."""
    if key in OF_OPTIMIZER:
        return "optimizer.params"
    homes = [p for p, b in releases.blocks.items() if p and p.count(".") < 2 and key in b.keys]  # noqa: PLR2004
    return homes[0] if len(homes) == 1 or homes[:1] == ["zero_optimization"] else ""


@rule(
    "key-unread",
    "warning",
    why="DeepSpeed never reads it. That is fine if your own program does.",
    evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._initialize_params",
)
def key_unread(file: CheckedFile) -> Iterator[Hit]:
    """A top-level key that DeepSpeed does not read."""
    unread: list[Entry] = []
    for entry in strangers(file):
        home = home_of(file.releases, entry.key)
        known = meant(file, entry) or home.startswith(SURE_HOMES)
        removed = entry.key in entry.block.removed
        if not known and not removed and not is_remark(entry.key):
            unread.append(entry)
    if unread:
        more = f" (nor {len(unread) - 1} more keys)" if len(unread) > 1 else ""
        message = f"DeepSpeed does not read `{shown(unread[0].key)}`{more}"
        fix = "remove it, unless your program reads it"
        yield Hit(unread[0].loc, message, fix if not more else fix.replace("it", "them"))


@rule(
    "key-removed",
    "error",
    why="The feature behind the key was removed. Older releases honour it; the release "
    "checked against refuses or ignores it.",
    evidence="deepspeedai/DeepSpeed#8489; " + FROZEN_FROM,
)
def key_removed(file: CheckedFile) -> Iterator[Hit]:
    """A key that was removed before this release."""
    for entry in file.entries:
        refused = entry.block.removed.get(entry.key)
        since = number(refused) if refused else None
        if not entry.gone and not (since and file.release >= since):
            continue
        until = entry.life["until"] if entry.life else "an older release"
        closed = entry.closed or (since is not None and file.release >= since)
        end = f"refused since {refused}" if refused else "refused" if closed else "ignored"
        message = f"`{entry.key}` was accepted until {until} and is {end}"
        successor = SUCCESSORS.get(entry.key, "") if not entry.path else ""
        fix = f"use {successor}" if successor else "remove it"
        yield Hit(entry.loc, message, f"{fix}, or pin an older DeepSpeed")


@rule(
    "key-too-new",
    "error",
    why="The release checked against does not know the key yet: it refuses it inside a "
    "block and ignores it at the top level.",
    evidence="OpenRLHF/OpenRLHF#63; " + FROZEN_FROM,
)
def key_too_new(file: CheckedFile) -> Iterator[Hit]:
    """A key that was added after this release."""
    for entry in file.entries:
        if entry.coming and entry.life is not None:
            since = entry.life["since"]
            yield Hit(
                entry.loc, f"`{entry.key}` exists since {since} only", f"use {since} or newer"
            )


@rule(
    "key-deprecated",
    "warning",
    fixable=True,
    why="The old name still works, with a warning in the log of every rank; together with "
    "the new name it is an error.",
    evidence="DeepSpeed runtime/config_utils.py, _process_deprecated_field",
)
def key_deprecated(file: CheckedFile) -> Iterator[Hit]:
    """A deprecated key."""
    for entry in file.entries:
        right = entry.life.get("replaced_by") if entry.life else None
        if right is None:
            continue
        same = entry.block.keys.get(right, {}).get("type") == entry.type
        edits = file.document.renamed(entry.loc, right) if same else ()
        fix = AS_BLOCKS.get(entry.key) or (f"use `{right}`" if right else "remove it")
        message, severity = f"`{entry.key}` is deprecated", None
        if any(e.key == right and e.path == entry.path for e in file.entries):
            message, severity = f"`{entry.key}` and `{right}` are both set", ERROR
            fix = f"remove `{entry.key}`"
        yield Hit(entry.loc, message, fix, edits, None, severity)
