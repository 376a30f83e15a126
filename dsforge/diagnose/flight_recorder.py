"""What the flight recorders of all ranks show together: who is behind, who called something else.

torch writes one dump for each rank when a collective times out: a pickle, or JSON. The pickles are
read opcode by opcode; nothing in them is imported or called. What they show is told in lines, which
rules then read like those of a log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dsforge.checkpoints.pickles.reader import PickleError, read_pickle
from dsforge.outside import UnreadableError, decoded, json_value, opened, read_bytes

MOST_BYTES = 64 << 20  # of one dump; 2,000 records take 5 MB
MOST_RECORDS = 100_000  # of one dump
SHOWN_RANKS = 4
_NAME = re.compile(r"(?:^|[_-])rank_?(?P<rank>\d{1,6})(?:\.(?:json|pkl|pickle))?$")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib\d{0,2}[/\\]python\d|^<")
_HEADS = (b"\x80", b"{")  # of a pickle, of a JSON object
_DONE = "completed"
_SAME_SIZES = ("all_reduce", "allreduce", "broadcast", "reduce")  # alike on all ranks


class _Call(NamedTuple):
    """A collective as one rank recorded it."""

    name: str
    sizes: str
    state: str
    place: str  # the line of the user's code

    @property
    def said(self) -> str:
        """The collective with its place, for people."""
        return f"{self.name} at {self.place}" if self.place else self.name


class _Group(NamedTuple):
    """A process group: its ranks, and what each of them called, by sequence number."""

    members: frozenset[int]
    calls: dict[int, dict[int, _Call]]


def rank_of(path: Path) -> int | None:
    """The rank whose dump a file is by its name and first byte; None where it is none."""
    named = _NAME.search(path.name)
    if named is None or not path.is_file():
        return None
    try:
        with opened(path, pipes=False) as stream:
            head = stream.read(1)
    except UnreadableError:
        return None
    return int(named["rank"]) if head in _HEADS else None


def recorded(dumps: Mapping[int, Path]) -> str:
    """What the dumps of these ranks show, in lines; empty where they show no stop."""
    groups: dict[str, _Group] = {}
    for rank, path in sorted(dumps.items()):
        dump = _read(path)
        for name, members in _memberships(dump.get("pg_config")).items():
            old = groups.setdefault(name, _Group(members, {}))
            groups[name] = old._replace(members=old.members | members)
        for name, number, call in _calls(dump.get("entries")):
            groups.setdefault(name, _Group(frozenset(), {})).calls.setdefault(rank, {})[number] = (
                call
            )
    lines = [line for name, group in groups.items() for line in _told(name, group)]
    return "".join(f"flight recorder: {line}\n" for line in lines)


def _read(path: Path) -> dict[str, Any]:
    """The dump in a file; empty where it is none."""
    try:
        data = read_bytes(path, MOST_BYTES, pipes=False)
        value = json_value(decoded(data)) if data[:1] == b"{" else read_pickle(data).value
    except (UnreadableError, PickleError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _memberships(config: object) -> dict[str, frozenset[int]]:
    """The ranks of each process group, by its name."""
    if not isinstance(config, dict):
        return {}
    found = {}
    for key, group in list(config.items())[:MOST_RECORDS]:
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, str):
            numbers = re.findall(r"\d{1,6}", ranks[:MOST_BYTES])
            found[str(key) or "0"] = frozenset(map(int, numbers))
    return found


def _calls(entries: object) -> list[tuple[str, int, _Call]]:
    """The collectives that a rank recorded, without sends: group, number and call."""
    if not isinstance(entries, list):
        return []
    found = []
    for entry in entries[-MOST_RECORDS:]:
        if not isinstance(entry, dict) or entry.get("is_p2p"):
            continue
        number, name = entry.get("collective_seq_id"), entry.get("profiling_name")
        if isinstance(number, int) and isinstance(name, str):
            found.append((_group_name(entry.get("process_group")), number, _call(entry, name)))
    return found


def _call(entry: dict[Any, Any], name: str) -> _Call:
    """One record as a call."""
    sizes = str(entry.get("input_sizes", ""))[:80]
    return _Call(
        name=name.partition(":")[2][:60] or name[:60],
        sizes=sizes,
        state=str(entry.get("state", ""))[:20],
        place=_own_line(entry.get("frames")),
    )


def _group_name(group: object) -> str:
    """The name of a process group in a record: its number."""
    named = isinstance(group, (list, tuple)) and group
    return str(group[0])[:60] if named and isinstance(group, (list, tuple)) else "0"


def _own_line(frames: object) -> str:
    """The deepest frame that belongs to no package; they stand deepest first."""
    if not isinstance(frames, list):
        return ""
    for frame in frames[:100]:
        if isinstance(frame, dict) and isinstance(frame.get("filename"), str):
            file = frame["filename"][:300]
            if file and not _INSTALLED.search(file):
                return f"{file}:{frame.get('line', '')}".replace("\n", " ")[:320]
    return ""


def _told(name: str, group: _Group) -> list[str]:
    """What one process group shows: other calls under one number, or ranks that are behind."""
    calls = {rank: by_number for rank, by_number in group.calls.items() if by_number}
    if not calls:
        return []
    other = _different(calls)
    if other:
        return [f"group {name}: {other}"]
    last = {rank: max(by_number) for rank, by_number in calls.items()}
    front = max(last.values())
    waiting = [rank for rank, number in last.items() if number == front]
    if all(calls[rank][front].state == _DONE for rank in waiting):
        return []
    doing = f"{_ranks(waiting)} in sequence {front}: {calls[waiting[0]][front].said}"
    behind = [rank for rank, number in last.items() if number < front]
    silent = sorted(group.members - set(group.calls))
    if behind:
        first = min(behind, key=lambda rank: last[rank])
        stopped = f"sequence {last[first]}, {calls[first][last[first]].said}"
        return [f"group {name}: rank {first} stopped after {stopped}; waiting {doing}"]
    if silent:
        return [f"group {name}: no dump of {_ranks(silent)}; waiting {doing}"]
    return [f"group {name}: all started; waiting {doing}"] if len(waiting) > 1 else []


def _different(calls: dict[int, dict[int, _Call]]) -> str:
    """The first number under which two ranks called different collectives; empty if none."""
    common = sorted({number for by_number in calls.values() for number in by_number})
    for number in common:
        here = {rank: by[number] for rank, by in calls.items() if number in by}
        kinds: dict[tuple[str, str], list[int]] = {}
        for rank, call in here.items():
            sizes = call.sizes if call.name in _SAME_SIZES else ""
            kinds.setdefault((call.name, sizes), []).append(rank)
        if len(kinds) > 1:
            few, *_, many = sorted(kinds.values(), key=len)
            one, other = here[few[0]], here[many[0]]
            return (
                f"sequence {number} is {one.name} {one.sizes} on {_ranks(few)} at {one.place}, "
                f"but {other.name} {other.sizes} on {_ranks(many)} at {other.place}"
            )
    return ""


def _ranks(ranks: Sequence[int]) -> str:
    """Ranks in words, the first few of many."""
    shown = ", ".join(map(str, ranks[:SHOWN_RANKS]))
    more = f" and {len(ranks) - SHOWN_RANKS} more" if len(ranks) > SHOWN_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"
