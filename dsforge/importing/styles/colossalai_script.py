"""Colossal-AI in Python: a Booster with its plugin, and the loop around it."""

from __future__ import annotations

from dsforge.importing.draft import Draft
from dsforge.importing.forms import Source
from dsforge.importing.parts.precisions import say_precision
from dsforge.importing.parts.training_script import loader_batch, say_training_script
from dsforge.importing.python_source import Call
from dsforge.importing.styles.trainer import adapters_of
from dsforge.importing.values import Settings, Value
from dsforge.importing.work import Work

PLUGINS = "ColossalAI colossalai/booster/plugin"
STAGES = {  # of a plugin by itself; the stage of others is an argument
    "TorchDDPPlugin": 0,
    "HybridParallelPlugin": 0,
    "MoeHybridParallelPlugin": 0,
    "LowLevelZeroPlugin": 1,
    "GeminiPlugin": 3,
    "TorchFSDPPlugin": 3,
}
PRECISIONS = {  # default of the argument
    "TorchDDPPlugin": "fp32",
    "TorchFSDPPlugin": "fp32",
}
SIZES = (
    ("tensor_parallel_size", "tp_size"),
    ("pipeline_parallel_size", "pp_size"),
    ("context_parallel_size", "sp_size"),
    ("expert_parallel_size", "ep_size"),
    ("virtual_stages", "num_model_chunks"),
)
STEPS = ("gradient_accumulation_steps", "accumulation_steps", "accumulation")


def read_python(work: Work, source: Source) -> bool:
    """The call of a plugin, the data loader, and a constant that counts accumulation."""
    facts = source.facts
    made = facts.call(*STAGES)
    if made is None or "colossalai" not in source.text:
        return False
    draft, place = work.draft, f"{source.name}:{made.line}"
    settings = Settings(dict(made.values))
    _plugin(draft, made, settings, place)
    booster = facts.call("Booster")
    kind = booster.values.get("mixed_precision") if booster is not None else None
    cast = facts.call("autocast")
    within = cast.values.get("dtype") if cast is not None else None
    say_precision(draft, settings.find("precision") or kind or within)
    draft.assume("precision", PRECISIONS.get(made.name, "fp16"), PLUGINS)
    _batch(draft, loader_batch(facts), settings.find("microbatch_size"))
    steps = next((v for n in STEPS if (v := facts.assigned.get(n.upper()))), None)
    if (draft.value("pipeline_parallel_size") or 1) == 1:
        draft.whole("gradient_accumulation_steps", steps)
    adapters_of(work, facts, Settings({}))
    say_training_script(draft, facts, source.name)
    for field, value in (("recompute", "none"), ("gradient_accumulation_steps", 1)):
        draft.assume(field, value, PLUGINS)
    for key, given in settings.unread():
        draft.lose(key, given)
    return True


def _plugin(draft: Draft, made: Call, settings: Settings, place: str) -> None:
    """Sizes, what is sharded, and what is kept in memory of the host."""
    for field, key in SIZES:
        draft.whole(field, settings.find(key))
    stage = settings.find("zero_stage", "stage")
    if stage is None:
        draft.say("zero_stage", STAGES[made.name], place)
    draft.whole("zero_stage", stage, 0)
    moved = settings.find("cpu_offload", "offload_optim_frac")
    if moved is not None and (moved.truth or (moved.number or 0) > 0):
        draft.say("offload_optimizer", "cpu", moved.place)
    placed = settings.find("offload_param_frac")
    if placed is not None and (placed.number or 0) > 0:
        draft.say("offload_parameters", "cpu", placed.place)


def _batch(draft: Draft, batch: Value | None, micro: Value | None) -> None:
    """The batch of a rank; with pipelines it is divided into micro batches."""
    stages = draft.value("pipeline_parallel_size") or 1
    if stages == 1 or batch is None or not batch.whole or micro is None or not micro.whole:
        draft.whole("micro_batch_size", batch)
        return
    draft.whole("micro_batch_size", micro)
    draft.say("gradient_accumulation_steps", max(1, batch.whole // micro.whole), batch.place)
