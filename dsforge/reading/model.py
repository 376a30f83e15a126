"""What a person calls a model, as a ModelSpec: a name, a path, a hub id or just a size.

The order is that of certainty: a path that exists, the catalog's own names, the local cache, the
catalog's forgiving names, a size, and only then the network. Files are hostile until checked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from dsforge import catalog
from dsforge.errors import Problem, SpecError
from dsforge.plan import Reason
from dsforge.reading.hub import MAX_CONFIG_BYTES, cached_config, downloaded_config, is_hub_id
from dsforge.reading.problems import shown
from dsforge.reading.sizes import sized_model
from dsforge.specs import ModelSpec

CONFIG = "config.json"
LONGEST_NAME = 1024
MAX_NESTING = 50

Read = tuple[ModelSpec, tuple[Reason, ...]]


def read_model(text: str) -> Read:
    """The model that a text names, and what was chosen or assumed to read it.

    Takes a catalog name, alias or hub id, a folder or config.json, a size (`7b`, `gpt-1.3b`).
    Raises SpecError with all problems of a config, or the nearest names.
    """
    text = text.strip()
    if not text or len(text) > LONGEST_NAME or not text.isprintable():
        message = f"model (={shown(text)}) must be a name, a path or a size"
        raise SpecError((Problem("model-name", message, "such as llama-2-7b, ./model or 7b"),))
    found = _from_path(text)
    if found is not None:
        return found
    return _from_hub_id(text) if is_hub_id(text) else _from_name(text)


def parsed_config(text: str, place: str) -> dict[str, Any]:
    """The mapping in a config.json. Raises SpecError where it is none."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        config = json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise _unusable(place, "is nested too deeply") from None
    except ValueError as error:
        raise _unusable(place, f"is not JSON: {shown(str(error))}") from None
    if not isinstance(config, dict):
        raise _unusable(place, f"must hold a JSON object, not {type(config).__name__}")
    if _depth(config) > MAX_NESTING:
        raise _unusable(place, "is nested too deeply")
    return config


def _from_path(text: str) -> Read | None:
    """The model of a file or folder; none where the text is no path."""
    looks_like_path = text.startswith(("/", "./", "../", "~", ".\\")) or text.endswith(
        (".json", ".gguf", ".safetensors")
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
    return _from_file(config, path)


def _from_file(config: Path, path: Path) -> Read:
    """The model of a config.json; its name is that of the folder."""
    place = str(config)
    if config.suffix != ".json":
        hint = "give the catalog name or hub id of the model, or its config.json"
        raise _unusable(place, "is not a config.json", hint)
    name = path.resolve().name if path.is_dir() else config.resolve().parent.name
    model, reasons = _with_place(parsed_config(_text(config), place), name or "model", place)
    return model.model_copy(update={"path": str(path.resolve())}), reasons


def _text(config: Path) -> str:
    """The text of a regular file of bounded size."""
    if not config.is_file():
        raise _unusable(str(config), "is not a regular file")
    try:
        with config.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise _unusable(str(config), f"cannot be read ({error.strerror})") from None
    if len(content) > MAX_CONFIG_BYTES:
        raise _unusable(str(config), "is larger than 1 MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _unusable(str(config), "is not UTF-8 text") from None


def _from_hub_id(hub_id: str) -> Read:
    """The model of `organisation/name`."""
    row = catalog.find_model(hub_id)
    if row is not None:
        model = catalog.model(row)
        if (model.hub_id or "").lower() == hub_id.lower():
            return model, ()
    config = cached_config(hub_id)
    if config is not None:
        found = _with_place(parsed_config(_text(config), str(config)), hub_id, str(config))
    elif row is not None:
        message = f"{hub_id} is taken to have the shape of {row} in the catalog"
        return model, (Reason(rule="model-same-shape", message=message),)
    else:
        place = f"{CONFIG} of {hub_id}"
        found = _with_place(parsed_config(downloaded_config(hub_id), place), hub_id, place)
    return found[0].model_copy(update={"hub_id": hub_id}), found[1]


def _from_name(text: str) -> Read:
    """The model of a catalog name, or of a size."""
    if catalog.find_model(text) is not None:
        return catalog.model(text), ()
    found = sized_model(text)
    if found is not None:
        return found
    return catalog.model(text), ()  # raises, with the nearest names


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
    if any(folder.glob("*.gguf")):
        return "a GGUF file alone does not say enough: give the catalog name or hub id"
    return "give the folder that holds it, or a catalog name"


def _unusable(place: str, what: str, hint: str = "") -> SpecError:
    return SpecError((Problem("model-file", f"model {shown(place)} {what}", hint),))
