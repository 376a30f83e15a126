"""ZeRO stages and where they keep states: names that every room shares, without pydantic.

`lint` starts without pydantic, so these do not stand in `strategy.py`, whose models use them.
"""

from __future__ import annotations

from typing import Literal

ZeroStage = Literal[0, 1, 2, 3]
Offload = Literal["none", "cpu", "nvme"]

ZERO_STAGES: tuple[ZeroStage, ...] = (0, 1, 2, 3)
GRADIENTS_SHARDED: ZeroStage = 2  # and optimizer state
FULLY_SHARDED: ZeroStage = 3  # and parameters
