"""The cluster that a row was measured on: card and nodes from the row, links from its kind.

Tables of training runs rarely name the network. What stands here is the usual machine of each
generation of cards: one adapter for each accelerator (V100: four a node), InfiniBand of its year.
"""

from __future__ import annotations

from functools import cache

from dsforge import catalog
from dsforge.specs import ClusterSpec, GpuSpec, LinkSpec
from dsforge.validate.table import Row

NETWORKS = {
    "V": "infiniband-100",
    "A": "infiniband-200",
    "H": "infiniband-400",
    "G": "infiniband-400",
    "B": "infiniband-400",
}
ADAPTERS, V100_ADAPTERS, BLOOM_ADAPTERS = 8, 4, 4
NODE = 8  # accelerators of a node where the row does not say
HOST_MEMORY_BYTES, CPU_CORES = 1 << 41, 96  # no table says; large enough not to matter


@cache
def _card(name: str) -> tuple[GpuSpec, LinkSpec]:
    """The card and the link that such cards have inside a node."""
    card = catalog.gpu(name)
    return card, catalog.default_intra_node(card)


def cluster_of(row: Row) -> ClusterSpec:
    """The machines of a row. SpecError where the catalog does not know the card."""
    card, intra_node = _card(row.gpu_type)
    gpus = row.gpus or 1
    per_node = min(row.gpus_per_node or NODE, gpus)
    adapters = V100_ADAPTERS if row.gpu_type[:1] == "V" else ADAPTERS
    if row.source.startswith("bs-"):  # Jean Zay: four Omni-Path adapters a node
        adapters = BLOOM_ADAPTERS
    return ClusterSpec.model_construct(
        nodes=-(-gpus // per_node),
        gpus_per_node=per_node,
        gpu=card,
        intra_node=intra_node,
        inter_node=catalog.link(NETWORKS.get(row.gpu_type[:1], "infiniband-200")),
        nics_per_node=adapters,
        host_memory_bytes=HOST_MEMORY_BYTES,
        cpu_cores=CPU_CORES,
    )
