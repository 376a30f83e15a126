"""What all members of a family share: the beginning of every price.

Micro batch, accumulation, interleaving and recomputation are chosen inside a family; parameters,
states, buckets, links and host memory do not depend on them. The planner prices dozens of members
from one frame.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.estimate.buckets import is_own_config
from dsforge.estimate.comm import Channels, channels
from dsforge.estimate.host import HostMemory, checkpoint_bytes, host_memory, load_copies_bytes
from dsforge.estimate.states import Load, loads
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.strategy import Buckets, Strategy


class FamilyCosts(NamedTuple):
    """The inputs, and what follows from them and from the family alone."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    loads: tuple[Load, ...]  # of each kind of stage; one without a pipeline
    fullest: Load  # with the most parameters: it sets the pace of what follows from them
    hosted: Load  # with the most off its device: a node is counted as if all its ranks were such
    links: Channels
    host: HostMemory
    own_config: bool  # dsforge's, whose trainer and launch scripts are known
    load_copies_bytes: int  # that any phase of the node may show more
    nvme_bytes: int  # of a node
    checkpoint_bytes: int

    @property
    def buckets(self) -> Buckets:
        """Sizes of ZeRO's buffers: one config sets them for the ranks of all stages."""
        return self.loads[0].buckets


def family_costs(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy
) -> FamilyCosts:
    """The costs of a strategy and of all others of its family."""
    carried = loads(model, cluster, workload, strategy)
    hosted = max(carried, key=lambda load: (load.kept.host, load.kept.nvme))
    fullest = max(carried, key=lambda load: load.held.total)
    own = is_own_config(model, cluster, strategy, fullest.held.stored)
    own = own and strategy.runs_as.is_ours
    return FamilyCosts(
        model=model,
        cluster=cluster,
        workload=workload,
        loads=carried,
        fullest=fullest,
        hosted=hosted,
        links=channels(cluster, strategy.layout, strategy.weight_group),
        host=host_memory(model, cluster, workload, strategy, kept=hosted.kept),
        own_config=own,
        load_copies_bytes=0 if own else load_copies_bytes(model, cluster, workload, strategy),
        nvme_bytes=round(hosted.kept.nvme * cluster.gpus_per_node),
        checkpoint_bytes=checkpoint_bytes(model, workload, strategy),
    )
