"""Commands and files that train nothing: servers, exports, evaluations, conversions of data."""

from __future__ import annotations

import re

from dsforge.importing.shell.expansion import is_unknown
from dsforge.importing.shell.launches import Launch
from dsforge.importing.styles import llama_factory, torchtune, trainer, trl
from dsforge.importing.values import Settings
from dsforge.importing.work import Style, words

TRAINING = {  # subcommands of a launcher that train
    "swift": re.compile(r"sft|pt|rlhf"),
    "megatron": re.compile(r"sft|pt|rlhf"),
    "llamafactory-cli": re.compile(r"train"),
    "litgpt": re.compile(r"(finetune|pretrain)\w*"),
    "tune": re.compile(r"run"),
    "deepy.py": re.compile(r"(.*/)?(train|pretrain|finetune)\w*(\.py)?"),
}
OTHERS = {  # of launchers that train with any other word
    "swift": words("infer deploy export app eval sample rollout merge-lora web-ui ui llm-infer"),
    "megatron": words("export"),
    "trl": words("vllm-serve env chat skills"),
    "axolotl": words(
        "preprocess inference evaluate merge-lora merge-sharded-fsdp-weights fetch vllm-serve "
        "quantize lm-eval config-schema delinearize-llama4"
    ),
}
RECIPES = re.compile(r"(.*[/_])?(eleuther_eval|generate|generation|quantize)\w*")  # of torchtune
_ACTS = words(
    "serve server serving inference infer predict prediction predictions evaluate evaluation eval "
    "generate generation export merge convert converter convertor preprocess prepare tokenize "
    "deploy webui combiner hf2mcore mcore2hf selfgenerate download analyze"
)
_TRAINS = words(
    "train training trainer pretrain pretraining finetune finetuning tune tuning sft dpo ppo grpo "
    "rlhf kto orpo rloo distill rl"
)
_JOINS = words("and then")
FEWEST_OF_RECIPE = 5  # keys: fewer are a fragment of one
_TASKS = words("mnli qqp race ret-finetune-nq")  # of Megatron's tasks/main.py that train
_BY_SWITCH = (trainer.STYLE.name, trl.STYLE.name, llama_factory.STYLE.name)


def idle_command(launch: Launch) -> str | None:
    """What a command does instead of training, in its own words; none where it may train."""
    word = launch.program.text
    for name in launch.launchers.keys() & (TRAINING.keys() | OTHERS.keys()):
        if is_unknown(word) or is_training(name, word):
            recipe = next((piece.text for piece in launch.arguments.rest), "")
            return f"tune run {recipe}" if name == "tune" and RECIPES.fullmatch(recipe) else None
        if name in OTHERS and word not in OTHERS[name]:
            continue
        return f"{name} {word}".strip()[:60]
    return launch.name[:60] if _is_idle(launch) else None


def is_training(launcher: str, word: str) -> bool:
    """Whether a launcher's subcommand is one that trains."""
    known = TRAINING.get(launcher)
    return known is not None and known.fullmatch(word) is not None


def _is_idle(launch: Launch) -> bool:
    """Whether a program's name says what it does, and that is not training."""
    name = launch.name.removesuffix(".py").rpartition(".")[2].lower()
    parts = [part for part in re.split(r"[^a-z0-9]+", name) if part]
    if not parts:
        return False
    if name == "main" and re.search(r"(^|/)tasks/", launch.program.text):
        given = launch.arguments.values.get("--task")
        return given is not None and given[1][:1] != [] and given[1][0].text.lower() not in _TASKS
    if parts[0] in _ACTS:
        return not _ends_with_training(parts)
    return bool(_ACTS & set(parts) and not _TRAINS & set(parts))


def _ends_with_training(parts: list[str]) -> bool:
    """Whether a name trains at its end: `prepare_and_train`, not `convert_sft_data`."""
    joined = next((at for at, part in enumerate(parts) if part in _JOINS), len(parts))
    is_last = parts[-1] in _TRAINS or parts[-2:] == ["train", "model"]
    return is_last or bool(_TRAINS & set(parts[joined:]))


def idle_file(style: Style, settings: Settings) -> str | None:
    """The same of a file of data: torchtune's recipes for evaluation have no optimizer."""
    parts = {part for key in settings.keys for part in key.split(".")}
    is_whole = len(settings) >= FEWEST_OF_RECIPE
    if style is torchtune.STYLE and is_whole and not parts & {"optimizer", "loss", "optim_ckpt"}:
        return "a recipe without an optimizer"
    return idle_settings(style, settings)


def idle_settings(style: Style, settings: Settings) -> str | None:
    """What a file or its flags ask for instead of training; none where they may train."""
    if style.name not in _BY_SWITCH:
        return None
    asked = settings.at("do_train")
    if asked is not None and asked.truth is not False:
        return None
    for name in ("do_predict", "infer_backend", "export_dir"):
        value = settings.at(name)
        if value is not None and value.truth is not False:
            return f"{name} without do_train"
    return None
