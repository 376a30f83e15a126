"""A user's own ds_config.json as constraints of a plan: what it really sets, priced as it stands.

What the file leaves open has the engine's default, not ours. `"auto"` (Hugging Face) is filled in
by the trainer: it leaves a value open here too, so that it is chosen and shown. What would change
the price and has none is refused by name; `dsforge/ds_config/keys.py` lists every key.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from dsforge.ds_config import DsConfig, read, unknown, unpriced
from dsforge.ds_config.keys import CLOSED, TABLE
from dsforge.errors import Problem, SpecError
from dsforge.outside import UnreadableError, json_with_repeated
from dsforge.plan import Reason, Request
from dsforge.reading.ds_config_strategy import (
    batch_problem,
    derived_settings,
    fixed_settings,
    partition_problem,
    partition_reason,
    unpriced_values,
)
from dsforge.reading.refusals import MAX_PROBLEMS, refusal
from dsforge.reading.source import Setting, read_text


class DsConfigFile(NamedTuple):
    """A config, the file that it stands in, and keys that the engine does not read."""

    config: DsConfig
    place: str
    ignored: tuple[str, ...] = ()


def json_mapping(path: Path) -> dict[str, Any]:
    """The JSON object in a file, each key once. Raises SpecError.

    DeepSpeed refuses a key that is written twice (`dict_raise_error_on_duplicate_keys`).
    """
    text, place = read_text(path), str(path)
    try:
        value, repeated = json_with_repeated(text)
    except UnreadableError as error:
        place = f"{path}:{error.line}" if error.line else place
        raise refusal("ds-config-json", place, error.reason) from error
    problems = [
        Problem("ds-config-duplicate", f"`{key[:60]}` occurs twice", "keep one", place)
        for key in repeated[:MAX_PROBLEMS]
    ]
    if not isinstance(value, dict):
        problems.append(Problem("ds-config-mapping", "must be a JSON object", place=place))
    if problems:
        raise SpecError(tuple(problems))
    return dict(value)


def read_ds_config(path: Path) -> DsConfigFile:
    """What the file sets. Raises SpecError with all its problems."""
    settings, place = json_mapping(path), str(path)
    config, problems = read(settings)
    strange = unknown(settings)
    refused = [key for key in strange if key.rpartition(".")[0] in CLOSED]
    problems += tuple(
        Problem("key-unknown", f"`{key[:60]}` is not a key of DeepSpeed", _nearest(key))
        for key in refused
    )
    problems += (*unpriced(settings, config), *unpriced_values(config))
    if problems:
        raise SpecError(tuple(replace(p, place=place) for p in problems[:MAX_PROBLEMS]))
    return DsConfigFile(config, place, tuple(key for key in strange if key not in refused))


def settings_of(file: DsConfigFile) -> tuple[Setting, ...]:
    """The file as settings of a request, which flags may follow."""
    return tuple(
        Setting(loc, value, file.place) for loc, value in fixed_settings(file.config).items()
    )


def settings_within(file: DsConfigFile, request: Request) -> tuple[Setting, ...]:
    """What follows once model and ranks are known. Raises SpecError where they clash."""
    clashes = (
        batch_problem(file.config, request),
        partition_problem(file.config, request),
    )
    problems = tuple(replace(p, place=file.place) for p in clashes if p is not None)
    if problems:
        raise SpecError(problems)
    found = derived_settings(file.config, request)
    return tuple(Setting(loc, value, file.place) for loc, value in found.items())


def reasons_of(file: DsConfigFile, request: Request) -> tuple[Reason, ...]:
    """What is priced otherwise than somebody may think who wrote the file."""
    ignored = (
        Reason(
            rule="ds-config-ignored", message=f"DeepSpeed ignores `{key[:60]}`{_suggestion(key)}"
        )
        for key in file.ignored[:MAX_PROBLEMS]
    )
    cut = partition_reason(file.config, request)
    return (*ignored, *(() if cut is None else (cut,)))


def _nearest(key: str) -> str:
    """A hint with the key that was probably meant; empty where none is near."""
    block = key.rpartition(".")[0]
    legal = [path for path in TABLE if path.rpartition(".")[0] == block]
    match = get_close_matches(key[:100], legal, n=1, cutoff=0.8)
    return f"did you mean `{match[0]}`?" if match else ""


def _suggestion(key: str) -> str:
    hint = _nearest(key)
    return f" ({hint})" if hint else ""
