"""Training scripts in Python: what calls of torch and transformers say beside a trainer's own."""

from __future__ import annotations

from dsforge.importing.draft import Draft
from dsforge.importing.parts.optimizers import NAMES, say_optimizer
from dsforge.importing.parts.precisions import say_precision
from dsforge.importing.parts.sharding import reshards
from dsforge.importing.parts.trainer_keys import LENGTHS
from dsforge.importing.python_source import Call, Facts
from dsforge.importing.values import Value

LOADERS = ("DataLoader", "prepare_dataloader", "StatefulDataLoader")
OF_DATASETS = ("map", "filter", "batch", "to_tf_dataset", "iter")  # whose batches are of rows
BATCHES = ("batch_size", "micro_batch_size", "train_batch_size")


def say_training_script(draft: Draft, facts: Facts, source: str) -> None:
    """Model, length, optimizer, checkpointing and FSDP2, where nothing else says them."""
    model = next((call for call in facts.calls if call.name == "from_pretrained"), None)
    named = model.values.get("0") if model is not None else None
    if named is not None and named.text and not draft.is_said("model"):
        draft.say("model", named.text, named.place)
    if not draft.is_said("sequence_length"):
        draft.whole("sequence_length", _constant(facts, LENGTHS))
    _optimizer(draft, facts, source)
    switched = facts.call("gradient_checkpointing_enable", "apply_activation_checkpointing")
    if switched is not None and not draft.is_said("recompute"):
        draft.say("recompute", "full", f"{source}:{switched.line}")
    _fully_shard(draft, facts)


def loader_batch(facts: Facts) -> Value | None:
    """The batch of the data loader, or of an argument of that name."""
    calls = [call for call in facts.calls if call.name not in ("Trainer", *OF_DATASETS)]
    loaders = [call for call in calls if call.name in LOADERS]
    for call in (*loaders, *calls):
        value = call.values.get("batch_size")
        if value is not None and value.whole:
            return value
    return _constant(facts, BATCHES)


def _constant(facts: Facts, names: tuple[str, ...]) -> Value | None:
    """A number that a script assigns to one of some names, in small or capital letters."""
    for name in names:
        for key in (name, name.upper()):
            value = facts.assigned.get(key) or facts.arguments.get(key)
            if value is not None and value.whole:
                return value
    return None


def _optimizer(draft: Draft, facts: Facts, source: str) -> None:
    """The first call of an optimizer's class."""
    made = next((call for call in facts.calls if _is_optimizer(call)), None)
    if made is None:
        return
    place = f"{source}:{made.line}"
    say_optimizer(draft, Value(made.name, place), only_unsaid=True)
    rate = made.values.get("lr")
    if rate is not None and not rate.is_open and not draft.is_said("learning_rate"):
        draft.number("learning_rate", rate)


def _is_optimizer(call: Call) -> bool:
    return call.name.lower() in NAMES and ("lr" in call.values or "optim" in call.owner)


def _fully_shard(draft: Draft, facts: Facts) -> None:
    """FSDP2: what is sharded again after the forward pass, and in which type it computes."""
    calls = [call for call in facts.calls if call.name == "fully_shard"]
    if not calls:
        return
    said = next((v for call in calls if (v := call.values.get("reshard_after_forward"))), None)
    reshards(draft, said)
    policy = facts.call("MixedPrecisionPolicy")
    kind = policy.values.get("param_dtype") if policy is not None else None
    if kind is not None and not kind.is_open:
        say_precision(draft, kind)
