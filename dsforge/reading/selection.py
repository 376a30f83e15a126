"""Selection: hosts and slots by DeepSpeed's `--include` and `--exclude`.

The syntax is that of DeepSpeed's launcher (0.19, `parse_resource_filter` of `launcher/runner.py`):
`NAME[:SLOT[,SLOT...]]`, several joined with `@`; a name alone means all its slots, order and
repetition mean nothing. The hosts keep the order of the hostfile.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dsforge.errors import Problem, SpecError
from dsforge.hostfile import MAX_SLOTS, Entry, canonical, is_address
from dsforge.plan import Reason
from dsforge.reading.files import ClusterFile
from dsforge.reading.problems import shown
from dsforge.reading.refusals import refusal
from dsforge.reading.source import Source

HERE = "127.0.0.1"  # the machine of a job without a list of hosts
LOCALHOST = "localhost"
_SLOTS = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*")
_PART = re.compile(rf"[A-Za-z0-9._-]+(:{_SLOTS.pattern})?")


class Selection(NamedTuple):
    """The hosts that are left, the cluster file without what selected them, and what was said."""

    entries: list[Entry]
    file: ClusterFile
    reasons: tuple[Reason, ...] = ()


def selected(entries: Sequence[Entry], file: ClusterFile, source: Source) -> Selection:
    """The hosts and slots that the job may use, and what was left out. Raises SpecError."""
    given = [(key, text) for key in ("include", "exclude") if (text := getattr(file, key))]
    if not given:
        return Selection(list(entries), file)
    if len(given) > 1:
        place = source.place(("exclude",))
        message = "`include` and `exclude` are both given"
        raise refusal(
            "one-of-two", place, message, "DeepSpeed accepts only one of them: remove one"
        )
    (key, text), place = given[0], source.place((given[0][0],))
    known = list(entries) or [_here(key, text, file, place)]
    words = _words(key, text, known, place)
    kept = [kept for entry in known if (kept := _kept(entry, words, included=key == "include"))]
    if not kept:
        raise refusal(
            "selection-empty", place, f"`{key}` selects no slot", "exclude fewer hosts or slots"
        )
    if any(entry.devices for entry in kept) and any(":" in entry.address for entry in kept):
        message = f"`{key}` selects slots, which DeepSpeed does not support for IPv6 addresses"
        raise refusal("selection-ipv6", place, message, "list the hosts by IPv4 address")
    if not entries:  # of this machine `gpus_per_node` said what it has, not what is used
        file = file.model_copy(update={"gpus_per_node": None})
    return Selection(kept, file, (_reason(key, text, known, kept),))


def _here(key: str, text: str, file: ClusterFile, place: str) -> Entry:
    """The local machine, where no hosts are listed. Raises SpecError."""
    names = {part.partition(":")[0] for part in text.split("@")}
    if not names <= {LOCALHOST, HERE} or (file.nodes or 1) > 1:
        message = f"`{key}` (={shown(text)}) requires a list of hosts"
        raise refusal("selection-hosts", place, message, "list them with `--hostfile` or `hosts`")
    if file.gpus_per_node is not None:
        return Entry(HERE, file.gpus_per_node, place)
    numbers = [int(number) for number in re.findall(r"(?<=[:,])[0-9]{1,4}", text)]
    if key == "exclude" or not numbers:
        message = f"`{key}` (={shown(text)}) requires the number of accelerators of this machine"
        raise refusal("selection-count", place, message, "give `--gpus-per-node`")
    return Entry(HERE, min(MAX_SLOTS, max(numbers) + 1), place)


def _words(key: str, text: str, known: list[Entry], place: str) -> dict[str, set[int]]:
    """The slots that are named of each host, by its canonical address. Raises SpecError."""
    slots_of = {canonical(entry.address): entry.slots for entry in known}
    found: dict[str, set[int]] = {}
    problems: list[Problem] = []
    for part in text.split("@"):
        host, slots = _host(part, slots_of)
        if host is None:
            problems.append(_unknown(key, part, place))
        elif any(slot >= slots_of[host] for slot in slots):
            message = f"`{shown(part)}` in `{key}` is a slot that the host does not have"
            hint = f"its slots are 0 to {slots_of[host] - 1}"
            problems.append(Problem("selection-slot", message, hint, place))
        else:
            found.setdefault(host, set()).update(slots)
    if problems:
        raise SpecError(tuple(dict.fromkeys(problems)))
    return {host: slots or {*range(slots_of[host])} for host, slots in found.items()}


def _host(part: str, hosts: dict[str, int]) -> tuple[str | None, tuple[int, ...]]:
    """The listed host that a part names, and its slots; none where it names no such host."""
    if (whole := _listed(part, hosts)) is not None:  # an IPv6 address holds colons itself
        return whole, ()
    name, _, slots = part.rpartition(":")
    if not _SLOTS.fullmatch(slots):
        return None, ()
    return _listed(name, hosts), tuple(int(slot) for slot in slots.split(","))


def _listed(name: str, hosts: dict[str, int]) -> str | None:
    """The canonical address of a listed host by what somebody calls it."""
    found = HERE if name == LOCALHOST and HERE in hosts else canonical(name)
    return found if found in hosts else None


def _unknown(key: str, part: str, place: str) -> Problem:
    """Why a part selects nothing: its form, or its host."""
    if not _PART.fullmatch(part) and not is_address(part):
        message = f"`{shown(part)}` in `{key}` is neither HOST nor HOST:SLOT,SLOT"
        hint = "join several with @: 10.0.0.1@10.0.0.2:0,1"
        return Problem("selection-form", message, hint, place)
    message = f"`{shown(part)}` in `{key}` is not one of the listed hosts"
    return Problem("selection-host", message, "write the host exactly as in the hostfile", place)


def _kept(entry: Entry, words: dict[str, set[int]], *, included: bool) -> Entry | None:
    """What is left of a host; none where nothing is."""
    named = words.get(canonical(entry.address), set())
    kept = sorted(named if included else set(range(entry.slots)) - named)
    if not kept:
        return None
    first = kept == list(range(len(kept)))
    return entry._replace(slots=len(kept), devices=() if first else tuple(kept))


def _reason(key: str, text: str, known: list[Entry], kept: list[Entry]) -> Reason:
    """What the selection leaves."""
    slots, all_slots = sum(e.slots for e in kept), sum(e.slots for e in known)
    message = f"`{key}` ({shown(text)}) leaves {len(kept)} of {len(known)} hosts and {slots} of "
    return Reason(rule=f"{key}-hosts", message=f"{message}{all_slots} slots")
