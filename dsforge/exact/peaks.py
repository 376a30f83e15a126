"""Peak device memory of each phase of a step on one rank, in bytes.

A whole step is simulated, allocation by allocation: the model's operations on an autograd tape, the
engine's gathers and buckets in their order. At the end of each phase it reaches what `residency`
computes (tests/exact/test_peaks.py); peaks are compared with the engine itself
(tests/engine/test_exact.py).
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.exact import llama_sim
from dsforge.exact.autograd_sim import Block, MemoryMeter, Tape
from dsforge.exact.gradients import reduction
from dsforge.exact.llama_sim import Decoder
from dsforge.exact.residency import EngineRank, Phase, resident, weight_bytes
from dsforge.exact.torch_operations import OpContext
from dsforge.exact.zero3 import PartitionedWeights, Weights
from dsforge.specs import LoraSpec, ModelSpec
from dsforge.strategy import FULLY_SHARDED


class MicroBatch(NamedTuple):
    """One micro batch, and whether its activations are recomputed."""

    model: ModelSpec
    samples: int
    sequence_length: int
    lora: LoraSpec | None = None
    recompute: bool = False


class PhasePeak(NamedTuple):
    """Bytes of one phase: the most that were allocated at once, and those left at its end."""

    peak: int
    end: int


class _RankSimulation:
    """The state of one rank between the phases of its steps."""

    def __init__(self, engine: EngineRank, batch: MicroBatch) -> None:
        self.engine, self.batch, self.last = engine, batch, False
        self.meter = MemoryMeter(resident(engine, "step").device.total)
        self.tape = Tape(self.meter)
        self.gradients = reduction(engine, self.meter)
        partitioned = engine.zero_stage == FULLY_SHARDED
        kind = PartitionedWeights if partitioned else Weights
        self.weights = kind(engine, self.tape, self._arrived)
        context = OpContext(self.tape, batch.samples * batch.sequence_length, engine.element_bytes)
        self.decoder = Decoder(
            context,
            batch.model,
            batch.lora,
            batch.recompute,
            partitioned,
            max((weight_bytes(engine, t) for t in engine.tensors if t.trainable), default=0),
            self.weights,
        )

    def micro_step(self, *, last: bool) -> tuple[PhasePeak, PhasePeak]:
        """Forward and backward of one micro batch."""
        self.last = last
        self.weights.begin()
        loss = llama_sim.loss(self.decoder)
        forward = self._phase_peak()
        node = loss.node
        if node is not None:
            self.tape.backward(node, Block(self.meter, 0))
        del loss, node
        self.weights.end()
        self.gradients.finish(last=last)
        return forward, self._phase_peak()

    def step(self) -> PhasePeak:
        """The optimizer's step."""
        self.gradients.step()
        return self._phase_peak()

    def _phase_peak(self) -> PhasePeak:
        return PhasePeak(self.meter.take_peak(), self.meter.current)

    def _arrived(self, index: int, gradient: Block) -> None:
        self.gradients.arrived(index, gradient, last=self.last)


def phase_peaks(engine: EngineRank, batch: MicroBatch) -> dict[Phase, PhasePeak]:
    """Peak of each phase of a step that is not the first, on this rank's device.

    The phases are those of `resident`; `accumulation` is all micro steps but the last.
    """
    walk = _RankSimulation(engine, batch)
    walk.micro_step(last=True)  # ZeRO-3 notes the order of the modules in its first
    walk.step()
    found: dict[Phase, PhasePeak] = {}
    if engine.accumulates:
        # The first micro step finds no gradients, the second one does, as all others do.
        parts = walk.micro_step(last=False) + walk.micro_step(last=False)
        found["accumulation"] = PhasePeak(max(one.peak for one in parts), parts[-1].end)
    found["forward"], found["backward"] = walk.micro_step(last=True)
    found["step"] = walk.step()
    return found
