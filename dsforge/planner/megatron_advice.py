"""Reasons about Megatron-LM: what brings weights and rows there, and what keeps a model out."""

from __future__ import annotations

from math import inf

from dsforge.constraints import case_of
from dsforge.constraints.megatron import pretrain_gpt
from dsforge.plan import Priced, Reason, Request
from dsforge.planner.back_ends import file_name, fine_tuned
from dsforge.planner.rivals import Rivals, builder
from dsforge.planner.wording import Said, against, said
from dsforge.programs import BY_NAME as PROGRAMS
from dsforge.programs.converters import converter_of
from dsforge.specs import ModelSpec

PRETRAIN = "pretrain_gpt.py"
TOKENIZES = "Megatron-LM's `tools/preprocess_data.py`"
CLEARLY_FASTER = 0.9  # a step that takes this share of another's is worth a word


def left_out_reason(request: Request, best: Priced, found: Rivals) -> Said | None:
    """Why Megatron-LM was not searched, where one of its plans fits as well."""
    other, mine_s = found.left_out, best.time.step_s.likely
    if other is None:
        return None
    message = (
        f"Megatron-LM is not considered: {fine_tuned(request)}, but {PRETRAIN} starts from "
        f"random weights and reads only its own token files{_unconverted(request.model)}; "
        f"{against(other, mine_s)}, `--for megatron` selects it"
    )
    return said("megatron-left-out", message, max(1.0, mine_s / other.step_s))


def unbuilt_reason(request: Request, best: Priced, found: Rivals) -> Said | None:
    """What Megatron's layers would give to a model that `pretrain_gpt.py` cannot build."""
    other, mine_s = found.elsewhere, best.time.step_s.likely
    if other is None or other.step_s > CLEARLY_FASTER * mine_s:
        return None
    model, work = request.model, request.workload
    case = case_of(model, request.cluster, work, other.family)
    refused = pretrain_gpt(case._replace(by_others=False))
    if refused is None:
        return None
    faster, program = against(other, mine_s), builder(model.model_type).get("program")
    where = f"on {PROGRAMS[program].label}, which can" if program else "with scripts that can"
    flags = f"--for {program}" if program else "--for megatron --software others"
    does = "selects" if program else "prices"
    message = f"Megatron-LM's {refused.message}; {where}, {faster}: `{flags}` {does} it"
    return said("megatron-cannot-build", message, mine_s / other.step_s)


def _unconverted(model: ModelSpec) -> str:
    """That nothing converts the weights of a model, where that is so."""
    if converter_of(model.model_type) is not None:
        return ""
    return f", and nothing converts the weights of {model.name} for it"


def conversion_reason(request: Request, best: Priced) -> Said | None:
    """What has to be converted before Megatron-LM can continue from trained weights."""
    work, model = request.workload, request.model
    trained = fine_tuned(request) or (work.tokens is None and model.hub_id)
    if best.strategy.engine.has_zero_stages or not trained or request.constraints.program:
        return None
    if pretrain_gpt(case_of(model, request.cluster, work, best.strategy)) is not None:
        return None  # it cannot be built there, and that is said already
    starts = f"{PRETRAIN} starts from random weights"
    starts += "" if fine_tuned(request) else ", as `--tokens` would mean"
    message = f"{_converted(request)}: {starts}{_otherwise(model)}"
    return Said(inf, Reason(rule="megatron-needs-conversion", message=message))


def _converted(request: Request) -> str:
    """What converts weights and rows; that nothing converts the weights."""
    name, data = request.model.name, request.workload.data
    tool = converter_of(request.model.model_type)
    rows = "" if data is None else f"tokenize {file_name(data.train)} with {TOKENIZES}"
    if tool is None:
        said = f"nothing converts the weights of {name} for Megatron-LM"
        return f"{said}; {rows}" if rows else said
    how = f"convert the weights of {name} with {tool.tool} and set PRETRAINED_PATH to the result"
    return f"before the launch, {how}" + (f" and {rows}" if rows else "")


def _otherwise(model: ModelSpec) -> str:
    """What continues from the weights without a conversion."""
    tool = converter_of(model.model_type)
    if tool is None:
        return "; `--for deepspeed` continues from the trained ones"
    if tool.program is None:
        return ""
    return f"; the script of `--for {tool.program}` loads the trained ones itself"
