"""Programs that train by themselves, such as torchtitan: what each can do, one table.

The planner searches only what a program can do and prices it as the program runs it
(`constraints/programs.py` refuses the rest by name); `targets/` writes its files.
"""

from __future__ import annotations

from typing import Literal, get_args

from dsforge.engines import BY_NAME as ENGINES
from dsforge.execution import BackEnd
from dsforge.programs import hugging_face, megatron_family, pytorch
from dsforge.programs.program import Program, Way
from dsforge.zero_stages import ZeroStage

ProgramName = Literal[
    "torch",
    "transformers",
    "accelerate-fsdp",
    "accelerate-fsdp1",
    "trl",
    "axolotl",
    "llama-factory",
    "ms-swift",
    "lightning",
    "torchtitan",
    "torchtune",
    "megatron-deepspeed",
    "gpt-neox",
    "megatron-bridge",
    "colossalai",
]
NAMES: tuple[ProgramName, ...] = get_args(ProgramName)
PROGRAMS: tuple[Program, ...] = (
    *hugging_face.PROGRAMS,
    *pytorch.PROGRAMS,
    *megatron_family.PROGRAMS,
)
BY_NAME: dict[str, Program] = {program.name: program for program in PROGRAMS}
OWN = tuple(program.name for program in PROGRAMS if program.is_own)  # `dsforge train` itself

__all__ = [
    "BY_NAME",
    "NAMES",
    "OWN",
    "PROGRAMS",
    "Program",
    "ProgramName",
    "Way",
    "back_end_of",
    "is_own",
    "way_of",
    "ways_of",
]


def ways_of(
    program: str, engine: str | None = None, back_end: BackEnd | None = None
) -> tuple[Way, ...]:
    """How a program runs on an engine or a back end, its usual way first; empty: it does not."""
    return tuple(
        way
        for way in BY_NAME[program].ways
        if engine in (None, way.execution.trainer) and back_end in (None, back_end_of(way))
    )


def way_of(
    program: str,
    engine: str | None = None,
    back_end: BackEnd | None = None,
    stage: ZeroStage | None = None,
) -> Way | None:
    """The way that a program takes on an engine or a back end; none where it does not run there.

    The first that shards like a ZeRO stage, if one does: plain torch has DDP and FSDP2.
    """
    ways = ways_of(program, engine, back_end)
    return next((way for way in ways if stage in way.stages), next(iter(ways), None))


def is_own(program: str | None) -> bool:
    """Whether `dsforge train` does what a program's plan says; so it does without a program."""
    return program is None or BY_NAME[program].is_own


def back_end_of(way: Way) -> BackEnd:
    """The back end under which strategies of a way are written."""
    return ENGINES[way.execution.trainer].back_end
