"""What the engine would import for nothing: seconds at the start of every run.

DeepSpeed imports its Muon for every optimizer, and a decorator there asks torch for its compiler
as soon as it is read: Inductor and all that it brings, 4 to 15 s, although nothing is compiled.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module

SWITCH = "TORCHDYNAMO_DISABLE"  # torch looks at it at each `torch.compile`
MUON = "deepspeed.runtime.zero.muon.muon_optimizer"


def import_muon(optimizer: str) -> None:
    """Import DeepSpeed's Muon without the compiler, unless it is the optimizer of the run."""
    if "muon" in optimizer.lower() or SWITCH in os.environ:
        return
    os.environ[SWITCH] = "1"
    try:
        with suppress(ImportError):  # an older DeepSpeed has none
            import_module(MUON)
    finally:
        del os.environ[SWITCH]
