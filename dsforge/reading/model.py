"""What a person calls a model, as a ModelSpec: a name, a path, a hub id or just a size.

The order is that of certainty: a path that exists, the catalog's own names and ids, the local
cache, the sizes of a catalog row that a name leads to, a size, and only then the network. Whoever
lends the sizes, the weights are those that were named: their id or path stays as it was given, and
a name that stands for no known weights is refused. Files are hostile until checked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsforge import catalog
from dsforge.errors import Problem, SpecError
from dsforge.outside import UnreadableError, json_value, read_text
from dsforge.plan import Reason
from dsforge.reading.hub import MAX_CONFIG_BYTES, cached_config, downloaded_config, is_hub_id
from dsforge.reading.problems import shown
from dsforge.reading.sizes import sized_model
from dsforge.reading.source import plain
from dsforge.specs import ModelSpec

CONFIG, GGUF = "config.json", ".gguf"
LONGEST_NAME = 1024
MAX_NESTING = 50

Read = tuple[ModelSpec, tuple[Reason, ...]]


def read_model(text: str, *, trust_config: bool = False) -> Read:
    """The model that a text names, and what was chosen or assumed to read it.

    Takes a catalog name, alias or hub id, a folder or config.json, a size (`7b`, `gpt-1.3b`).
    With `trust_config` the weights beside a config.json are not asked whether it is theirs.
    Raises SpecError with all problems of a config, or the nearest names.
    """
    text = text.strip()
    if not text or len(text) > LONGEST_NAME or not text.isprintable():
        message = f"model (={shown(text)}) must be a name, a path or a size"
        raise SpecError((Problem("model-name", message, "such as llama-2-7b, ./model or 7b"),))
    found = _from_path(text, trust_config=trust_config)
    if found is not None:
        return found
    return _from_hub_id(text) if is_hub_id(text) else _from_name(text)


def model_of_config(config: Mapping[str, Any], name: str = "model") -> Read:
    """The model of a transformers config that a program holds. Raises SpecError."""
    return _with_place(plain(config, "model", depth=MAX_NESTING), name, "model")


def parsed_config(text: str, place: str) -> dict[str, Any]:
    """The mapping in a config.json. Raises SpecError where it is none."""
    try:
        config = json_value(text)
    except UnreadableError as error:
        raise _unusable(place, error.reason) from None
    if not isinstance(config, dict):
        raise _unusable(place, f"must contain a JSON object, not {type(config).__name__}")
    if _depth(config) > MAX_NESTING:
        raise _unusable(place, "is nested too deeply")
    return config


def _from_path(text: str, *, trust_config: bool) -> Read | None:
    """The model of a file or folder; none where the text is no path."""
    looks_like_path = text.startswith(("/", "./", "../", "~", ".\\")) or text.endswith(
        (".json", GGUF, ".safetensors")
    )
    try:
        path = Path(text).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError, ValueError):
        exists = False
    if not exists:
        if looks_like_path:
            raise _unusable(text, "does not exist", "check the path, or give a catalog name")
        return None
    config = path / CONFIG if path.is_dir() else path
    if path.is_dir() and not config.exists():
        if looks_like_path:
            raise _unusable(text, f"has no {CONFIG}", _gguf_hint(path))
        return None  # a folder that happens to be called like a model
    return _from_file(config, path, trust_config=trust_config)


def _from_file(config: Path, path: Path, *, trust_config: bool) -> Read:
    """The model of a config.json, named after its folder, or of another JSON file, after itself."""
    place = str(config)
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 (links stay: what was named is trained)
    if config.suffix == GGUF:
        model, reasons = _of_gguf(config)
        return model.model_copy(update={"path": str(absolute)}), reasons
    if config.suffix != ".json":
        hint = "give the catalog name or hub id of the model, its config.json or a GGUF file"
        raise _unusable(place, "is not a config.json", hint)
    of_folder = absolute if path.is_dir() else absolute.parent
    name = of_folder.name if config.name == CONFIG else config.stem
    model, reasons = _beside_weights(config, name or "model", trust_config=trust_config)
    return model.model_copy(update={"path": str(absolute)}), reasons


def _of_gguf(path: Path) -> Read:
    """The model in a GGUF file, by its header."""
    from dsforge.reading.gguf import GgufError, gguf_config

    try:
        config = gguf_config(path)
    except (GgufError, UnreadableError) as error:
        hint = "give the catalog name or hub id of the model, or its config.json"
        raise _unusable(str(path), str(error), hint) from None
    return _with_place(config, path.stem, str(path))


def _text(config: Path) -> str:
    """The text of a regular file of bounded size."""
    try:
        return read_text(config, MAX_CONFIG_BYTES, pipes=False)
    except UnreadableError as error:
        raise _unusable(str(config), error.reason) from None


def _from_hub_id(hub_id: str) -> Read:
    """The model of `organisation/name`: always under that id, whoever lends the sizes."""
    named = catalog.named_model(hub_id)
    if named is not None and named.own_row:
        return catalog.model(named.row).model_copy(update={"hub_id": hub_id}), _beside_the_text(
            named.row
        )
    config = cached_config(hub_id)
    row = named.row if named else catalog.lent_shape(hub_id)
    if config is not None:
        found = _beside_weights(config, hub_id)
    elif row is not None:
        return _with_sizes_of(row, hub_id)
    else:
        place = f"{CONFIG} of {hub_id}"
        found = _with_place(parsed_config(downloaded_config(hub_id), place), hub_id, place)
    return found[0].model_copy(update={"hub_id": hub_id}), found[1]


def _with_sizes_of(row: str, hub_id: str) -> Read:
    """Weights under their own id with the sizes of a row, which is an assumption."""
    model = catalog.model(row).model_copy(update={"name": hub_id, "hub_id": hub_id})
    message = f"{hub_id} is assumed to have the sizes of {row}: its {CONFIG} was not read"
    return model, (*_beside_the_text(row), Reason(rule="default-model-sizes", message=message))


def _beside_the_text(row: str) -> tuple[Reason, ...]:
    """What the weights of a row hold beside its language model, planned or not."""
    what, tower = catalog.beside(row), catalog.model(row).tower
    if tower is not None:
        from dsforge.huggingface.towers import tower_reason

        return (tower_reason(tower),)
    if what is None:
        return ()
    message = f"the weights of {row} also contain {what}, which is loaded but not in this plan"
    return (Reason(rule="warning-beside-model", message=message),)


def _from_name(text: str) -> Read:
    """The model of a catalog name, or of a size."""
    named = catalog.named_model(text)
    if named is None:
        found = sized_model(text)
        if found is None:
            raise SpecError((_unknown(text),))
        return found
    if not named.own_row and named.hub_id is not None:
        return _with_sizes_of(named.row, named.hub_id)
    said = _beside_the_text(named.row)
    if not named.spelled:
        message = f"{text} is read as {named.row} ({named.hub_id or 'no published weights'})"
        said = (*said, Reason(rule="model-spelling", message=message))
    return catalog.model(named.row), said


def _unknown(text: str) -> Problem:
    """The problem of a name that nothing answers to; another one's weights are never taken."""
    row = catalog.lent_shape(text)
    if text.startswith("-") or (text.endswith("/") and is_hub_id(text.rstrip("/"))):
        hint = f"write {text.strip('-/')}"
    elif "@" in text and is_hub_id(text.partition("@")[0]):
        hub_id, _, revision = text.partition("@")
        command = f"hf download {hub_id} --revision {shown(revision)} --local-dir model"
        hint = f"a revision cannot be named: `{command}`, and give that folder"
    elif row is not None:
        hint = f"{row} is in the catalog, but these weights are not: give their hub id or folder"
    else:
        nearest = ", ".join(catalog.nearest_models(text))
        nearest = f"nearest: {nearest}; " if nearest else ""
        hint = f"{nearest}`dsforge catalog models` lists all"
    return Problem("catalog-model", f"model {text[:80]!r} is not in the catalog", hint)


def _beside_weights(config: Path, name: str, *, trust_config: bool = False) -> Read:
    """The model of a config.json, checked against the weights in its folder."""
    from dsforge.reading.stored_weights import check_stored

    values = parsed_config(_text(config), str(config))
    found = _with_place(values, name, str(config))
    if not trust_config:
        check_stored(found[0], values, config.parent)
    return found


def _with_place(config: dict[str, Any], name: str, place: str) -> Read:
    """The model of a config; its problems begin with the file they are in."""
    from dsforge.huggingface import read_config  # its tables cost time; the catalog needs none

    try:
        return read_config(config, name)
    except SpecError as error:
        problems = tuple(
            Problem(p.rule, p.message, p.hint, f"{place}: {p.place}" if p.place else place)
            for p in error.problems
        )
        raise SpecError(problems, f"{place} is not a usable model config") from None


def _depth(value: Any) -> int:
    """Levels of nesting; stops counting past the limit."""
    level, inner = 0, [value]
    while inner and level <= MAX_NESTING:
        level += 1
        groups = [v.values() if isinstance(v, dict) else v for v in inner if _is_group(v)]
        inner = [v for group in groups for v in group]
    return level


def _is_group(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _gguf_hint(folder: Path) -> str:
    if any(folder.glob(f"*{GGUF}")):
        return "name the GGUF file in it"
    return "give the folder that contains it, or a catalog name"


def _unusable(place: str, what: str, hint: str = "") -> SpecError:
    return SpecError((Problem("model-file", f"model {shown(place)} {what}", hint),))
