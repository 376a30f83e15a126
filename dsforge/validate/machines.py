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
ADAPTERS, V100_ADAPTERS = 8, 4
# Machines whose network was published: link and adapters of a node, by the start of the id.
SITES = (
    ("bs-", "omni-path-100", 4),  # Jean Zay (net-0175 to -0177)
    ("nano-", "efa-p5", 8),  # AWS (net-0152 to -0172)
    ("internlm", "roce-100", 4),  # stated beside the table
)
# Trays of four, joined by NVLink; of the 72 accelerators of a rack a power of two is used.
TRAY, TRAYS_OF_A_DOMAIN = {"GB200": 4, "GB300": 4}, 16
FP4_FLOPS = {"GB200": 10e15, "GB300": 15e15, "B200": 9e15, "B300": 13.5e15}  # dense, datasheets
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
    gpus, family = row.gpus or 1, row.gpu_type.split("-")[0]
    if row.precision == "nvfp4" and family in FP4_FLOPS:
        card = _with_fp4(card, FP4_FLOPS[family])
    per_node = min(TRAY.get(family, row.gpus_per_node or NODE), gpus)
    network, adapters = _network(row)
    return ClusterSpec.model_construct(
        nodes=-(-gpus // per_node),
        gpus_per_node=per_node,
        gpu=card,
        intra_node=intra_node,
        inter_node=catalog.link(network),
        nics_per_node=per_node if family in TRAY else adapters,
        nvlink_domain_nodes=TRAYS_OF_A_DOMAIN if family in TRAY else 1,
        host_memory_bytes=HOST_MEMORY_BYTES,
        cpu_cores=CPU_CORES,
    )


def _with_fp4(card: GpuSpec, flops: float) -> GpuSpec:
    """The card with products in 4 bits in the place of those in 8."""
    return card.model_copy(update={"peak_flops": {**card.peak_flops, "fp8": flops}})


def _network(row: Row) -> tuple[str, int]:
    """Link between nodes and adapters of a node."""
    for start, link, adapters in SITES:
        if row.source.startswith(start):
            return link, adapters
    usual = V100_ADAPTERS if row.gpu_type[:1] == "V" else ADAPTERS
    return NETWORKS.get(row.gpu_type[:1], "infiniband-200"), usual
