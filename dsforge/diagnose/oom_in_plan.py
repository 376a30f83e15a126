"""An out-of-memory error in the terms of the plan: which term grew, and how far over it went.

torch says what it could not allocate; the plan says what each term was expected to take. Together
they tell whether the plan was wrong, or another program held the difference.
"""

from __future__ import annotations

from dsforge.diagnose.memory_moments import figures, term_of
from dsforge.diagnose.ranking import Cause
from dsforge.plan import Plan
from dsforge.units import gib

RULE = "cuda-out-of-memory"


def in_ledger_terms(causes: tuple[Cause, ...], plan: Plan) -> tuple[Cause, ...]:
    """The causes, with what the plan knows added to an out-of-memory error."""
    return tuple(_explained(cause, plan) if cause.rule == RULE else cause for cause in causes)


def _explained(cause: Cause, plan: Plan) -> Cause:
    """The cause with the term, the excess and the variants of the plan that need less."""
    memory = plan.choice.memory
    terms = memory.terms.model_dump()
    hit = cause.hits[0]
    term = term_of(hit.before) or max(terms, key=lambda name: terms[name])
    known = figures(hit.text)
    share = f"{gib(terms[term])} of {gib(memory.device_bytes.likely)} on the device"
    parts = [f"the term is `{term}`: the plan gives it {share}"]
    if {"total", "free", "tried"} <= known.keys():
        wanted = known["total"] - known["free"] + known["tried"]
        over = wanted - known["total"]
        beyond = wanted - memory.device_bytes.likely
        parts.append(
            f"this step wanted {gib(wanted)}, {gib(over)} over the card and "
            f"{gib(abs(beyond))} {'over' if beyond > 0 else 'under'} the plan"
        )
        if wanted > memory.device_bytes.high:
            parts.append(
                "that is beyond the plan's interval: check sequence length, micro batch "
                "and other processes on the card"
            )
    smaller = [*_smaller(plan), *_halved(plan)]
    return cause._replace(
        message=f"{cause.message}. {'; '.join(parts)}",
        fix="\n".join(smaller) or cause.fix,
    )


def _halved(plan: Plan) -> list[str]:
    """Half the micro batch at the same global batch, where there is a half."""
    strategy = plan.strategy
    micro, steps = strategy.micro_batch_size, strategy.gradient_accumulation_steps
    if micro == 1:
        return []
    return [
        f'- "train_micro_batch_size_per_gpu": {micro}',
        f'+ "train_micro_batch_size_per_gpu": {micro // 2}',
        f'+ "gradient_accumulation_steps": {steps * micro // (micro // 2)}',
    ]


def _smaller(plan: Plan) -> list[str]:
    """The variants of the run folder that fit with less device memory, fastest first."""
    need = plan.choice.memory.device_bytes.likely
    fitting = [
        (variant.priced.time.step_s.likely, variant.name, variant.priced.memory.device_bytes.likely)
        for variant in plan.variants
        if variant.priced is not None and variant.priced.fits and variant.name != "megatron"
    ]
    return [
        f"+ deepspeed_config: deepspeed/{name}.json    # train.yaml; {gib(size)} instead of "
        f"{gib(need)}, {step_s:.2g} s a step"
        for step_s, name, size in sorted(fitting)
        if size < need
    ]
