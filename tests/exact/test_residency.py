"""The rules of residency, by hand on a model of three tensors; the engine proves it elsewhere."""

from __future__ import annotations

import pytest

from dsforge import catalog
from dsforge.errors import SpecError
from dsforge.estimate.params import parameters
from dsforge.exact.residency import (
    EngineRank,
    Tensor,
    partition_elements,
    resident,
    touched_elements,
)
from dsforge.exact.tensors import parameter_tensors
from dsforge.specs import LoraSpec

THREE = EngineRank(
    (Tensor(10), Tensor(7), Tensor(4)),
    element_bytes=2,
    zero_stage=2,
    world_size=3,
    reduce_bucket_size=5,
    persistence_threshold=4,
)


def test_a_partition_is_padded_to_two_elements_a_rank() -> None:
    """21 elements on 3 ranks: 24, 8 each."""
    assert partition_elements(THREE) == 8


@pytest.mark.parametrize(("rank", "touched"), [(0, (10,)), (1, (10, 7)), (2, (7, 4))])
def test_gradients_are_kept_for_whole_tensors(rank: int, touched: tuple[int, ...]) -> None:
    """Tensors that a partition only touches count whole."""
    assert touched_elements(THREE._replace(rank=rank)) == touched


def test_a_rank_of_nothing_but_padding_keeps_zeros() -> None:
    """One tensor of two elements on 64 ranks: most partitions are padding."""
    engine = EngineRank((Tensor(2),), 2, 1, world_size=64, rank=63)

    assert touched_elements(engine) == ()
    assert resident(engine, "backward").device.gradient == 2 * 2


def test_zero_3_pads_each_tensor_by_itself() -> None:
    """4 + 3 + 2 elements of a rank, in two bytes."""
    held = resident(THREE._replace(zero_stage=3), "init").device

    assert held.parameter == 2 * (4 + 3 + 2)
    assert held.gradient == held.parameter
    assert held.buffer == 2 * 5 + 1


def test_zero_3_keeps_small_tensors_whole_after_the_first_step() -> None:
    """The tensor of 4 elements is gathered into 3 partitions of 2."""
    held = resident(THREE._replace(zero_stage=3), "step").device

    assert held.parameter == 2 * (4 + 3 + 2) + 2 * 6


def test_offload_leaves_weights_and_one_staging_buffer() -> None:
    """Masters, gradients and moments are on the host, 16 bytes a parameter and staging."""
    held = resident(THREE._replace(offload_optimizer=True), "step")

    assert held.device == (2 * 24, 0, 0, 2 * 10)
    assert held.host.optimizer_state == 12 * 8
    assert held.host.gradient == 4 * 8


def test_more_than_zero_1_is_not_always_less() -> None:
    """Small models under default buckets: ZeRO 3 holds more at rest than ZeRO 2."""
    small = THREE._replace(reduce_bucket_size=500_000_000)
    totals = [resident(small._replace(zero_stage=stage), "step").device.total for stage in (2, 3)]

    assert totals[0] < totals[1]


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3-8b", "qwen2.5-7b", "smollm2-135m"])
def test_the_tensors_add_up(name: str) -> None:
    """The list holds every parameter of the model."""
    model = catalog.model(name)

    assert sum(t.elements for t in parameter_tensors(model)) == parameters(model)


def test_adapters_are_what_is_trained() -> None:
    """Seven linear layers of a Llama layer have two adapters each."""
    model = catalog.model("llama-2-7b")
    tensors = parameter_tensors(model, LoraSpec(rank=16))

    assert sum(t.trainable for t in tensors) == 2 * 7 * model.layers
    assert sum(t.elements for t in tensors if t.trainable) == 39_976_960


def test_a_model_with_experts_is_not_listed() -> None:
    """The error names the way out."""
    with pytest.raises(SpecError, match="1 problem") as caught:
        parameter_tensors(catalog.model("mixtral-8x7b"))

    assert "dsforge rehearse" in str(caught.value.problems[0])
