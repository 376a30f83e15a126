"""A first job: from a model and a data file to a spec with a method and a length that fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from dsforge.api.inputs import load_request
from dsforge.errors import DsforgeError
from dsforge.specs import MethodName

if TYPE_CHECKING:
    from dsforge.plan import Plan
    from dsforge.train.data.summary import DataSummary

METHODS: tuple[MethodName, ...] = get_args(MethodName)
# Adapters first: on small data they reach what full training reaches (Hu et al. 2021) and their
# checkpoints are small; quantised where 16 bits do not fit; all weights only where asked for.
PREFERRED: tuple[MethodName, ...] = ("lora", "qlora", "full")


class MethodChoice(NamedTuple):
    """A method with its plan, or with the reason why there is none."""

    method: MethodName
    plan: Plan | None
    reason: str = ""

    @property
    def fits(self) -> bool:
        """Whether a plan fits."""
        return self.plan is not None and self.plan.choice.fits


def first_spec(
    model: str, data: Path, summary: DataSummary, cluster: str | dict[str, Any]
) -> dict[str, Any]:
    """The spec of a job on a data file, its sequence length by the longest row.

    Precision is fp32 where 16 bits are slower, as on a CPU without instructions for them.

    Raises SpecError where the model or the cluster is wrong.
    """
    from dsforge.train.data.summary import sequence_length_for

    spec: dict[str, Any] = {
        "model": model,
        "cluster": cluster,
        "strategy": {"back_end": "deepspeed"},
    }
    found = load_request(spec=spec)
    length = sequence_length_for(summary.longest_tokens, found.model.max_position_embeddings)
    precision = {"precision": "fp32"} if found.cluster.gpu.is_slower_in_bf16 else {}
    spec["workload"] = {"sequence_length": length, **precision, "data": {"train": str(data)}}
    return spec


def with_method(spec: dict[str, Any], method: MethodName) -> dict[str, Any]:
    """The spec of the same job by a method."""
    return {**spec, "workload": {**spec["workload"], "method": method}}


def methods(spec: dict[str, Any]) -> tuple[MethodChoice, ...]:
    """Every method for the job of a spec, with the plan that each would have."""
    return tuple(_choice(spec, method) for method in METHODS)


def preferred(choices: tuple[MethodChoice, ...]) -> MethodChoice | None:
    """The method to begin with: the first of `PREFERRED` that fits; none where nothing does."""
    fitting = {choice.method: choice for choice in choices if choice.fits}
    return next((fitting[method] for method in PREFERRED if method in fitting), None)


def _choice(spec: dict[str, Any], method: MethodName) -> MethodChoice:
    """A method with its plan."""
    from dsforge.planner import appraise

    if method == "qlora" and str(spec["model"]).endswith(".gguf"):
        return MethodChoice(method, None, "a GGUF file cannot be quantised again")
    try:
        return MethodChoice(method, appraise(load_request(spec=with_method(spec, method))))
    except DsforgeError as error:
        return MethodChoice(method, None, error.message)
