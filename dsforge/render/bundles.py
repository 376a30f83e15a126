"""Which files a choice needs: what starts the chosen strategy, and beside it one alternative.

`launch/` and `train.yaml` belong to the choice, whichever back end it has. The best strategy of the
other back end is written where it fits, and stands apart: its scripts lie in the folder that is
named after its back end, so nobody starts it without naming it.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.plan import Plan, Priced
from dsforge.programs import is_own
from dsforge.strategy import BackEnd, Strategy

PROGRAMS_FOLDER = "for"  # in the run folder: files of other programs, each in a folder of its own
CHOSEN = "launch"  # the folder of the scripts that start the choice
TRAIN, TRAIN_ALTERNATIVE = "train.yaml", "train-deepspeed.yaml"


class Bundle(NamedTuple):
    """One strategy that can be started, and the folder of the scripts that start it."""

    priced: Priced
    folder: str

    @property
    def strategy(self) -> Strategy:
        """The strategy."""
        return self.priced.strategy

    @property
    def is_choice(self) -> bool:
        """Whether the plan has chosen it."""
        return self.folder == CHOSEN

    @property
    def train(self) -> str:
        """Its job for `dsforge train`, where DeepSpeed or plain torch runs it."""
        return TRAIN if self.is_choice else TRAIN_ALTERNATIVE

    def script(self, name: str) -> str:
        """Path of one of its scripts in the run folder."""
        return f"{self.folder}/{name}"


def bundles(plan: Plan) -> tuple[Bundle, ...]:
    """The choice, then the fastest strategy of the other back end that fits, if one does.

    Adapters have no files for Megatron-LM. A program that trains by itself stands alone: its files
    are those of its target, but for plain torch, which `dsforge train` runs.
    """
    program = plan.strategy.runs_as.program
    if program is not None:
        own = is_own(program)
        return (Bundle(plan.choice, CHOSEN if own else f"{PROGRAMS_FOLDER}/{program}"),)
    other: BackEnd = "megatron" if plan.strategy.back_end == "deepspeed" else "deepspeed"
    if plan.workload.method == "lora":
        return (Bundle(plan.choice, CHOSEN),)
    fitting = [
        variant.priced
        for variant in plan.variants
        if variant.priced is not None
        and variant.priced.fits
        and variant.priced.strategy.back_end == other
    ]
    chosen = Bundle(plan.choice, CHOSEN)
    if not fitting:
        return (chosen,)
    return (chosen, Bundle(min(fitting, key=lambda p: p.time.step_s.likely), other))
