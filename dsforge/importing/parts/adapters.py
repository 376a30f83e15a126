"""Adapters: which, over which base, of which rank."""

from __future__ import annotations

from dsforge.importing.draft import Draft
from dsforge.importing.values import Settings, Value

LORA = frozenset(
    ("lora", "dora", "qlora", "rslora", "loha", "lokr", "adalora", "longlora", "pissa")
)
_FOUR_BIT = (
    "load_in_4bit",
    "use_4bit",
    "q_lora",
    "qlora",
    "use_qlora",
    "use_4bit_quantization",
    "is_4bit",
)
_EIGHT_BIT = ("load_in_8bit", "use_8bit", "load_8bit", "use_int8_training", "use_8bit_quantization")
_BITS = ("quantization_bit", "quant_bits", "bits", "quantization_bits")
_METHODS = ("quantization_method", "quant_method", "quantize")
_BASES = ("nf4", "fp4", "int8")  # values of `base` in the train.py of `gen --for transformers`
_QUANTISED = ("gptq", "awq", "aqlm", "eetq", "bnb.nf4", "bnb.fp4", "bnb.int8", "bnb.nf4_dq")
RANK = ("lora_r", "lora_rank", "lora_dim", "peft_lora_r", "rank")
ALPHA = ("lora_alpha", "peft_lora_alpha")


def quantised(settings: Settings, *more: str) -> Value | None:
    """The value by which the base is quantised; none where it is not."""
    found: list[Value | None] = []
    for name in (*_FOUR_BIT, *_EIGHT_BIT, *more):
        value = settings.find(name)
        found.append(value if value is not None and value.truth else None)
    for name in _BITS:
        value = settings.find(name)
        found.append(value if value is not None and value.whole in (2, 3, 4, 8) else None)
    for name in _METHODS:
        value = settings.find(name)
        known = value is not None and value.word and value.word not in ("none", "no", "false")
        found.append(value if known else None)
    base = settings.at("base")
    if base is not None and base.word in _BASES:
        found.append(settings.find("base"))
    return next((value for value in found if value is not None), None)


def is_named_quantised(model: str) -> bool:
    """Whether a model's name says that its weights are quantised for training of adapters."""
    name = model.lower()
    return any(word in name for word in ("gptq", "-awq", "bnb-4bit", "-4bit", "aqlm", "-int4"))


def say_adapters(
    draft: Draft,
    settings: Settings,
    on: Value | None,
    *,
    base: Value | None = None,
    default: str = "",
) -> None:
    """LoRA, with its rank and scale; over a quantised base it is QLoRA.

    `on` is what switches it on; none where the program does by default, as `default` says.
    """
    over = base or quantised(settings)
    held = draft.said.get("model")
    named = held is not None and is_named_quantised(str(held.value))
    kind = "qlora" if over is not None or named else "lora"
    told = over or on
    if told is not None:
        draft.say("adapter", kind, told.place)
    else:
        draft.assume("adapter", kind, default)
    draft.whole("lora_rank", settings.find(*RANK))
    draft.number("lora_alpha", settings.find(*ALPHA))


def assume_lora(draft: Draft, rank: int, alpha: float, source: str) -> None:
    """A program's rank and scale, where adapters train and the file gives none."""
    if draft.value("adapter") in ("lora", "qlora"):
        draft.assume("lora_rank", rank, source)
        draft.assume("lora_alpha", float(alpha), source)


def note_base(draft: Draft, settings: Settings) -> None:
    """A quantised base without adapters has no word in a setup."""
    over = quantised(settings)
    if over is not None and draft.value("adapter") in (None, "none"):
        draft.lose("quantised base", over, "nothing trains on it without adapters")
