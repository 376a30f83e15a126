"""Precision by the names that programs give types and switches."""

from __future__ import annotations

from dsforge.importing.draft import Draft
from dsforge.importing.values import Settings, Value

_WORDS = {
    "bf16": "bf16 bfloat16 torch.bfloat16 bf16-mixed bf16-true bf16_mixed bf16-model",
    "fp16": "fp16 float16 torch.float16 half 16 16-mixed 16-true fp16_mixed float16-mixed",
    "fp32": "fp32 float32 torch.float32 float 32 32-true fp32_only no tf32 full single 32-full",
    "fp8": "fp8 transformer-engine fp8_e4m3",
}
BY_WORD = {word: kind for kind, words in _WORDS.items() for word in words.split()}


def precision_of(value: Value) -> str | None:
    """The precision that a value names; none where it names none."""
    if value.value is False:  # YAML 1.1 reads `no` as false
        return "fp32"
    text = value.word or (str(value.value) if isinstance(value.value, int) else "")
    return BY_WORD.get(text)


def say_precision(draft: Draft, value: Value | None, *, only_unsaid: bool = False) -> bool:
    """The precision that a value names; whether it says one."""
    if value is None or (only_unsaid and draft.is_said("precision")):
        return False
    if value.is_open:
        draft.leave_open("precision", value)
        return True
    found = precision_of(value)
    if found is None:
        draft.problem("value-choice", f"precision (={value.shown}) is not known", value.place)
        return False
    draft.say("precision", found, value.place)
    return True


def say_switches(draft: Draft, settings: Settings, types: tuple[str, ...] = ()) -> bool:
    """`bf16: true` and `fp16: true`, else the type that the weights are loaded in."""
    bf16, fp16 = settings.find("bf16"), settings.find("fp16")
    for kind, value in (("bf16", bf16), ("fp16", fp16)):
        if value is not None and value.truth:
            draft.say("precision", kind, value.place)
            settings.find(*types)
            return True
    weights = settings.find(*types) if types else None
    if weights is not None and not weights.is_open and precision_of(weights) not in (None, "fp32"):
        return say_precision(draft, weights)
    for value in (bf16, fp16):
        if value is not None and value.is_open and not draft.is_said("precision"):
            draft.leave_open("precision", value)
            return True
    return False
