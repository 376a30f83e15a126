"""A rank's place: the same answers with a layout of data parallelism alone as without one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsforge.layout import Layout
from dsforge.train.parallel.ranks import Place, place_of_process


@given(world_size=st.integers(1, 10_000), data=st.data())
def test_without_a_layout_all_ranks_are_data_parallel(world_size: int, data: st.DataObject) -> None:
    """Every rank is a replica of its own and alone in it."""
    rank = data.draw(st.integers(0, world_size - 1))
    place = Place(rank, 0, world_size)

    assert (place.replica, place.replicas, place.copies) == (rank, world_size, 1)
    assert place.sizes == Layout(data_parallel_size=world_size)


@given(sizes=st.tuples(*[st.integers(1, 6)] * 4), data=st.data())
def test_a_layout_says_which_replica_a_rank_belongs_to(
    sizes: tuple[int, int, int, int], data: st.DataObject
) -> None:
    """Each replica has as many ranks as share the model."""
    replicas, tensor, pipeline, context = sizes
    layout = Layout(
        data_parallel_size=replicas,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        context_parallel_size=context,
    )
    places = [Place(rank, 0, layout.world_size, layout) for rank in range(layout.world_size)]
    wanted = data.draw(st.integers(0, replicas - 1))

    assert sum(place.replica == wanted for place in places) == layout.model_ranks
    assert {place.copies for place in places} == {tensor}


def test_the_place_of_a_process_has_no_layout_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher gives three numbers; the world size is not taken for a layout."""
    for name, value in {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)

    assert place_of_process() == Place(rank=3, local_rank=1, world_size=8, layout=None)
