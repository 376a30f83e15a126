"""Engines: one module for each piece of training software that predictions know.

A new engine is a module with an `ENGINE`, its entry in `ENGINES`, and a row in
`tests/engines/test_engines.py`. dsforge writes files for those that are a `BackEnd`; the others are
known so that published runs of theirs can judge the estimates.
"""

from __future__ import annotations

from dsforge.engines import ddp, deepspeed, fsdp, megatron, megatron_fsdp, nanotron, torchtune
from dsforge.engines.engine import Engine, Held, Messages, Sharding, Stalls
from dsforge.execution import Execution

ENGINES: tuple[Engine, ...] = (
    deepspeed.ENGINE,
    megatron.ENGINE,
    nanotron.ENGINE,
    megatron_fsdp.ENGINE,
    fsdp.ENGINE,
    ddp.ENGINE,
    torchtune.ENGINE,
)
BY_NAME: dict[str, Engine] = {engine.name: engine for engine in ENGINES}
EXECUTIONS: dict[str, Execution] = {engine.name: engine.execution for engine in ENGINES}

__all__ = ["BY_NAME", "ENGINES", "EXECUTIONS", "Engine", "Held", "Messages", "Sharding", "Stalls"]
