"""A ds_config as part of a setup: stage, offload, parallel sizes, batch, precision, optimizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dsforge.ds_config import read
from dsforge.importing.draft import Draft
from dsforge.importing.forms import Source
from dsforge.importing.parts.optimizers import say_optimizer
from dsforge.importing.values import Settings, Value
from dsforge.importing.work import Work
from dsforge.zero_stages import FULLY_SHARDED

ZERO = "zero_optimization"
ENGINE = "deepspeed/runtime/zero/config.py, DeepSpeedZeroConfig"
_STAGE_IN_NAME = re.compile(r"(?:zero|stage|ds|z)[_-]?(?:stage)?[_-]?([0-3])(?!\d)", re.IGNORECASE)
_OFFLOAD_IN_NAME = re.compile(r"(?<!no)(?<!no[_-])off_?-?load|cpu(?!_?adam)", re.IGNORECASE)
_PARAMETERS_STAY = re.compile(
    r"opt(imizer|im)?[_-]?off|off_?-?load[_-]?opt|cpu[_-]?opt", re.IGNORECASE
)
_PARAMETERS_ALONE = re.compile(r"off_?-?load[_-]?param|param[_-]?off", re.IGNORECASE)
_IN_BATCH = (
    ("micro_batch_size", "train_micro_batch_size_per_gpu"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("global_batch_size", "train_batch_size"),
)
NAMED_FILES = ("deepspeed", "deepspeed_config", "ds_config")
PROGRAMS_OWN = "the program makes the ds_config, or takes it from elsewhere"


def say_named_engine(work: Work, settings: Settings, *names: str) -> Value | None:
    """The ds_config that a file or a flag names, and where; none where DeepSpeed is off.

    `deepspeed.add_config_arguments` has a switch of the same name beside it, which names no file.
    """
    found = [value for name in names or NAMED_FILES if (value := settings.find(name)) is not None]
    named = next((value for value in found if value.truth is None), None)
    switch = next((value for value in found if value.truth), None)
    if named is not None:
        say_engine_file(work, named)
    elif switch is not None:
        work.draft.say("engine", "deepspeed", switch.place)
        work.draft.leave_open("zero_stage", switch, PROGRAMS_OWN)
    return named or switch


def say_engine_file(work: Work, value: Value | None) -> bool:
    """The ds_config that a value names; from its name where it was not given."""
    if value is None:
        return False
    if value.is_open or not value.text:
        work.draft.leave_open("zero_stage", value)
        return True
    work.draft.say("engine", "deepspeed", value.place)
    found = work.referred(value, "ds_config")
    if found is not None:
        say_engine(work.draft, found)
    else:
        say_name(work.draft, value)
    return True


def say_name(draft: Draft, value: Value) -> None:
    """Stage and offload as the name of a file that was not given says them."""
    name = value.text.rpartition("/")[2]
    place = f"{value.place} (by the name of {name[:60]})"
    match = _STAGE_IN_NAME.search(name)
    if match is None:
        draft.leave_open("zero_stage", value, "the file was not given")
        return
    stage = int(match[1])
    draft.say("zero_stage", stage, place, "named")
    if _OFFLOAD_IN_NAME.search(name):
        parameters_alone = _PARAMETERS_ALONE.search(name) is not None
        if not parameters_alone:
            draft.say("offload_optimizer", "cpu", place, "named")
        if stage == FULLY_SHARDED and not _PARAMETERS_STAY.search(name):
            draft.say("offload_parameters", "cpu", place, "named")
    for word, precision in (("bf16", "bf16"), ("fp16", "fp16")):
        if word in name.lower() and not draft.is_said("precision"):
            draft.say("precision", precision, place, "named")


def say_engine(draft: Draft, source: Source) -> None:
    """All that a ds_config says."""
    say_engine_settings(draft, source.root, source.settings(), source.name)


def say_engine_settings(
    draft: Draft, root: Mapping[str, Any], settings: Settings, name: str
) -> None:
    """The same of a mapping, such as one inside another file."""
    draft.say("engine", "deepspeed", name)
    config, problems = read(root)
    for problem in problems:
        draft.problem(problem.rule, problem.message, name, problem.hint)

    def place(*keys: str) -> str:
        found = settings.find(*keys)
        return found.place if found is not None else name

    stage = settings.find(f"{ZERO}.stage", ZERO)
    if config.zero_stage is None and stage is not None:
        draft.leave_open("zero_stage", stage)
    elif config.zero_stage is not None:
        said = stage is not None
        draft.say(
            "zero_stage",
            config.zero_stage,
            stage.place if stage else ENGINE,
            "said" if said else "default",
        )
    _offload(draft, config, place)
    for field, size, key in (
        ("tensor_parallel_size", config.tensor_parallel_size, "tensor_parallel.autotp_size"),
        ("pipeline_parallel_size", config.pipeline_stages, "pipeline.stages"),
        ("context_parallel_size", config.sequence_parallel_size, "sequence_parallel_size"),
        ("shard_group", config.hpz_partition_size, f"{ZERO}.zero_hpz_partition_size"),
    ):
        if size > 1:
            draft.say(field, size, place(key))
    _batch(draft, settings)
    _precision(draft, config.precision, settings)
    _optimizer(draft, settings)
    _read_on(draft, settings)


def _optimizer(draft: Draft, settings: Settings) -> None:
    """The optimizer and its rate, where no trainer says them."""
    say_optimizer(draft, settings.find("optimizer.type"), only_unsaid=True)
    rate = settings.find("optimizer.params.lr")
    if rate is not None and not draft.is_said("learning_rate") and not rate.is_open:
        draft.number("learning_rate", rate)


def _offload(draft: Draft, config: Any, place: Any) -> None:
    """Where states are stored; parameters leave the device under stage 3 alone."""
    blocks = (
        ("offload_optimizer", config.offload_optimizer, "offload_optimizer", "cpu_offload"),
        ("offload_parameters", config.offload_parameters, "offload_param", "cpu_offload_param"),
    )
    for field, device, key, old in blocks:
        at = place(f"{ZERO}.{key}.device", f"{ZERO}.{key}", f"{ZERO}.{old}")
        if device in (None, "none"):
            continue
        if field == "offload_parameters" and config.zero_stage not in (FULLY_SHARDED, None):
            draft.lose(key, Value(device, at), "DeepSpeed ignores it below stage 3")
            continue
        draft.say(field, device, at)


def _batch(draft: Draft, settings: Settings) -> None:
    for field, key in _IN_BATCH:
        value = settings.find(key)
        if value is not None and not value.is_open and not draft.is_said(field):
            draft.whole(field, value)


def _precision(draft: Draft, precision: str | None, settings: Settings) -> None:
    """The type of a config that fixes one; `auto` follows the trainer."""
    value = settings.find("bf16.enabled", "bfloat16.enabled", "fp16.enabled")
    if precision is None and value is not None and draft.value("precision") is None:
        draft.leave_open("precision", Value("auto", value.place), "as the trainer is told")
    if precision in ("bf16", "fp16") and not draft.is_said("precision"):
        on = [settings.at(f"{key}.enabled") for key in ("bf16", "bfloat16", "fp16")]
        true = next((each for each in on if each is not None and each.truth), value)
        draft.say("precision", precision, true.place if true else "")


def _read_on(draft: Draft, settings: Settings) -> None:
    """What is left has no field; switches and blocks that are read are passed over."""
    settings.pass_over(
        "optimizer", "fp16", "bf16", "bfloat16", "gradient_clipping", "steps_per_print",
        "wall_clock_breakdown", f"{ZERO}.offload_optimizer", f"{ZERO}.offload_param",
    )  # fmt: skip
    for key, value in settings.unread():
        draft.lose(key, value)
    settings.pass_over_all()
