"""Who computes which micro batch when: 1F1B, and its interleaved form, played through.

The order of each stage is Megatron's (`forward_backward_pipelining_with_interleaving`; plain 1F1B
where there is one chunk, as DeepSpeed's `TrainSchedule` has it). A stage starts as soon as it has
what its neighbour hands on, so idle time shows where it arises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Piece(NamedTuple):
    """One micro batch in one chunk of one stage, forward or backward."""

    backward: bool
    micro_batch: int
    chunk: int
    stage: int


class Slot(NamedTuple):
    """A piece and when it runs, s."""

    piece: Piece
    start_s: float
    end_s: float


class Shape(NamedTuple):
    """A pipeline: stages, micro batches, chunks of each stage."""

    stages: int
    micro_batches: int
    chunks: int

    def order(self, stage: int) -> Iterator[Piece]:
        """The pieces of a stage: warm-up, one forward and one backward in turn, the rest."""
        total = self.micro_batches * self.chunks
        later = self.stages - stage - 1
        warm_up = later if self.chunks == 1 else 2 * later + (self.chunks - 1) * self.stages
        warm_up = min(total, warm_up)
        for turn in range(total + warm_up):
            if turn < total:
                yield self._piece(turn, stage, backward=False)
            if turn >= warm_up:
                yield self._piece(turn - warm_up, stage, backward=True)

    def _piece(self, turn: int, stage: int, *, backward: bool) -> Piece:
        """The n-th piece of one direction: chunk by chunk for each group of `stages` batches."""
        if self.chunks == 1:
            return Piece(backward, turn, 0, stage)
        group, within = divmod(turn, self.stages * self.chunks)
        chunk, batch = divmod(within, self.stages)
        chunk = self.chunks - 1 - chunk if backward else chunk
        return Piece(backward, group * self.stages + batch, chunk, stage)

    def awaited(self, piece: Piece) -> Piece | None:
        """What has to be done before a piece; nothing before the first chunk's first stage."""
        last = self.stages - 1
        if piece.backward:
            if piece.stage < last:
                return piece._replace(stage=piece.stage + 1)
            if piece.chunk < self.chunks - 1:
                return piece._replace(stage=0, chunk=piece.chunk + 1)
            return piece._replace(backward=False)
        if piece.stage:
            return piece._replace(stage=piece.stage - 1)
        return piece._replace(stage=last, chunk=piece.chunk - 1) if piece.chunk else None


def played(shape: Shape, forward_s: list[float], backward_s: list[float]) -> Iterator[Slot]:
    """Every slot of a step; seconds of one piece are given for each stage."""
    orders = [list(shape.order(stage)) for stage in range(shape.stages)]
    reached, free_s = [0] * shape.stages, [0.0] * shape.stages
    ended_s: dict[Piece | None, float] = {None: 0.0}
    waiting = list(range(shape.stages))
    while waiting:
        for stage in waiting:
            while reached[stage] < len(orders[stage]):
                piece = orders[stage][reached[stage]]
                awaited = shape.awaited(piece)
                if awaited not in ended_s:
                    break
                start_s = max(free_s[stage], ended_s[awaited])
                length_s = (backward_s if piece.backward else forward_s)[stage]
                free_s[stage] = ended_s[piece] = start_s + length_s
                reached[stage] += 1
                yield Slot(piece, start_s, free_s[stage])
        waiting = [stage for stage in waiting if reached[stage] < len(orders[stage])]
