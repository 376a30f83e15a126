"""The walk through a step: what it ends with is what `residency` says, and peaks are no less."""

from __future__ import annotations

import pytest

from dsforge import catalog
from dsforge.exact.autograd_sim import Block, MemoryMeter, Tape
from dsforge.exact.peaks import MicroBatch, phase_peaks
from dsforge.exact.residency import EngineRank, resident
from dsforge.exact.tensors import parameter_tensors
from dsforge.huggingface import tiny
from dsforge.specs import LoraSpec
from dsforge.strategy import ZeroStage

MODEL = tiny(catalog.model("llama-2-7b"))
ENGINES = {
    "zero0-bf16": (0, 2, False, None),
    "zero1-fp32": (1, 4, False, None),
    "zero2-lora-cpu": (2, 2, True, LoraSpec(rank=4)),
    "zero3-bf16": (3, 2, False, None),
    "zero3-lora": (3, 2, False, LoraSpec(rank=4)),
}


def engine(stage: ZeroStage, size: int, offload: bool, lora: LoraSpec | None) -> EngineRank:
    """One rank of eight with small buckets and accumulation."""
    return EngineRank(
        tensors=parameter_tensors(MODEL, lora),
        element_bytes=size,
        zero_stage=stage,
        world_size=8,
        rank=5,
        offload_optimizer=offload,
        accumulates=True,
        reduce_bucket_size=20_000,
        overlap_comm=True,
        persistence_threshold=1_000,
    )


@pytest.mark.parametrize("name", ENGINES)
def test_each_phase_ends_with_what_is_resident(name: str) -> None:
    """The walk counts every allocation and release; `residency` adds up what is there."""
    stage, size, offload, lora = ENGINES[name]
    how = engine(stage, size, offload, lora)  # type: ignore[arg-type]
    found = phase_peaks(how, MicroBatch(MODEL, samples=2, sequence_length=16, lora=lora))
    norms = 8 * sum(tensor.trainable for tensor in how.tensors) if offload else 0

    assert list(found) == ["accumulation", "forward", "backward", "step"]
    for phase in ("accumulation", "backward", "step"):
        told = resident(how, phase).device.total  # type: ignore[arg-type]
        assert told - norms <= found[phase].end <= told  # type: ignore[index]
    assert found["forward"].end > resident(how, "forward").device.total
    assert all(phase.peak >= phase.end for phase in found.values())


def test_recomputation_lowers_the_peak_of_a_deep_model() -> None:
    """Of each layer only the input is kept; one layer at a time is computed again."""
    deep = MODEL.model_copy(update={"layers": 8})
    how = engine(2, 2, False, None)._replace(tensors=parameter_tensors(deep))
    batch = MicroBatch(deep, samples=8, sequence_length=128)
    kept, dropped = (phase_peaks(how, batch._replace(recompute=flag)) for flag in (False, True))

    assert dropped["forward"].peak < 0.6 * kept["forward"].peak
    assert dropped["backward"].end == kept["backward"].end


def test_gradients_that_meet_are_added_into_a_third_block() -> None:
    """As torch adds them: both are alive until the sum is there."""
    meter = MemoryMeter()
    tape = Tape(meter)
    arrived: list[int] = []
    weight = tape.parameter(10, lambda gradient: arrived.append(meter.current))
    one = tape.result(0, (weight,), lambda _: [tape.block(10)])
    other = tape.result(0, (weight,), lambda _: [tape.block(10)])
    loss = tape.result(0, (one, other), lambda gradient: [gradient, gradient])
    node = loss.node
    assert node is not None
    tape.backward(node, Block(meter, 0))

    assert arrived == [10]
    assert meter.take_peak() == 30
    assert meter.current == 0
