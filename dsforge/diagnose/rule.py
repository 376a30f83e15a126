"""What a rule is: the words that find a line, the pattern that reads it, the text that explains it.

A rule is data. `kind` says what its line is worth in a cascade, because a distributed run that
fails prints its cause once and the consequences on every rank:

    cause   an error that stands for itself; the first one in time is the answer
    stall   ranks waited too long: the answer where no cause came before it
    death   a process was killed: as a stall
    error   an exception that no rule knows; better than an echo
    echo    a peer is gone, a destructor fails: something else came first
    exit    what a launcher says at the end
    hint    nothing failed, but this costs time or comes out wrong
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

Kind = Literal["cause", "stall", "death", "error", "echo", "exit", "hint"]


# What everybody has who runs DeepSpeed: the command that says where the memory goes.
ESTIMATE = "$ dsforge estimate --model NAME --gpu CARD --gpus-per-node N --ds-config ds_config.json"


class Hit(NamedTuple):
    """One line that a rule has matched, cleaned, and what it says."""

    rule: Rule
    file: str
    line: int  # from 1; of the file
    rank: int | None
    when: str  # ISO time at or before the line; empty where the log has none
    text: str
    values: Mapping[str, str]  # the pattern's groups; empty where a group took no part
    before: str  # the lines before it, as many as fit
    phase: str  # what the run was doing, from the last line that says so


Reader = Callable[[tuple[Hit, ...]], dict[str, str]]


def first_values(hits: tuple[Hit, ...]) -> dict[str, str]:
    """What the first line says."""
    return dict(hits[0].values)


class Rule(NamedTuple):
    """One known fault. `message` and `fix` are format strings over the values that `read` returns.

    A line is looked at where it contains one of the `needles` (lower case); `pattern` is then
    searched in it, and in as many lines after it as `lines` says. In a fix, a line that begins with
    `$ ` is a command, `- ` and `+ ` are a change to ds_config, `NAME=value` goes into the
    environment of all ranks.
    """

    id: str
    needles: tuple[str, ...]
    pattern: str
    message: str
    why: str
    fix: str
    source: str  # where the text of the log line comes from, or who met it
    kind: Kind = "cause"
    confidence: float = 0.9
    lines: int = 0
    silent: bool = False  # counts even where the run ended well
    explains: tuple[str, ...] = ()  # rules whose lines are consequences of this one
    read: Reader = first_values
