"""Whose file something is: by the keys that only one program has, or by what a script launches."""

from __future__ import annotations

from dsforge.errors import quoted
from dsforge.importing.forms import Source
from dsforge.importing.idle import TRAINING, idle_command, idle_file, idle_settings, is_training
from dsforge.importing.shell.expansion import is_unknown
from dsforge.importing.shell.launches import Launch
from dsforge.importing.signs import DEEPSPEED_LAUNCH, HUGGING_FACE, foreign_of, style_of
from dsforge.importing.styles import (
    accelerate,
    axolotl,
    colossalai,
    ds_config,
    dsforge_train,
    gpt_neox,
    lightning,
    litgpt,
    llama_factory,
    megatron,
    megatron_deepspeed,
    ms_swift,
    nemo,
    open_instruct,
    openrlhf,
    torchtitan,
    torchtune,
    trainer,
    trl,
)
from dsforge.importing.values import Settings, normal
from dsforge.importing.work import Style, Work
from dsforge.reading.refusals import refusal

STYLES: tuple[Style, ...] = (
    ds_config.STYLE,
    accelerate.STYLE,
    trainer.STYLE,
    trl.STYLE,
    llama_factory.STYLE,
    axolotl.STYLE,
    ms_swift.STYLE,
    torchtune.STYLE,
    torchtitan.STYLE,
    lightning.STYLE,
    litgpt.STYLE,
    nemo.STYLE,
    megatron.STYLE,
    megatron_deepspeed.STYLE,
    gpt_neox.STYLE,
    openrlhf.STYLE,
    open_instruct.STYLE,
    colossalai.STYLE,
    dsforge_train.STYLE,
)
_ENGINES = (accelerate.STYLE, ds_config.STYLE, DEEPSPEED_LAUNCH)
BY_LAUNCHER = {
    "swift": ms_swift.STYLE,
    "megatron": ms_swift.MEGATRON_STYLE,
    "llamafactory-cli": llama_factory.STYLE,
    "axolotl": axolotl.STYLE,
    "trl": trl.STYLE,
    "tune": torchtune.STYLE,
    "litgpt": litgpt.STYLE,
    "deepy.py": gpt_neox.STYLE,
    "colossalai": colossalai.STYLE,
}
BY_PROGRAM: tuple[Style, ...] = (
    dsforge_train.STYLE,
    gpt_neox.STYLE,
    openrlhf.STYLE,
    open_instruct.STYLE,
    torchtitan.STYLE,
    litgpt.STYLE,
    axolotl.STYLE,
)
PYTHON: tuple[Style, ...] = (
    *(nemo.STYLE, trl.STYLE, trainer.STYLE),
    *(colossalai.STYLE, lightning.STYLE),
)


def program_of(name: str | None) -> Style | None:
    """The style of a name, as a person says it. Raises SpecError."""
    if name is None:
        return None
    found = next((style for style in STYLES if style.name == name), None)
    if found is None:
        names = ", ".join(sorted({style.name for style in STYLES}))
        raise refusal("style-name", "program", f"{quoted(name)} is not a name", f"one of: {names}")
    return found


def style_of_settings(work: Work, settings: Settings) -> Style | None:
    """Whose settings these are; what a person says wins over the signs, not over engines' files."""
    found = style_of(settings)
    if work.program is not None:
        return found if found in _ENGINES else work.program
    if found is None and (foreign := foreign_of(settings)) is not None:
        work.passed.foreign.append(foreign)
    if found is not None and (idle := idle_settings(found, settings)) is not None:
        work.passed.idle.append(idle)
        return None
    return found


def style_of_file(work: Work, source: Source) -> Style | None:
    """Whose a file of data is. Raises SpecError where it cannot be read."""
    settings = source.settings()
    found = style_of_settings(work, settings)
    idle = None if found is None or work.program else idle_file(found, settings)
    if idle is not None:
        work.passed.idle.append(idle)
    return found if idle is None else None


def style_of_launch(work: Work, launch: Launch, settings: Settings) -> Style | None:
    """Whose program a command launches, by its launcher, its name, or its flags."""
    idle = idle_command(launch) if work.program is None else None
    if idle is not None:
        work.passed.idle.append(idle)
        return None
    named = _style_of_name(launch, settings) if work.program is None else None
    if named is not None:
        return None if idle_settings(named, settings) else named
    found = style_of_settings(work, settings)
    of_trl = trl.STYLE.programs
    if found is trainer.STYLE and of_trl is not None and of_trl.search(launch.name):
        return trl.STYLE if work.program is None else found
    if found in (None, trainer.STYLE) and not work.program and _hands_on(found, settings):
        return DEEPSPEED_LAUNCH
    return DEEPSPEED_LAUNCH if found is ds_config.STYLE else found


def _style_of_name(launch: Launch, settings: Settings) -> Style | None:
    """The style that a launcher or a program's name decides."""
    text = launch.program.text
    for name, style in BY_LAUNCHER.items():
        strict = name in TRAINING and not is_unknown(text)
        if name in launch.launchers and (not strict or is_training(name, text)):
            return style
    for style in BY_PROGRAM:
        says = len(settings) > 0 or style is torchtitan.STYLE
        if style.programs is not None and style.programs.search(text) and says:
            return style
    return None


def _hands_on(found: Style | None, settings: Settings) -> bool:
    """Whether a program of its own hands a ds_config on, or makes it of flags (DeepSpeed-Chat).

    `--deepspeed` is a switch there, as `deepspeed.add_config_arguments` has it; programs with
    TrainingArguments take a file.
    """
    value = settings.at("deepspeed")
    if value is not None and value.truth is None:
        return found is None
    by_flags = ds_config.is_chat(settings)
    return by_flags or bool({"deepspeed", "deepspeed_config"} & settings.keys)


def weight_of(launch: Launch, style: Style, settings: Settings) -> int:
    """How much a command says: the more of its flags a style knows, the more likely it trains."""
    names = {normal(key).rpartition(".")[2] for key in settings.keys}
    told = len(style.keys & settings.keys) + len(names & HUGGING_FACE)
    by_name = any(name in launch.launchers for name in BY_LAUNCHER)
    return told + (3 if by_name else 0) + (2 if launch.launchers else 0)
