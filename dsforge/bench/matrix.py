"""Which runs a comparison needs: one cell for each strategy and repeat, in the order of launch."""

from __future__ import annotations

from typing import get_args

from pydantic import BaseModel, Field

from dsforge.errors import LayoutError, Problem, SpecError
from dsforge.plan import Plan, Priced, VariantName
from dsforge.specs import FROZEN

STRATEGIES: tuple[VariantName, ...] = tuple(n for n in get_args(VariantName) if n != "megatron")


class Cell(BaseModel):
    """One launch of the matrix."""

    model_config = FROZEN

    variant: VariantName = Field(description="Strategy by the name of its files.")
    repeat: int = Field(ge=1, description="Repetition of the launch, counted from 1.")

    @property
    def name(self) -> str:
        """Folder of the cell: `zero2-1`."""
        return f"{self.variant}-{self.repeat}"

    @property
    def config(self) -> str:
        """Its ds_config in the run folder."""
        return f"deepspeed/{self.variant}.json"


def parse_strategies(text: str) -> tuple[VariantName, ...]:
    """Names from the command line: `2,3` or `zero2,zero3_offload`, each once, in order of sharding.

    Raises SpecError with every word that is no strategy.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    names = [f"zero{word}" if word.isdecimal() else word for word in words]
    wrong = [w for w, name in zip(words, names, strict=True) if name not in STRATEGIES]
    if wrong or not words:
        legal = "1, 2, 3, " + ", ".join(name for name in STRATEGIES if "_" in name)
        problems = [
            Problem("bench-strategy", f"`--stages` (={word}) is not a strategy", f"use {legal}")
            for word in wrong or [text]
        ]
        raise SpecError(tuple(problems))
    return tuple(name for name in STRATEGIES if name in names)


def priced(plan: Plan, variant: VariantName) -> Priced:
    """Strategy and price of a variant. Raises LayoutError where the plan has no such variant."""
    found = next((v for v in plan.variants if v.name == variant), None)
    if found is not None and found.priced is not None:
        return found.priced
    missing = Problem("bench-variant", f"the plan has no {variant}", "run `dsforge gen` again")
    raise LayoutError(found.problems if found and found.problems else (missing,))


def matrix(plan: Plan, variants: tuple[VariantName, ...], repeats: int) -> tuple[Cell, ...]:
    """All cells; repeats are interleaved, so that a slow spell of the machine hits every strategy.

    Raises LayoutError with the broken rules of every variant that the plan forbids.
    """
    problems: list[Problem] = []
    for variant in variants:
        try:
            priced(plan, variant)
        except LayoutError as error:
            problems += error.problems
    if problems:
        raise LayoutError(tuple(problems))
    rounds = range(1, repeats + 1)
    return tuple(Cell(variant=name, repeat=repeat) for repeat in rounds for name in variants)
