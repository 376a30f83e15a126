"""Word embedding and head outside of FSDP's layers: one size, wherever it is asked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsforge import catalog
from dsforge.engines import BY_NAME, Held, Sharding
from dsforge.estimate.host import _units
from dsforge.estimate.params import parameters
from dsforge.layout import Layout
from dsforge.specs import ModelSpec, Workload
from dsforge.strategy import EXECUTIONS, Buckets, Strategy
from dsforge.zero_stages import FULLY_SHARDED

NAMES = ("gpt2-xl", "qwen2.5-0.5b", "llama-3.2-1b", "llama-2-7b", "gemma-2-9b", "opt-350m")
SIZES = {name: 10**6 for name in Buckets.model_fields if name != "overlap_comm"}
BUCKETS = Buckets(**SIZES, overlap_comm=True)


def gathered(model: ModelSpec, ranks: int, tp: int, *, in_ram: bool) -> float:
    """Elements that FSDP holds whole at once."""
    held = Held(parameters(model) / tp, parameters(model) / tp, model.layers)
    layout = Layout(data_parallel_size=ranks, tensor_parallel_size=tp)
    sharding = Sharding(layout, FULLY_SHARDED, in_ram)
    return BY_NAME["fsdp"].buffer_elements(model, held, sharding, BUCKETS)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(NAMES), st.sampled_from([1, 2, 8, 64]), st.sampled_from([1, 2]), st.booleans()
)
def test_an_untied_head_is_one_more_matrix_that_stays_gathered(
    name: str, ranks: int, tp: int, in_ram: bool
) -> None:
    """The layers are the same: nothing else may differ, but shards of it that come from RAM."""
    tied, untied = (
        catalog.model(name).model_copy(update={"tied_embeddings": tied}) for tied in (True, False)
    )
    matrix = tied.vocab_size * tied.embedding_size
    more = gathered(untied, ranks, tp, in_ram=in_ram) - gathered(tied, ranks, tp, in_ram=in_ram)

    assert untied.end_elements == 2 * tied.end_elements == 2 * matrix
    if not in_ram:
        assert more == pytest.approx(matrix / tp, rel=1e-9)
    else:
        assert matrix / tp * (1 - 1e-9) <= more <= matrix / tp * (1 + 3 / ranks)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tied", [True, False])
def test_what_is_pinned_outside_of_layers_is_what_is_gathered_there(name: str, tied: bool) -> None:
    """One page-locked shard of those matrices, beside one of each layer."""
    model, ranks = catalog.model(name).model_copy(update={"tied_embeddings": tied}), 8
    strategy = Strategy(
        layout=Layout(data_parallel_size=ranks),
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        zero_stage=FULLY_SHARDED,
        offload_parameters="cpu",
        offload_optimizer="cpu",
        execution=EXECUTIONS["fsdp"],
    )
    work = Workload(sequence_length=512, global_batch_size=ranks, learning_rate=1e-4)
    shards = 4.0 * parameters(model) / ranks
    *layers, outer = _units(model, work, strategy, shards)

    assert outer == pytest.approx(4 * model.end_elements / ranks)
    assert sum(layers) + outer == pytest.approx(shards)
