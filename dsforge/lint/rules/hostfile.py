"""Rules: hostfiles.

What makes a line unusable is decided by `dsforge.hostfile`, which `gen` uses too; the rules here
give each of its problems a severity, and add what is legal but goes wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from dsforge.errors import Problem, SpecError
from dsforge.findings import Hit, Rule, Severity
from dsforge.hostfile import Entry, hostfile_entries, is_address
from dsforge.lint.checked_file import CheckedFile, rule

PARSER = "DeepSpeed launcher/runner.py, _parse_hostfile"
NO_SLOTS = "no line has `slots=N`: is it for mpirun, pdsh or ColossalAI? DeepSpeed refuses it"
REMARK = re.compile(r"^([^#\n]*?\bslots=[0-9]+)[ \t]+#[^\n]*", re.MULTILINE)  # not read
READ_ANYWAY = re.compile(r"\S+\s+slots=[0-9]+\s")
EXAMPLES = ("192.0.2.", "198.51.100.", "203.0.113.")  # RFC 5737


def line_of(place: str) -> int:
    """The line number at the end of a place."""
    tail = place.rpartition(":")[2]
    return int(tail) if tail.isdigit() else 1


@lru_cache(maxsize=1)  # a dozen rules ask about the same file
def parsed(text: str, name: str) -> tuple[tuple[Entry, ...], tuple[Problem, ...]]:
    """The hosts of a hostfile, or what is wrong with it."""
    try:
        return tuple(hostfile_entries(REMARK.sub(r"\1", text), name)), ()
    except SpecError as error:
        return (), error.problems


def listed(file: CheckedFile) -> tuple[Entry, ...]:
    """The hosts of the file; none where a line is unusable, as the other rules say."""
    return parsed(file.document.text, file.document.name)[0]


def _of_hostfile(name: str, severity: Severity, title: str, *text: str) -> Rule[CheckedFile]:
    """The rule of one kind of unusable line; `text` is its reason and its evidence."""

    def find(file: CheckedFile) -> Iterable[Hit]:
        problems = [p for p in parsed(file.document.text, file.document.name)[1] if p.rule == name]
        if name == "hostfile-line" and problems and "slots" not in file.document.text:
            offset = file.document.line(line_of(problems[0].place)).start
            yield Hit((), NO_SLOTS, "write `10.0.0.1 slots=8`", offset=offset)
            return
        for problem in problems:
            row = file.document.line(line_of(problem.place))
            # the launcher reads such a line and drops what follows the slots
            read = name == "hostfile-line" and READ_ANYWAY.match(row.text)
            weaker: Severity | None = "warning" if read else None
            yield Hit((), problem.message, problem.hint, (), row.start, weaker)

    return Rule(name, severity, ("hostfile",), title, text[0], text[1], find)


@rule(
    "host-by-name",
    "info",
    "hostfile",
    why="Every node must resolve the name to the same address; containers and cloud images often "
    "do not.",
    evidence="thu-coai/EVA#4, volcano-sh/volcano#2952, meta-pytorch/monarch#1571",
)
def host_by_name(file: CheckedFile) -> Iterator[Hit]:
    """A host name instead of an address."""
    entries = listed(file)
    names = [entry for entry in entries if not is_address(entry.address)]
    if names and len(entries) > 1:
        offset = file.document.line(line_of(names[0].place)).start
        others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        message = (
            f"`{names[0].address}`{others} is a name: every node must resolve it to the "
            "same address"
        )
        yield Hit((), message, "use IP addresses", offset=offset)


@rule(
    "host-uneven",
    "warning",
    "hostfile",
    why="All ranks wait for the slowest node, some launchers refuse uneven slots, and "
    "their sum must divide the batch.",
    evidence="huggingface/accelerate#2780 (3+2 cards), deepspeedai/DeepSpeed#2484",
)
def host_uneven(file: CheckedFile) -> Iterator[Hit]:
    """Hosts with different numbers of slots."""
    entries = listed(file)
    for entry in entries:
        if entry.slots != entries[0].slots:
            offset = file.document.line(line_of(entry.place)).start
            message = f"{entry.slots} slots here, {entries[0].slots} on `{entries[0].address}`"
            yield Hit((), message, "use the same number on all", offset=offset)
            return


@rule(
    "host-example",
    "warning",
    "hostfile",
    why="These ranges are never assigned: a template was not filled in.",
    evidence="RFC 5737",
)
def host_example(file: CheckedFile) -> Iterator[Hit]:
    """An address from a documentation range."""
    for entry in listed(file):
        if entry.address.startswith(EXAMPLES):
            offset = file.document.line(line_of(entry.place)).start
            yield Hit(
                (),
                f"`{entry.address}` is a documentation address",
                "use the address of your host",
                offset=offset,
            )


@rule(
    "host-cluster",
    "error",
    "hostfile",
    why="The hostfile decides what the launcher starts; the plan was made for the cluster file.",
    evidence="deepspeedai/DeepSpeed#3624, deepspeedai/DeepSpeed#3625 (slots against include)",
)
def host_cluster(file: CheckedFile) -> Iterator[Hit]:
    """A hostfile that does not match the cluster file."""
    entries, cluster = listed(file), file.cluster
    if not entries or cluster is None:
        return
    if len(entries) != cluster.nodes:
        yield Hit((), f"{len(entries)} hosts here, {cluster.nodes} nodes in the cluster file")
    for entry in entries:
        if entry.slots > cluster.gpus_per_node:
            offset = file.document.line(line_of(entry.place)).start
            message = f"{entry.slots} slots on nodes with {cluster.gpus_per_node} GPUs"
            yield Hit((), message, f"slots={cluster.gpus_per_node}", offset=offset)


UNUSABLE_LINES: tuple[Rule[CheckedFile], ...] = (
    _of_hostfile(
        "hostfile-line",
        "error",
        "A line that is not `ADDRESS slots=N`.",
        "The launcher stops at any other line; text after the slots is dropped silently.",
        PARSER,
    ),
    _of_hostfile(
        "hostfile-empty",
        "error",
        "A hostfile without hosts.",
        "The launcher then trains on the local machine only.",
        PARSER,
    ),
    _of_hostfile(
        "host-twice",
        "error",
        "A host that is listed twice.",
        "The launcher refuses duplicates.",
        PARSER,
    ),
    _of_hostfile(
        "host-name",
        "error",
        "An address that is neither a name nor an IP address.",
        "It is passed to ssh unchanged, which interprets options and shell characters.",
        "DeepSpeed launcher/multinode_runner.py, PDSHRunner.get_cmd",
    ),
    _of_hostfile(
        "host-address",
        "error",
        "An invalid IP address, or one that belongs to no host.",
        "ssh asks the name server for it and waits.",
        "RFC 791, RFC 1122",
    ),
    _of_hostfile(
        "host-loopback",
        "error",
        "A loopback address among several hosts.",
        "On each node it means that node, so ranks connect to themselves.",
        "determined-ai/determined#4297",
    ),
    _of_hostfile(
        "host-user",
        "error",
        "A user name before an address.",
        "The launcher uses the whole text as the host name, also as master address.",
        PARSER,
    ),
    _of_hostfile(
        "host-slots",
        "error",
        "An impossible number of slots.",
        "Ranks would be started for GPUs that do not exist.",
        PARSER,
    ),
)
