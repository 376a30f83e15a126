"""Which trainers a request may use: DeepSpeed, Megatron-LM, or both.

`pretrain_gpt.py` of Megatron-LM starts from random weights and reads token files that its own
`tools/preprocess_data.py` has written. A run that continues from trained weights, or that names
rows of data, needs both converted first. Such a run is planned on DeepSpeed, whatever the clock
says, unless `--for megatron` asks for the other engine.
"""

from __future__ import annotations

from dsforge.constraints import check, lacks, said_words
from dsforge.engines import BY_NAME
from dsforge.plan import Request, is_tuned
from dsforge.planner.candidates import base, layouts
from dsforge.programs import back_end_of, way_of
from dsforge.specs import ModelSpec
from dsforge.strategy import BackEnd

BACK_ENDS: tuple[BackEnd, ...] = ("deepspeed", "megatron")
UNBUILDABLE = ("megatron-model", "optimizer")  # rules that look at no layout


def wanted(request: Request) -> tuple[BackEnd, ...]:
    """The back ends to search: a fixed ZeRO stage, hpZ or offload means DeepSpeed."""
    fixed = request.constraints
    if fixed.back_end:
        return (fixed.back_end,)
    if fixed.program:
        way = way_of(fixed.program, fixed.trainer)
        return BACK_ENDS[:1] if way is None else (back_end_of(way),)
    return BACK_ENDS[:1] if needs_deepspeed(request) or fine_tuned(request) else BACK_ENDS


def can_build(request: Request, back_end: BackEnd) -> bool:
    """Whether a back end can train this model with this optimizer at all, on any layout."""
    family = base(request, back_end, next(layouts(request, back_end)), stage=0)
    broken = check(request.model, request.cluster, request.workload, family)
    return all(problem.rule not in UNBUILDABLE for problem in broken)


def needs_deepspeed(request: Request) -> bool:
    """Whether something is fixed that only DeepSpeed has."""
    fixed = request.constraints
    if request.workload.preference is not None:
        return True
    offloads = {fixed.offload_optimizer, fixed.offload_parameters} - {None, "none"}
    zero = fixed.zero_stage is not None or (fixed.hpz_partition_size or 1) > 1
    beyond = any(
        lacks(BY_NAME[back_end], said_words(fixed))
        for back_end in BACK_ENDS
        if not BY_NAME[back_end].has_zero_stages
    )
    return bool(offloads) or zero or beyond or fixed.loss == "chunked"


def fine_tuned(request: Request) -> str:
    """What shows that the run continues from trained weights or reads rows; empty: nothing does."""
    work, model = request.workload, request.model
    if work.method == "lora":
        return "adapters are trained on frozen weights"
    if work.data is not None:
        return f"the run reads rows of {file_name(work.data.train)}"
    if work.epochs is not None:
        return "the length of the run is given in epochs"
    if is_tuned(model) or (work.tokens is None and is_folder(model)):
        return f"{model.name} is a checkpoint"
    return ""


def file_name(path: str) -> str:
    """The last part of a path."""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]


def is_folder(model: ModelSpec) -> bool:
    """Whether the model was given as a folder, which holds its weights."""
    return model.path is not None and not model.path.endswith(".json")
