"""What a choice is weighed against: the fastest plan of each family, and what fits less surely."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from operator import attrgetter
from typing import NamedTuple

from dsforge.plan import Request
from dsforge.planner.back_ends import BACK_ENDS, can_build, fine_tuned, needs_deepspeed
from dsforge.planner.explore import Candidate, Explored, Explorer
from dsforge.planner.preference import choice, counted, doubt, tight_and_faster
from dsforge.programs.converters import BRIDGE
from dsforge.specs import QLORA_BITS
from dsforge.strategy import Strategy


class Rivals(NamedTuple):
    """What else was found, the fastest member of each family standing for it."""

    explored: tuple[Explored, ...]
    likewise: tuple[Candidate, ...]  # of those that fit as surely as the choice
    kept: tuple[Candidate, ...]  # of those, recomputing nothing
    fitting: tuple[Candidate, ...]  # of all that likely fit
    tight: Candidate | None  # the fastest that fits less surely, where it beats all these
    quantised: Candidate | None  # under QLoRA, where LoRA has to offload
    left_out: Candidate | None  # on Megatron-LM, where trained weights keep it out of the search
    elsewhere: Candidate | None  # on a Megatron trainer, where `pretrain_gpt.py` cannot build it
    freely: Candidate | None  # what dsforge would choose, where a program limits the search

    def fastest(self, wanted: Callable[[Strategy], bool]) -> Candidate | None:
        """The fastest that fits likewise, of the families that are wanted."""
        return fastest(c for c in self.likewise if wanted(c.family))

    def legal(self, wanted: Callable[[Strategy], bool]) -> bool:
        """Whether a family that is wanted breaks no rule."""
        return any(wanted(found.family) and not found.problems for found in self.explored)

    def likely(self, wanted: Callable[[Strategy], bool]) -> Candidate | None:
        """The fastest that likely fits, of the families that are wanted."""
        return fastest(c for c in self.fitting if wanted(c.family))


def rivals(request: Request, explored: tuple[Explored, ...]) -> Rivals:
    """What else was found; once for all rows of a search."""
    fitting = tuple(candidate for found in explored for candidate in found.fitting)
    most = doubt(request, fitting)
    members = [
        [candidate for candidate in found.fitting if candidate.excess_bytes <= most]
        for found in explored
    ]
    kept = ([c for c in group if c.recompute == "none"] for group in members)
    likewise = tuple(filter(None, map(fastest, members)))
    return Rivals(
        explored=explored,
        likewise=likewise,
        kept=tuple(filter(None, map(fastest, kept))),
        fitting=tuple(filter(None, (fastest(found.fitting) for found in explored))),
        tight=tight_and_faster(request, fitting) if fitting else None,
        quantised=_quantised(request, likewise),
        left_out=_left_out(request),
        elsewhere=_elsewhere(request),
        freely=_freely(request),
    )


def _quantised(request: Request, likewise: tuple[Candidate, ...]) -> Candidate | None:
    """The choice under QLoRA, where all that fits under LoRA offloads and this does not."""
    work = request.workload
    if work.lora is None or work.is_quantised or not all(c.family.offloads for c in likewise):
        return None
    lora = work.lora.model_copy(update={"bits": QLORA_BITS})
    fewer_bits = {"workload": work.model_copy(update={"lora": lora})}
    asked = request.model_copy(update=fewer_bits)
    found = tuple(c for e in Explorer(asked).every() for c in e.fitting if c.safe)
    best = choice(asked, found) if found else None
    return None if best is None or best.family.offloads else best


def _left_out(request: Request) -> Candidate | None:
    """The fastest Megatron-LM plan, where trained weights or rows of data keep it out."""
    fixed = request.constraints
    if fixed.back_end or fixed.program or needs_deepspeed(request) or not fine_tuned(request):
        return None
    if request.workload.method == "lora":  # no conversion brings adapters to `pretrain_gpt.py`
        return None
    on_megatron = {"constraints": fixed.model_copy(update={"back_end": BACK_ENDS[1]})}
    asked = request.model_copy(update=on_megatron)
    fitting = tuple(one for found in Explorer(asked).every() for one in found.fitting)
    return fastest(counted(asked, fitting))


def _elsewhere(request: Request) -> Candidate | None:
    """The fastest plan on Megatron's layers of a model that `pretrain_gpt.py` cannot build.

    Of whole samples, unless a person asks to share them: a fraction of the families, which cost
    little time to look at.
    """
    fixed = request.constraints
    if fixed.back_end or fixed.program or fixed.trainer or needs_deepspeed(request):
        return None
    if request.workload.method == "lora" or can_build(request, BACK_ENDS[1]):
        return None
    whole = {"context_parallel_size": fixed.context_parallel_size or 1}
    builds = builder(request.model.model_type)
    asked = request.model_copy(
        update={"constraints": fixed.model_copy(update={**builds, **whole}), "part_step_s": inf}
    )
    fitting = tuple(one for found in Explorer(asked).every() for one in found.fitting)
    return fastest(counted(asked, fitting))


def builder(model_type: str | None) -> dict[str, str]:
    """The constraints under which Megatron's layers train a kind of model: a program, or scripts.

    Megatron-Bridge for what it has a bridge for, else scripts that somebody has written.
    """
    if model_type in BRIDGE.kinds and BRIDGE.program is not None:
        return {"program": BRIDGE.program}
    return {"back_end": BACK_ENDS[1], "software": "others"}


def _freely(request: Request) -> Candidate | None:
    """The choice for dsforge's own engines, where a program that trains by itself is asked for."""
    if request.constraints.program is None:
        return None
    update = {"program": None, "trainer": None, "back_end": None}
    freed = request.constraints.model_copy(update=update)
    # the best of fewer machines is known of the program only
    asked = request.model_copy(update={"constraints": freed, "part_step_s": inf})
    fitting = tuple(one for found in Explorer(asked).every() for one in found.fitting)
    return choice(asked, fitting) if fitting else None


def fastest(candidates: Iterable[Candidate]) -> Candidate | None:
    """The candidate with the smallest step; none of none."""
    return min(candidates, key=attrgetter("step_s"), default=None)
