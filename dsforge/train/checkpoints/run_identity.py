"""Identity of a run, stored in its checkpoints, and the changes since when it is resumed.

A resumed run promises to go on as if it had never stopped. Other data, another order of samples or
another model break that promise, so they are refused. A person may well want another learning
rate or length in the middle of a run: such a change is said, and takes effect.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, Field

from dsforge.job import TrainJob
from dsforge.measurement import EngineName
from dsforge.specs import FROZEN, LoraSpec
from dsforge.train.model.trained_state import recorded_checksum
from dsforge.train.parallel.engine_config import EngineConfig

Value = str | int | float | bool | None
Values = dict[str, Value]
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
# Of train.yaml, as they stand.
FIXED = ("sequence_length", "packing", "batching", "random_weights", "optimizer_states")
# Elsewhere in the note, or without effect on the numbers of a run.
PASSED_OVER = (
    *("seed", "steps", "epochs", "output", "deepspeed_config", "torch", "data", "on_bad_row"),
)
VOLATILE = ("transformers_version", "dtype", "torch_dtype", "use_cache", "quantization_config")
MAX_SHOWN_LETTERS = 60  # letters of a value in a message
MODEL = "use the model of the checkpoint"
OPTIMIZER, LORA, RATE = "optimizer.params.", "lora.", "learning_rate"
STAGE = "zero_optimization.stage"


class RunIdentity(BaseModel):
    """What the steps of a run depend on beside its ranks."""

    model_config = FROZEN

    data: str = Field(description="Checksum of the training samples as tokens, in order.")
    validation: str = Field(
        description="Checksum of the validation samples as tokens; empty: no validation samples."
    )
    model: str = Field(description="Type, number of parameters, checksum of names and shapes.")
    base_weights: str = Field(
        default="",
        description="Checksum of samples of the frozen weights, which adapter checkpoints do not "
        "hold, or their commit on the hub; empty: the checkpoint holds them, or was saved by a "
        "release that did not record it.",
    )
    configuration: dict[str, Value] = Field(description="Settings of the model, by dotted name.")
    precision: str = Field(description="Precision of the computation: bf16, fp16 or fp32.")
    optimizer: str = Field(description="Type of the optimizer, as DeepSpeed names it.")
    total_steps: int = Field(ge=1, description="Optimizer steps of the whole run.")
    job: dict[str, Value] = Field(description="Fields of train.yaml, by dotted name.")
    settings: dict[str, Value] = Field(
        description="ds_config, or what the `torch` block says in its terms, by dotted name."
    )
    engine: EngineName = Field(default="deepspeed", description="Software that trained.")


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that is not what it was when a checkpoint was saved; `refusal` tells what to do."""

    name: str
    old: Value
    new: Value
    refusal: str = ""

    def __str__(self) -> str:
        """`name old -> new`, each value short enough for a line."""
        return f"{self.name} {_shown(self.old)} -> {_shown(self.new)}"


def identity_of(
    job: TrainJob, config: EngineConfig, *, data: str, validation: str, model: Any, steps: int
) -> RunIdentity:
    """The identity of a run from what was read and built for it."""
    fields = job.model_dump(mode="json", exclude=set(PASSED_OVER))
    settings = {k: v for k, v in config.settings.items() if k not in BATCH}
    return RunIdentity(
        data=data,
        validation=validation,
        model=_parameters(model),
        base_weights=recorded_checksum(model),
        configuration=_configuration(model),
        precision=config.precision,
        optimizer=config.optimizer,
        total_steps=steps,
        job=dict(_flat(fields)),
        settings=dict(_flat(settings)),
        engine=config.engine,
    )


def _parameters(model: Any) -> str:
    """Type and size of a model, and a checksum of what its parameters are called and shaped."""
    shapes = [
        (name, list(getattr(p, "ds_shape", p.shape)), bool(p.requires_grad))
        for name, p in model.named_parameters()
    ]
    count = sum(math.prod(shape) for _, shape, _ in shapes)
    digest = hashlib.blake2b(json.dumps(shapes).encode(), digest_size=8).hexdigest()
    return f"{model.config.model_type} with {count:,} parameters ({digest})"


def _configuration(model: Any) -> dict[str, Value]:
    """The settings of a model, without those of the library and of how it was loaded."""
    found = dict(_flat(json.loads(model.config.to_json_string(use_diff=False))))
    parts = {name: name.split(".") for name in found}
    plain = [n for n, p in parts.items() if p[0] not in VOLATILE and p[-1] not in VOLATILE]
    return {name: found[name] for name in plain if not name.startswith("_")}


def changes(old: RunIdentity, new: RunIdentity) -> list[Change]:
    """What differs between the run of a checkpoint and the present one; refusals first."""
    found = [*_refused_changes(old, new), *_reported_changes(old, new)]
    return sorted(found, key=lambda change: not change.refusal)


def _refused_changes(old: RunIdentity, new: RunIdentity) -> Iterator[Change]:
    """Changes after which a run could not go on as the same."""
    fixed = [Change(n, old.job.get(n), new.job.get(n), f"restore the former `{n}`") for n in FIXED]
    names = sorted(filter(_is_lora, {*old.job, *new.job}))
    lora = [
        Change(n, _of_lora(old, n), _of_lora(new, n), "restore the former `lora`") for n in names
    ]
    lora = [change for change in lora if change.name != "lora.dropout"]
    others = [
        Change("precision", old.precision, new.precision, "use the precision of the checkpoint"),
        Change("optimizer", old.optimizer, new.optimizer, "use the optimizer of the checkpoint"),
    ]
    differing = [change for change in (*fixed, *lora, *others) if change.old != change.new]
    yield from differing
    if old.data != new.data and not differing:
        yield Change(
            "data", old.data, new.data, "use the samples of the checkpoint, in their order"
        )
    common = old.configuration.keys() & new.configuration.keys()
    pairs = [(n, old.configuration[n], new.configuration[n]) for n in sorted(common)]
    others = [Change(f"model.{n}", was, now, MODEL) for n, was, now in pairs if was != now]
    yield from others
    if old.base_weights and new.base_weights and old.base_weights != new.base_weights:
        yield Change("base weights", old.base_weights, new.base_weights, MODEL)
    if (
        old.model != new.model
        and not others
        and not any(_is_lora(change.name) for change in differing)
    ):
        yield Change("model", old.model, new.model, MODEL)


def _reported_changes(old: RunIdentity, new: RunIdentity) -> Iterator[Change]:
    """Changes that take effect from the next step on."""
    pairs: list[tuple[str, Value, Value]] = [("steps", old.total_steps, new.total_steps)]
    if old.validation != new.validation:
        pairs.append(("validation data", old.validation, new.validation))
    settings = old.settings, new.settings
    if old.engine != new.engine:
        pairs.append(("engine", old.engine, new.engine))
        settings = _common(*settings)
    for before, after in ((old.job, new.job), settings):
        names = [n for n in {**before, **after} if n not in FIXED]
        pairs += [(n, before.get(n), after.get(n)) for n in names]
    reshaped = old.settings.get(STAGE) != new.settings.get(STAGE)  # said with the ranks
    for name, was, now in pairs:
        is_refused = name == "optimizer.type" or (_is_lora(name) and name != "lora.dropout")
        is_said = reshaped and name.startswith("zero_optimization.")
        if was != now and not is_refused and not is_said:
            yield Change(RATE if name == f"{OPTIMIZER}lr" else name, was, now)


def _common(one: Values, other: Values) -> tuple[Values, Values]:
    """The settings that both of two engines have."""
    names = [name for name in one if name in other]
    return {n: one[n] for n in names}, {n: other[n] for n in names}


def _of_lora(run: RunIdentity, name: str) -> Value:
    """A setting of the adapters; a release that did not know it trained by its default."""
    has_adapters = f"{LORA}rank" in run.job
    return run.job.get(name, _usual_lora().get(name) if has_adapters else None)


@lru_cache(maxsize=1)
def _usual_lora() -> dict[str, Value]:
    """The settings of adapters that are described no further, by dotted name."""
    return dict(_flat(LoraSpec().model_dump(mode="json"), LORA))


def _is_lora(name: str) -> bool:
    return name == "lora" or name.startswith(LORA)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Value]]:
    """The leaves of nested mappings under dotted names; lists as JSON."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list | tuple):
            yield name, json.dumps(value)
        else:
            yield name, value


def _shown(value: Value) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    text = f"{value:g}" if isinstance(value, float) else ascii(str(value))[1:-1]
    return text if len(text) <= MAX_SHOWN_LETTERS else f"{text[:MAX_SHOWN_LETTERS]}..."
