"""Reasons about memory: offload and what would spare it, recomputation, what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from dsforge.constraints.trainer import holds_whole_logits
from dsforge.estimate.activations import element_bytes
from dsforge.estimate.loss import may_be_chunked
from dsforge.estimate.offload import thread_gain
from dsforge.estimate.params import parameters
from dsforge.estimate.quantised import quantised_elements, stored_bytes
from dsforge.plan import Priced, Reason, Request
from dsforge.planner.explore import Candidate
from dsforge.planner.pricing import is_safe, largest_term, rooms, shortage
from dsforge.planner.rivals import Rivals, fastest
from dsforge.planner.ways import said_recompute
from dsforge.planner.wording import LIKELY_ONLY, Said, against, memory_name, said
from dsforge.specs import BITSANDBYTES
from dsforge.strategy import Constraints, Strategy
from dsforge.units import count, factor, gib, seconds

NOTICED_GAIN = 1.25  # of threads


def offload_reason(request: Request, best: Priced, found: Rivals) -> Said | None:
    """What offload costs, and why it is taken."""
    strategy, fixed, terms = best.strategy, request.constraints, best.time.terms
    if not strategy.offloads:
        return None
    asked = fixed.offload_optimizer or fixed.offload_parameters
    why = "offload was requested" if asked else _why_offload(request, best, found)
    message = (
        f"{why}; each step includes {seconds(terms.offload_s)} of offload copies and "
        f"{seconds(terms.optimizer_s)} of optimizer time, and each node needs "
        f"{gib(best.memory.host_bytes.peak)} of host RAM at its peak"
    )
    message += _threads(request, strategy)
    share = (terms.offload_s + terms.optimizer_s) / best.time.step_s.likely
    return said("offload-asked" if asked else "offload-to-fit", message, max(1 - share, 0.01))


def _threads(request: Request, strategy: Strategy) -> str:
    """What OMP_NUM_THREADS of the launch scripts is worth to an optimizer on the CPU."""
    gain = thread_gain(request.cluster)
    if strategy.offload_optimizer == "none" or gain < NOTICED_GAIN:
        return ""
    cores = request.cluster.cpu_cores_per_rank
    return (
        f"; the optimizer runs {cores} threads per rank (OMP_NUM_THREADS, set by the launch "
        f"scripts), torchrun's default of 1 is {factor(gain)} slower"
    )


def quantised_reason(request: Request, best: Priced, found: Rivals) -> Said | None:
    """Against the same adapters on matrices in 4 bits, where these need no offload."""
    other, mine_s = found.quantised, best.time.step_s.likely
    if other is None or other.step_s > mine_s or not best.strategy.offloads:
        return None
    message = (
        f"with `--method qlora`, {against(other, mine_s)} and needs {gib(other.device_bytes)} of "
        f"{memory_name(request)}: frozen matrices are stored in 4 bits"
    )
    return said("qlora-needs-no-offload", message, mine_s / other.step_s)


def experts_reason(request: Request, best: Priced) -> Said | None:
    """Which matrices a quantised base does not quantise, where these are most of the model."""
    message = stacked_experts(request)
    if not message or best.strategy.runs_as.expert_modules:
        return None
    whole = parameters(request.model)
    return said("experts-not-quantised", message, whole / (whole - _stacked_elements(request)))


def stacked_experts(request: Request) -> str:
    """How many parameters stay in 16 bits under a quantised base, and why; empty: no experts do."""
    work, stacked = request.workload, _stacked_elements(request)
    if not stacked or request.constraints.expert_modules:
        return ""
    size = element_bytes(work)
    saved = gib(stacked * (size - stored_bytes(work)))
    who = "bitsandbytes does not quantise" if work.base in BITSANDBYTES else "are not quantised"
    return (
        f"routed experts ({count(stacked)} of {count(parameters(request.model))} parameters) stay "
        f"in {8 * size} bits: transformers 5 holds them as stacks, which {who}; programs that hold "
        f"each as a module (transformers 4; `expert_modules` of `strategy`) save {saved} of weights"
    )


def _stacked_elements(request: Request) -> int:
    """Elements of routed experts that a quantised base would hold in fewer bits as modules."""
    model = request.model
    if not request.workload.is_quantised or model.moe is None:
        return 0
    return quantised_elements(model, expert_modules=True) - quantised_elements(model)


def _why_offload(request: Request, best: Priced, found: Rivals) -> str:
    """What becomes of the plans that leave everything on the device."""
    mine_s = best.time.step_s.likely
    if not best.fits:
        return "no plan fits; this one exceeds memory least"
    other = found.fastest(lambda s: not s.offloads)
    if other is not None:
        return f"without offload, {against(other, mine_s)}"
    likely = found.likely(lambda s: not s.offloads)
    if likely is not None:
        same = found.tight is not None and found.tight.family == likely.family
        what = "plans fit" if same else f"{against(likely, mine_s)}, but fits"
        return f"without offload, {what} {LIKELY_ONLY}"
    within = " with the settings that were given" if request.constraints != Constraints() else ""
    return f"no plan without offload fits{within}"


def recompute_reason(request: Request, best: Priced, found: Rivals) -> Said | None:
    """What recomputation buys."""
    mine, mine_s = best.strategy, best.time.step_s.likely
    if mine.recompute != "full" or said_recompute(request.constraints):
        return None
    cut = mine.back_end, mine.layout, mine.zero_stage, mine.offloads

    def alike(s: Strategy) -> bool:
        return (s.back_end, s.layout, s.zero_stage, s.offloads) == cut

    other = fastest(c for c in found.kept if alike(c.family))
    if other is not None:
        message = f"without recomputation, {against(other, mine_s)}"
        return said("recompute", message, other.step_s / mine_s)
    likely = any(c.recompute == "none" for c in _members(found, alike))
    sure = f"fits {LIKELY_ONLY}" if likely else "does not fit"
    return said("recompute", f"without recomputation, the same layout {sure}")


def _members(found: Rivals, wanted: Callable[[Strategy], bool]) -> Iterator[Candidate]:
    """All that likely fit of the families that are wanted."""
    for explored in found.explored:
        if wanted(explored.family):
            yield from explored.fitting


def unstated_loss_reason(request: Request, best: Priced) -> Said | None:
    """Which loss is assumed of scripts of others, and what the range of memory holds."""
    if not request.workload.has_head or not may_be_chunked(request.model, best.strategy):
        return None
    message = (
        "the loss of the scripts is not stated: whole logits, as Hugging Face's trainers hold; "
        "the low end of the memory is with a chunked loss (--loss)"
    )
    return said("loss-unstated", message)


def whole_logits_reason(request: Request, best: Priced) -> Said | None:
    """Why a model has the logits of a whole micro batch where they are the largest term."""
    strategy = best.strategy
    chunked = strategy.engine.chunks_loss and strategy.runs_as.software != "others"
    if request.constraints.loss is not None or not chunked:
        return None
    if largest_term(best.memory) != "logits" or not holds_whole_logits(request.model, split=False):
        return None
    message = (
        f"{request.model.name} changes the logits after its output layer, so the loss holds those "
        f"of a whole micro batch ({gib(best.memory.terms.logits)}), the largest term; for most "
        f"models it takes them in chunks"
    )
    pressed = strategy.offloads or not is_safe(request.cluster, best.memory)
    rest = 1 - best.memory.terms.logits / best.memory.device_bytes.likely
    return said("whole-logits", message, rest if pressed else 1.0)


def headroom_reason(request: Request, best: Priced) -> Said:
    """What is left, and whether that is sure; what is missing where it does not fit."""
    memory, cluster = best.memory, request.cluster
    if not best.fits:
        return Said(inf, Reason(rule="does-not-fit", message=shortage(cluster, memory)))
    left = rooms(cluster, memory)
    if is_safe(cluster, memory):
        return said("fits", left)
    why = "and `--risk` was given" if request.risk else "and no plan fits by the upper estimate"
    high = gib(memory.device_bytes.high)
    message = f"tight: {left}; the upper estimate ({high}) does not fit, {why}"
    return Said(inf, Reason(rule="fits-tightly", message=message))
