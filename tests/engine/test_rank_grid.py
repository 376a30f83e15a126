"""The rank grid of a plan is that of DeepSpeed's topology, which the pipeline engine makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsforge.layout import Layout

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.engine
SIZE = st.integers(1, 6)


@given(data=SIZE, tensor=SIZE, stages=SIZE)
def test_every_rank_stands_where_deepspeed_puts_it(data: int, tensor: int, stages: int) -> None:
    """Both ways, and every place has one rank; tensor ranks are neighbours."""
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    layout = Layout(
        data_parallel_size=data, tensor_parallel_size=tensor, pipeline_parallel_size=stages
    )
    topology = PipeModelDataParallelTopology(num_pp=stages, num_mp=tensor, num_dp=data)
    places = set()
    for rank in range(layout.world_size):
        at, theirs = layout.coordinates(rank), topology.get_coord(rank)
        assert (at.pipeline, at.data, at.tensor) == (theirs.pipe, theirs.data, theirs.model)
        assert layout.rank(at) == rank == topology.get_rank(**theirs._asdict())
        places.add(at)
    groups = topology.get_axis_comm_lists("model") if tensor > 1 else []

    assert len(places) == layout.world_size == topology.world_size()
    assert all(group == list(range(group[0], group[0] + tensor)) for group in groups)
