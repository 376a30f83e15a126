"""Lightning: `Trainer(...)` in Python, its CLI's YAML and flags, and LitGPT's configs."""

from __future__ import annotations

import re

from dsforge.importing.draft import Draft
from dsforge.importing.forms import Source
from dsforge.importing.parts.engine_config import say_engine_file, say_engine_settings
from dsforge.importing.parts.precisions import say_precision
from dsforge.importing.parts.sharding import reshards, say_offload, say_strategy
from dsforge.importing.parts.training_script import loader_batch, say_training_script
from dsforge.importing.python_source import Call
from dsforge.importing.styles.trainer import adapters_of, settings_of_call
from dsforge.importing.values import Settings, Unknown, Value
from dsforge.importing.work import Style, Work, words

TRAINER = "lightning pytorch/trainer/trainer.py, Trainer"
DEEPSPEED = "lightning pytorch/strategies/deepspeed.py, DeepSpeedStrategy"
_MAKERS = ("Trainer", "Fabric")
_OF_TRAINER = words(
    "devices gpus strategy accumulate_grad_batches num_nodes accelerator max_epochs"
)
_CLASSES = (
    *("DeepSpeedStrategy", "FSDPStrategy", "ModelParallelStrategy", "DDPStrategy"),
    "MegatronStrategy",
)
_STAGE = re.compile(r"deepspeed(?:_stage_([123])(_offload(?:_nvme)?)?)?$")
_DDP = re.compile(r"(ddp|dp|auto|single_device|dataparallel)\w*$")
_BATCH = (
    *(
        "data.init_args.batch_size",
        "data.params.batch_size",
        "data.params.train.loader.batch_size",
        "data.batch_size",
        "batch_size",
        "train_batchsize",
        "datamodule.batch_size",
    ),
    *(
        "data.init_args.train_batch_size",
        "data.init_args.micro_batch_size",
        "train_batch_size",
        "micro_batch_size",
        "micro_bsz",
    ),
)


def read(work: Work, settings: Settings) -> None:
    """A block `trainer`, one of latent-diffusion's in `lightning`, or its keys at the top."""
    inner = settings
    if settings.has_block("lightning.trainer"):
        block = settings.below("lightning")
        inner = block.below("trainer").joined(block.without(*_outside(block, "strategy")))
    elif settings.has_block("trainer"):
        inner = settings.below("trainer")
    total = settings.find("train.global_batch_size")  # of Hydra, which works out the steps of it
    say_trainer(work, inner)
    work.draft.whole("micro_batch_size", settings.find(*_BATCH))
    work.draft.whole("global_batch_size", total)
    if total is not None and "gradient_accumulation_steps" in work.draft.open:
        work.draft.open.pop("gradient_accumulation_steps")


def _outside(settings: Settings, block: str) -> tuple[str, ...]:
    """The keys that are not of a block."""
    return tuple(key for key in settings.keys if key.partition(".")[0] != block)


def say_trainer(work: Work, settings: Settings) -> None:
    """Arguments of `Trainer`."""
    draft = work.draft
    nodes, devices = settings.find("num_nodes"), settings.find("devices", "gpus")
    draft.whole("nodes", nodes)
    _devices(draft, devices)
    draft.assume("nodes", 1, TRAINER)
    _precision(draft, settings.find("precision"))
    steps = settings.find("accumulate_grad_batches")
    if steps is not None and not isinstance(steps.value, dict):
        draft.whole("gradient_accumulation_steps", steps)
    strategy = settings.find("strategy")
    path = settings.find("strategy.class_path", "strategy._target_", "strategy.target")
    if path is not None:
        blocks = map(settings.below, ("strategy.init_args", "strategy.params", "strategy"))
        inner = next((block for block in blocks if len(block)), Settings({}))
        _class(work, path.text.rpartition(".")[2], inner, path.place)
    elif strategy is not None and isinstance(strategy.value, Call):
        call = strategy.value
        _class(work, call.name, Settings(dict(call.values)), strategy.place)
    elif strategy is not None:
        _named(work, strategy)
    config = settings.find("PL_DEEPSPEED_CONFIG_PATH")
    if config is not None and (draft.value("engine") == "deepspeed"):
        say_engine_file(work, config)
    draft.assume("zero_stage", 0, TRAINER)
    draft.assume("gradient_accumulation_steps", 1, TRAINER)
    draft.assume("precision", "fp32", TRAINER)
    draft.assume("recompute", "none", TRAINER)


def _precision(draft: Draft, value: Value | None) -> None:
    say_precision(draft, value)


def _devices(draft: Draft, value: Value | None) -> None:
    """A number, a list of devices, or -1 and `auto` for all."""
    if value is None:
        return
    listed = value.value if isinstance(value.value, list) else None
    if listed is None and "," in value.text:
        listed = [one for one in value.text.strip("[]").split(",") if one.strip()]
    if listed is not None:
        draft.say("gpus_per_node", len(listed), value.place)
    elif value.whole == -1 or value.word in ("auto", "-1"):
        draft.leave_open("gpus_per_node", value, "all devices of the machine")
    else:
        draft.whole("gpus_per_node", value)


def _named(work: Work, value: Value) -> None:
    """A strategy by its registered name."""
    draft = work.draft
    stage = _STAGE.fullmatch(value.word)
    if stage:
        draft.say("engine", "deepspeed", value.place)
        draft.say("zero_stage", int(stage[1] or 2), value.place)
        if stage[2]:
            device = "nvme" if stage[2].endswith("nvme") else "cpu"
            draft.say("offload_optimizer", device, value.place)
            if stage[1] == "3":
                draft.say("offload_parameters", device, value.place)
    elif value.word.startswith("fsdp"):
        draft.say("engine", "fsdp", value.place)
        draft.say("zero_stage", 3, value.place)
        say_offload(draft, value._replace(value="offload" in value.word))
    elif _DDP.fullmatch(value.word):
        draft.say("zero_stage", 0, value.place)
    else:
        draft.leave_open("zero_stage", value, "a strategy that the file does not name")


def _class(work: Work, name: str, settings: Settings, place: str) -> None:
    """A strategy by its class, with what it is made of."""
    draft = work.draft
    if name == "DeepSpeedStrategy":
        _deepspeed(work, settings, place)
    elif name == "FSDPStrategy":
        draft.say("engine", "fsdp", place)
        draft.say("zero_stage", 3, place)
        sharding = settings.find("sharding_strategy")
        if sharding is not None:
            say_strategy(draft, sharding)
        say_offload(draft, settings.find("cpu_offload"))
        checkpoints = settings.find("activation_checkpointing_policy", "activation_checkpointing")
        if checkpoints is not None and checkpoints.value not in (False, None):
            draft.say("recompute", "full", checkpoints.place)
    elif name == "ModelParallelStrategy":
        draft.say("engine", "fsdp", place)
        draft.say("zero_stage", 3, place)
        draft.whole("tensor_parallel_size", settings.find("tensor_parallel_size"))
        draft.whole("data_parallel_size", settings.find("data_parallel_size"))
        reshards(draft, settings.find("reshard_after_forward"))
    elif name in ("MegatronStrategy", "NLPDDPStrategy"):
        from dsforge.importing.styles.nemo import say_strategy_class

        say_strategy_class(draft, settings, place)
    elif name in ("DDPStrategy", "SingleDeviceStrategy"):
        draft.say("zero_stage", 0, place)
    else:
        draft.leave_open("zero_stage", Value(Unknown(name), place))


def _deepspeed(work: Work, settings: Settings, place: str) -> None:
    draft = work.draft
    draft.say("engine", "deepspeed", place)
    config = settings.find("config")
    if config is not None and isinstance(config.value, dict):
        from dsforge.importing.values import flat

        values = flat(config.value, lambda _loc: config.place)
        from dsforge.importing.parts.trainer_keys import _nested

        inner = Settings(values)
        say_engine_settings(draft, _nested(inner), inner, config.place)
        return
    if config is not None and config.text:
        say_engine_file(work, config)
        return
    stage = settings.find("stage")
    if stage is not None and not stage.is_open:
        draft.whole("zero_stage", stage, 0)
    elif stage is not None:
        draft.leave_open("zero_stage", stage)
    else:
        draft.assume("zero_stage", 2, DEEPSPEED)
    for field, key in (
        ("offload_optimizer", "offload_optimizer"),
        ("offload_parameters", "offload_parameters"),
    ):
        switch, device = (
            settings.find(key),
            settings.find(f"{key.replace('parameters', 'params')}_device"),
        )
        if switch is not None and switch.truth:
            where = device.word if device is not None and device.word in ("cpu", "nvme") else "cpu"
            draft.say(field, where, switch.place)


def read_python(work: Work, source: Source) -> bool:
    """`Trainer(...)` or `Fabric(...)` of Lightning."""
    facts = source.facts
    made = next(
        (c for c in facts.calls if c.name in _MAKERS and _OF_TRAINER & c.values.keys()), None
    )
    if made is None:
        return False
    settings = settings_of_call(facts, made)
    strategy, other = settings.at("strategy"), facts.call(*_CLASSES)
    made_here = strategy is not None and isinstance(strategy.value, Call)  # maybe by a function
    is_class = made_here and strategy is not None and strategy.value.name in _CLASSES
    is_plain = strategy is not None and (bool(strategy.text) or is_class)
    if other is not None and not is_plain:
        named = Value(other, source.place(other.line))
        settings = settings.joined(Settings({"strategy": named}))
    say_trainer(work, settings)
    work.draft.whole("micro_batch_size", loader_batch(facts))
    adapters_of(work, facts, Settings({}))
    say_training_script(work.draft, facts, source.name)
    return True


STYLE = Style(
    name="lightning",
    label="Lightning",
    read=read,
    keys=words(
        "trainer seed_everything ckpt_path data model optimizer lr_scheduler "
        "accumulate_grad_batches strategy accelerator num_nodes devices max_epochs "
        "gradient_clip_val"
    ),
    fewest=2,
    python=read_python,
    programs=re.compile(r"^lightning$"),
    takes_files=True,
    evidence=TRAINER,
)
