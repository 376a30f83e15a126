"""Cluster: file, flags and hostfile -> ClusterSpec, with a reason for every value chosen here.

Hosts that are alike are one cluster (`equal.py`). Where slots or cards differ, all hosts together
are a cluster of the weakest, and the sets of them that may train alone stand beside it
(`unequal.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from dsforge import catalog
from dsforge.errors import Problem, SpecError
from dsforge.hostfile import Entry, hostfile_entries
from dsforge.reading.addresses import addressed
from dsforge.reading.equal import Draft, Reading
from dsforge.reading.files import ClusterFile
from dsforge.reading.problems import Collector, validated
from dsforge.reading.selection import selected
from dsforge.reading.source import Source, read_text
from dsforge.reading.unequal import Pool, smaller, whole
from dsforge.specs import Host

# Keys that stand in each group or say what its own list of hosts says.
APART = ("nodes", "hosts", "include", "exclude")
NAMED: tuple[tuple[str, Callable[[str], object]], ...] = (
    ("gpu", catalog.gpu),
    ("intra_node", catalog.link),
    ("inter_node", catalog.link),
)
Found = TypeVar("Found")


def cluster_of(
    source: Source, *, hostfile: Path | None = None, resolve: bool = False, by_name: bool = False
) -> Reading:
    """The cluster of a source, on the hosts of a hostfile where one is given.

    With `by_name` names of hosts stay as they are: only how many there are counts. Raises SpecError
    with the problems of both.
    """
    pool = pools_of(source, hostfile=hostfile, resolve=resolve, by_name=by_name)[0]
    return pool.cluster, pool.reasons


def pools_of(
    source: Source, *, hostfile: Path | None = None, resolve: bool = False, by_name: bool = False
) -> tuple[Pool, ...]:
    """The cluster of a source; where its hosts differ also the sets of them that may train alone.

    Raises SpecError as `cluster_of` does.
    """
    parts = Collector()
    names = [
        parts.attempt(partial(named, part, key, find))
        for part in (source, *_groups(source))
        for key, find in NAMED
    ]
    listed = parts.attempt(lambda: _hostfile(hostfile, by_name=by_name))
    if hostfile:
        source = source.without("hosts")
    file = parts.attempt(lambda: validated(ClusterFile, source))
    chosen = parts.attempt(
        lambda: selected(listed.value or _file_entries(file.value, source), file.value, source)
    )
    hosts = parts.attempt(lambda: addressed(chosen.value.entries, resolve=resolve, by_name=by_name))
    if any(name.error for name in names):
        parts.check()  # a draft would say the same again
    if file.error is None:
        parts.problems += _beside_groups(file.value, source, hostfile)
    parts.check()
    spec = parts.attempt(lambda: _pools(chosen.value.file, source, hosts.value))
    parts.check()
    said = chosen.value.reasons
    return tuple(pool._replace(reasons=(*said, *pool.reasons)) for pool in spec.value)


def _groups(source: Source) -> tuple[Source, ...]:
    """The groups of a cluster file, each of which still knows its places."""
    written = source.values.get("groups")
    listed = written if isinstance(written, list | tuple) else ()
    return tuple(source.item("groups", index) for index in range(len(listed)))


def _beside_groups(file: ClusterFile, source: Source, hostfile: Path | None) -> list[Problem]:
    """What cannot stand beside groups, each of which says it for itself."""
    if not file.groups:
        return []
    found = [
        Problem(
            "groups-beside",
            f"`{key}` cannot be combined with `groups`",
            "write it into each group"
            if key in APART[:2]
            else "leave those hosts out of the groups",
            source.place((key,)),
        )
        for key in APART
        if getattr(file, key)
    ]
    if hostfile is not None:
        message = "a hostfile does not say which host belongs to which of the `groups`"
        hint = "list `hosts: [{address: 10.0.0.1, slots: 8}]` in each group instead"
        found.append(Problem("groups-hostfile", message, hint, str(hostfile)))
    listed = [bool(group.hosts) for group in file.groups]
    if any(listed) and not all(listed):
        message = f"`groups[{listed.index(False)}]` has no `hosts`, but another group has"
        place = source.place(("groups", listed.index(False)))
        found.append(
            Problem("groups-hosts", message, "list hosts in all groups, or in none", place)
        )
    return found


def _pools(file: ClusterFile, source: Source, hosts: tuple[Host, ...]) -> tuple[Pool, ...]:
    """All hosts, and where they differ the sets of them. Raises SpecError."""
    if file.groups:
        kinds = _kinds(file, source, hosts)
        return (whole(kinds), *smaller(kinds)) if len(kinds) > 1 else kinds
    every = Pool(*Draft(file, source).cluster(hosts))
    used = hosts[: every.cluster.nodes]
    slots = dict.fromkeys(host.slots for host in used)
    if file.gpus_per_node is not None or len(slots) <= 1:
        return (every,)
    alone = file.model_copy(update={"nodes": None})
    kinds = tuple(
        Pool(*Draft(alone, source).cluster(tuple(host for host in used if host.slots == count)))
        for count in slots
    )
    listed = sum(host.slots for host in used)
    return (every._replace(alike=False, listed_gpus=listed), *smaller(kinds))


def _kinds(file: ClusterFile, source: Source, hosts: tuple[Host, ...]) -> tuple[Pool, ...]:
    """Each group as a cluster of its own. Raises SpecError with the problems of all."""
    parts, left = Collector(), list(hosts)
    found = []
    for index, group in enumerate(file.groups):
        said = {key: value for key, value in group if value not in (None, ())}
        asked = file.model_copy(update={"groups": (), **said})
        mine, left = tuple(left[: len(group.hosts)]), left[len(group.hosts) :]
        part = source.item("groups", index)
        found.append(parts.attempt(partial(_group, asked, part, mine)))
    parts.check()
    return tuple(kind for pools in found for kind in pools.value)


def _group(file: ClusterFile, source: Source, hosts: tuple[Host, ...]) -> tuple[Pool, ...]:
    """A group: one kind of hosts, or several where their slots differ."""
    slots = dict.fromkeys(host.slots for host in hosts) if file.gpus_per_node is None else {}
    kinds = [tuple(h for h in hosts if h.slots == count) for count in slots] or [hosts]
    return tuple(Pool(*Draft(file, source).cluster(kind)) for kind in kinds)


def named(source: Source, key: str, find: Callable[[str], Found]) -> Found | None:
    """What the catalog has under the name at a key; none where no name stands there."""
    name = source.values.get(key)
    if not isinstance(name, str):
        return None
    try:
        return find(name)
    except SpecError as error:
        place = source.place((key,))
        raise SpecError(tuple(replace(p, place=place) for p in error.problems)) from error


def _hostfile(path: Path | None, *, by_name: bool) -> list[Entry]:
    """The hosts of a hostfile as written; of none, none."""
    return hostfile_entries(read_text(path), str(path), by_name=by_name) if path else []


def _file_entries(file: ClusterFile, source: Source) -> list[Entry]:
    """The hosts of the cluster file as written, those of its groups in turn."""
    listed = [(file.hosts, source)]
    listed += [(g.hosts, source.item("groups", i)) for i, g in enumerate(file.groups)]
    return [
        Entry(host.address, host.slots, part.place(("hosts", index)))
        for hosts, part in listed
        for index, host in enumerate(hosts)
    ]
