"""The job that a page asks about: fields of a form or of a link, checked as strangers' input."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dsforge.errors import DsforgeError, Problem, SpecError
from dsforge.plan import Request
from dsforge.reading.hub import MAX_CONFIG_BYTES, is_hub_id
from dsforge.reading.request import Asked, read_request
from dsforge.reading.source import Setting
from dsforge.ui.fields import FIELDS, value_of

LONGEST_TEXT = 1024  # characters of a field
MODEL_FOLDER = Path("model")  # of a config.json that was given with the job
KEYS = {"fields", "config", "hub"}


class Job(NamedTuple):
    """What a page asks for: settings of the request, and wishes for the whole run."""

    settings: tuple[Setting, ...]
    wishes: dict[str, Any]
    command: str  # the same question on the command line

    @property
    def asked(self) -> Asked:
        """The question as reading takes it; hosts need no addresses."""
        return Asked(by_name=True, settings=self.settings)

    def request(self) -> Request:
        """The request. Raises SpecError with all problems."""
        return read_request(self.asked)


def read_job(given: Any) -> Job:
    """The job that a page sent. Raises SpecError with all problems of its fields."""
    if not isinstance(given, Mapping) or set(given) - KEYS:
        raise DsforgeError("a job must be a mapping with `fields`, `config` and `hub` only")
    fields = _texts(given.get("fields", {}), "fields")
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        named = ", ".join(f"`{name[:60]}`" for name in unknown[:10])
        raise DsforgeError(f"unknown field {named}", "the link was made for another version")
    _keep_hub_configs(_texts(given.get("hub", {}), "hub", MAX_CONFIG_BYTES))
    shutil.rmtree(MODEL_FOLDER, ignore_errors=True)
    if given.get("config") is not None:
        fields = {**fields, "model": str(_kept_config(given["config"]))}
    return _job(fields)


def _job(fields: Mapping[str, str]) -> Job:
    """Settings and wishes of fields that are known. Raises SpecError with all problems."""
    problems, settings, wishes, words = [], [], {}, ["dsforge", "plan"]
    for name, field in FIELDS.items():
        text = fields.get(name, "").strip()
        if not text:
            continue
        try:
            value = value_of(field, text)
        except ValueError as error:
            problems.append(Problem("value-type", str(error), place=field.flag))
            continue
        words += [field.flag] if value is True else [field.flag, shlex.quote(text)]
        if field.setting:
            settings.append(Setting(field.setting, value, field.flag))
        else:
            wishes[name] = value
    if problems:
        raise SpecError(tuple(problems))
    return Job(tuple(settings), wishes, " ".join(words))


def _texts(values: Any, name: str, longest: int = LONGEST_TEXT) -> dict[str, str]:
    """A mapping of texts of bounded length. Raises DsforgeError for anything else."""
    if not isinstance(values, Mapping):
        raise DsforgeError(f"`{name}` must be a mapping of texts")
    for key, text in values.items():
        if not isinstance(text, str) or len(text) > longest:
            raise DsforgeError(f"`{key[:60]}` must be text of at most {longest:,} characters")
    return dict(values)


def _kept_config(text: Any) -> Path:
    """The folder of a config.json that was dropped on the page. Raises DsforgeError."""
    if not isinstance(text, str) or len(text) > MAX_CONFIG_BYTES:
        raise DsforgeError("a config.json must be text of at most 1 MiB")
    MODEL_FOLDER.mkdir()
    (MODEL_FOLDER / "config.json").write_text(text, encoding="utf-8")
    return MODEL_FOLDER


def _keep_hub_configs(texts: Mapping[str, str]) -> None:
    """Put configs that the page read from the hub where reading looks for them."""
    for hub_id, text in texts.items():
        if not is_hub_id(hub_id):
            raise DsforgeError(f"`{hub_id[:60]}` is not a hub id")
        cache = Path(os.environ["HF_HUB_CACHE"])
        folder = cache / ("models--" + hub_id.replace("/", "--")) / "snapshots" / "main"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(text, encoding="utf-8")
