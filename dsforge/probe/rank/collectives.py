"""Collectives: seconds of each kind at rising payloads, in one node and across all of them.

Called through DeepSpeed's own communication module, as the engine does. Payloads rise to what the
plan sends at once, or to what the link moves in a few seconds, whichever is less: a slow network
must not make the probe slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from deepspeed import comm
from deepspeed.accelerator import get_accelerator

from dsforge.errors import first_line
from dsforge.probe.messages import Answer, Question, Scope, Skipped, Timed
from dsforge.probe.rank.location import Standing
from dsforge.probe.rank.timing import Clock
from dsforge.specs import Collective

SMALLEST_BYTES = 1 << 10
RISE = 16
HALF_BYTES = 2
LONGEST_S = 2.0  # of one collective


def timed_collectives(question: Question, standing: Standing, clock: Clock) -> Iterator[Answer]:
    """What every kind takes at every payload, link class by link class."""
    for scope, group in _groups(standing):
        for kind, most_bytes in question.payload_bytes.items():
            try:
                yield from _rising(_Case(kind, scope, group, question, standing), most_bytes, clock)
            except (RuntimeError, NotImplementedError, ValueError) as error:
                why = first_line(error)[:400]
                yield Skipped(what=f"{kind}, {scope}", why=why)


def _groups(standing: Standing) -> list[tuple[Scope, Any]]:
    """The ranks of this node, and all ranks, where they are more than one."""
    groups: list[tuple[Scope, Any]] = []
    if standing.per_node > 1:
        if standing.nodes == 1:
            return [("intra_node", None)]
        for node in range(standing.nodes):  # every rank must take part in making every group
            first = node * standing.per_node
            made = comm.new_group(list(range(first, first + standing.per_node)))
            if node == standing.node:
                groups.append(("intra_node", made))
    if standing.nodes > 1:
        groups.append(("inter_node", None))
    return groups


class _Case:
    """One kind of collective over one group."""

    def __init__(
        self, kind: Collective, scope: Scope, group: Any, question: Question, *more: Standing
    ) -> None:
        (standing,) = more
        self.kind, self.scope, self.group = kind, scope, group
        self.nodes = 1 if scope == "intra_node" else standing.nodes
        self.ranks = standing.per_node * self.nodes
        self.dtype = torch.bfloat16 if question.element_bytes == HALF_BYTES else torch.float32

    def work(self, payload_bytes: int) -> tuple[Callable[[], object], int]:
        """The collective on a payload, and the bytes that it really has."""
        part = max(1, payload_bytes // self.dtype.itemsize // self.ranks)
        device = get_accelerator().current_device_name()
        whole = torch.zeros(part * self.ranks, dtype=self.dtype, device=device)
        piece = torch.zeros(part, dtype=self.dtype, device=device)
        other = torch.zeros_like(whole) if self.kind == "all_to_all" else whole
        ways: dict[Collective, Callable[[], object]] = {
            "all_reduce": lambda: comm.all_reduce(whole, group=self.group),
            "all_gather": lambda: comm.all_gather_into_tensor(whole, piece, group=self.group),
            "reduce_scatter": lambda: comm.reduce_scatter_tensor(piece, whole, group=self.group),
            "all_to_all": lambda: comm.all_to_all_single(other, whole, group=self.group),
        }
        return ways[self.kind], whole.numel() * self.dtype.itemsize


def _rising(case: _Case, most_bytes: int, clock: Clock) -> Iterator[Answer]:
    """Payload after payload, until the plan's, or until one takes too long."""
    payload_bytes, seconds = SMALLEST_BYTES, 0.0
    while True:
        if not clock.has_time():
            yield Skipped(what=f"{case.kind}, {case.scope}", why="no time was left")
            return
        work, real_bytes = case.work(min(payload_bytes, most_bytes))
        seconds = clock.slowest_s(work)
        yield Timed(
            scope=case.scope,
            collective=case.kind,
            nodes=case.nodes,
            ranks=case.ranks,
            payload_bytes=real_bytes,
            seconds=seconds,
        )
        if payload_bytes >= most_bytes:
            return
        rise = min(RISE, most_bytes / payload_bytes, LONGEST_S / seconds)
        if rise < 2:  # noqa: PLR2004 (twice as much says nothing new)
            return
        payload_bytes = int(payload_bytes * rise)
