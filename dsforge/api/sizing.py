"""Questions turned round: how much of one thing fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsforge.api.inputs import (
    ClusterInput,
    Inputs,
    JobInput,
    StrategyInput,
    WorkloadInput,
    as_described,
    asked_of,
    request_of,
)
from dsforge.api.results import FindResult
from dsforge.errors import Problem, SpecError, quoted
from dsforge.plan import Request
from dsforge.reading.request import Asked, read_request
from dsforge.reading.source import Setting

if TYPE_CHECKING:
    from dsforge.planner.axes import Question
    from dsforge.planner.inverse import Found

QUESTIONS: tuple[Question, ...] = ("micro-batch", "seq-len", "gpus", "model")
USUAL_NODE = 8  # accelerators
ANY_MODEL = "7b"  # stands for the model that is looked for while the rest is read
FIXING: dict[Question, tuple[str, ...]] = {  # the setting that says what is looked for
    "micro-batch": ("strategy", "micro_batch_size"),
    "seq-len": ("workload", "sequence_length"),
    "gpus": ("cluster", "nodes"),
    "model": ("model",),
}


def find(
    question: Question,
    model: JobInput | None = None,
    cluster: ClusterInput | None = None,
    workload: WorkloadInput | None = None,
    *,
    strategy: StrategyInput | None = None,
) -> FindResult:
    """The largest micro batch, sequence or model that fits, or the fewest accelerators.

    Args:
        question: `micro-batch`, `seq-len`, `gpus` or `model`: what is looked for, and not given.
        model: As for `load_model`; or a request of `load_request` instead of all inputs.
        cluster: As for `load_cluster`; for `gpus` only the nodes are looked for, of 8 accelerators
            unless it says how large they are.
        workload: As for `load_workload`.
        strategy: What is fixed, such as `{"zero_stage": 3}`; the rest is chosen.

    Returns:
        The answer and the plan at its value.

    Raises:
        SpecError: The input is wrong, or fixes what is looked for.
        DoesNotFitError: Nothing fits, whatever the value.

    Examples:
        >>> import dsforge
        >>> result = dsforge.find("gpus", "llama-2-7b", {"gpu": "a100-80gb"})
        >>> result.answer.value
        2

    """
    if question not in QUESTIONS:
        message = f"`question` (={quoted(question)}) must be one of {', '.join(QUESTIONS)}"
        raise SpecError((Problem("value-choice", message),))
    inputs = Inputs(model, cluster, workload, strategy)
    request = (
        request_of(inputs)
        if isinstance(model, Request)
        else read_request(opened(question, asked_of(inputs)._replace(by_name=True)))
    )
    found = _answer(as_described(request), question)
    return FindResult(found.answer, found.plan)


def opened(question: Question, asked: Asked) -> Asked:
    """What is asked, with something in the place of what is looked for. Raises SpecError."""
    said = {setting.loc for setting in asked.settings}
    fixing = FIXING[question]
    if fixing in said or (question == "model" and asked.known.model is not None):
        message = (
            f"`{'.'.join(fixing)}` fixes the value that `{question}` searches for; leave one out"
        )
        raise SpecError((Problem("find-fixed", message),))
    size = ("cluster", "gpus_per_node")
    more: tuple[Setting, ...] = ()
    if question == "model" and asked.spec is None:
        more = (Setting(("model",), ANY_MODEL, ""),)
    file = asked.spec or asked.cluster or asked.known.cluster
    if question == "gpus" and not file and size not in said:
        more = (Setting(size, USUAL_NODE, ""),)
    return asked._replace(settings=(*asked.settings, *more))


def _answer(request: Request, question: Question) -> Found:
    """The answer to one question."""
    from dsforge.planner import inverse

    if question == "micro-batch":
        return inverse.largest_micro_batch(request)
    if question == "seq-len":
        return inverse.longest_sequence(request)
    if question == "gpus":
        return inverse.fewest_gpus(request)
    from dsforge import catalog
    from dsforge.reading.sizes import llama_like

    known = tuple(catalog.model(name) for name in catalog.model_names())
    return inverse.largest_model(request, known, llama_like)
