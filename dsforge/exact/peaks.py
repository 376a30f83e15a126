"""The fullest moment of each phase of a step, in bytes on one rank.

A whole step is walked through, allocation by allocation: the model's operations on a tape, the
engine's gathers and buckets as it makes them. What `ledger` says is resident at a phase's end comes
out of the walk again, which a test holds; peaks are proved against the engine itself
(tests/engine/test_exact.py).
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.exact import llama_sim
from dsforge.exact.autograd_sim import Block, Meter, Tape
from dsforge.exact.gradients import reduction
from dsforge.exact.llama_sim import Decoder
from dsforge.exact.residency import Engine, Moment, resident, weight_bytes
from dsforge.exact.torch_operations import Rows
from dsforge.exact.zero3 import PartitionedWeights, Weights
from dsforge.specs import LoraSpec, ModelSpec
from dsforge.strategy import FULLY_SHARDED


class Batch(NamedTuple):
    """One micro batch and how it is run."""

    model: ModelSpec
    samples: int
    sequence_length: int
    lora: LoraSpec | None = None
    recompute: bool = False


class Fullest(NamedTuple):
    """A phase: the most bytes that were alive at once, and what is alive at its end."""

    peak: int
    end: int


class _Walk:
    """A rank on its way through a step."""

    def __init__(self, engine: Engine, batch: Batch) -> None:
        self.engine, self.batch, self.last = engine, batch, False
        self.meter = Meter(resident(engine, "step").device.total)
        self.tape = Tape(self.meter)
        self.gradients = reduction(engine, self.meter)
        partitioned = engine.zero_stage == FULLY_SHARDED
        kind = PartitionedWeights if partitioned else Weights
        self.weights = kind(engine, self.tape, self._arrived)
        rows = Rows(self.tape, batch.samples * batch.sequence_length, engine.element_bytes)
        self.decoder = Decoder(
            rows,
            batch.model,
            batch.lora,
            batch.recompute,
            partitioned,
            max((weight_bytes(engine, t) for t in engine.tensors if t.trainable), default=0),
            self.weights,
        )

    def micro_step(self, *, last: bool) -> tuple[Fullest, Fullest]:
        """Forward and backward of one micro batch."""
        self.last = last
        self.weights.begin()
        loss = llama_sim.loss(self.decoder)
        forward = self._fullest()
        node = loss.node
        if node is not None:
            self.tape.backward(node, Block(self.meter, 0))
        del loss, node
        self.weights.end()
        self.gradients.finish(last=last)
        return forward, self._fullest()

    def step(self) -> Fullest:
        """The optimizer's step."""
        self.gradients.step()
        return self._fullest()

    def _fullest(self) -> Fullest:
        return Fullest(self.meter.peak_so_far(), self.meter.level)

    def _arrived(self, index: int, gradient: Block) -> None:
        self.gradients.arrived(index, gradient, last=self.last)


def peaks(engine: Engine, batch: Batch) -> dict[Moment, Fullest]:
    """Peak of each phase of a step that is not the first, on this rank's device.

    The phases are those of `resident`; `accumulation` is all micro steps but the last.
    """
    walk = _Walk(engine, batch)
    walk.micro_step(last=True)  # ZeRO 3 notes the order of the modules in its first
    walk.step()
    found: dict[Moment, Fullest] = {}
    if engine.accumulates:
        # The first micro step finds no gradients, the second one does, as all others do.
        parts = walk.micro_step(last=False) + walk.micro_step(last=False)
        found["accumulation"] = Fullest(max(one.peak for one in parts), parts[-1].end)
    found["forward"], found["backward"] = walk.micro_step(last=True)
    found["step"] = walk.step()
    return found
