"""What `estimate --exact` shows: the simulated step, phase by phase, beside the estimate."""

from __future__ import annotations

from dsforge.cli.text import aligned, wrapped
from dsforge.exact.fullest import ExactMemory
from dsforge.plan import Plan
from dsforge.units import gib, likely_text

HEAD = ("exact", "peak", "states", "weights", "gradients", "optimizer", "buffers", "in RAM")


def exact_lines(plan: Plan, exact: ExactMemory) -> list[str]:
    """One line a phase, then the peak beside the estimate."""
    rows = [
        (
            name,
            gib(phase.peak_bytes),
            gib(phase.weights + phase.gradients + phase.optimizer_state + phase.buffers),
            gib(phase.weights),
            gib(phase.gradients),
            gib(phase.optimizer_state),
            gib(phase.buffers),
            gib(phase.host_bytes),
        )
        for name, phase in exact.phases.items()
    ]
    estimated = plan.choice.memory.allocated_bytes
    total = (
        f"{gib(exact.peak_bytes)} allocated on rank {exact.rank} ({_among(exact)}) at the peak, in "
        f"{exact.peak_phase}; the estimate is {likely_text(estimated, gib)}"
    )
    note = (
        "simulated tensor by tensor, plain loss; states at the end of a phase, without device "
        "context, library workspaces and allocator slack"
    )
    return ["", *aligned(HEAD, rows), *wrapped(total, first="  "), *wrapped(note, first="  ")]


def _among(exact: ExactMemory) -> str:
    """Which ranks the one that is shown was chosen from."""
    if exact.world_size == 1:
        return "the only one"
    if 1 < exact.ranks_simulated < exact.world_size:
        return f"the fullest of {exact.ranks_simulated} simulated of {exact.world_size:,} ranks"
    return f"the fullest of {exact.world_size:,} ranks"
