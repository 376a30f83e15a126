"""ds_config: the one reading of a DeepSpeed config.

`read` turns the parsed JSON into a `DsConfig`, whose fields are what the planner, `estimate`,
`train`, `rehearse`, `preflight` and `lint` need to know, and into all problems at once. It follows
DeepSpeed 0.19: defaults, old spellings and what the engine ignores. `unpriced` names the keys that
change memory or time without having a price; `keys.py` lists every key of every release.
"""

from __future__ import annotations

from dsforge.ds_config.batch import Batch, batch_of
from dsforge.ds_config.config import (
    BALANCED,
    PARTITIONS,
    DsConfig,
    Partition,
)
from dsforge.ds_config.keys import Treatment, treatment
from dsforge.ds_config.read import Reading, read
from dsforge.ds_config.unpriced import unknown, unpriced

__all__ = [
    "BALANCED",
    "PARTITIONS",
    "Batch",
    "DsConfig",
    "Partition",
    "Reading",
    "Treatment",
    "batch_of",
    "read",
    "treatment",
    "unknown",
    "unpriced",
]
