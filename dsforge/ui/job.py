"""The job that a page asks about: fields of a form or of a link, checked as strangers' input."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from dsforge.errors import DsforgeError, Problem, SpecError
from dsforge.hostfile import hostfile_entries
from dsforge.plan import Request
from dsforge.programs import NAMES
from dsforge.reading.hub import MAX_CONFIG_BYTES
from dsforge.reading.model import CONFIG, model_of_config, parsed_config
from dsforge.reading.refusals import Loc
from dsforge.reading.request import Asked, Known, read_request
from dsforge.reading.source import MAX_BYTES, Setting, Source, parse_source
from dsforge.ui.fields import FIELDS, Field, value_of

LONGEST_TEXT = 1024  # characters of a field
FOLDER = "model"  # of a config.json that was dropped: `--model model` is the same
CLUSTER, HOSTFILE = "cluster.yaml", "hostfile"  # what files of a cluster are called here
SLOTS = re.compile(r"^[^\s#:]+[ \t]+slots=", re.MULTILINE)  # a line of a hostfile
KEYS = {"fields", "config", "cluster", "hub"}


class Job(NamedTuple):
    """What a page asks for: settings of the request, and wishes for the whole run."""

    settings: tuple[Setting, ...]
    wishes: dict[str, Any]
    command: str  # the same question on the command line
    known: Known = Known()  # the model, where its config was given
    machines: Source | None = None  # the cluster, where its file was given

    @property
    def asked(self) -> Asked:
        """The question as reading takes it; hosts need no addresses."""
        settings = self.settings
        return Asked(known=self.known, machines=self.machines, by_name=True, settings=settings)

    def request(self) -> Request:
        """The request. Raises SpecError with all problems."""
        return read_request(self.asked)


def read_job(given: Any) -> Job:
    """The job that a page sent. Raises SpecError with all problems of its fields."""
    if not isinstance(given, Mapping) or set(given) - KEYS:
        raise DsforgeError(f"a job must be a mapping with {', '.join(sorted(KEYS))} only")
    fields = _texts(given.get("fields", {}), "fields")
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        named = ", ".join(f"`{name[:60]}`" for name in unknown[:10])
        raise DsforgeError(f"unknown field {named}", "the link was made for another version")
    hub = _texts(given.get("hub", {}), "hub", MAX_CONFIG_BYTES)
    known = _known(fields, given.get("config"), hub)
    cluster = _cluster(given.get("cluster"))
    file = [f"--{cluster.name.partition('.')[0]}", cluster.name] if cluster else []
    if known.model is None:
        return _job(fields, *file)._replace(machines=cluster)
    job = _job({"model": FOLDER, **fields}, *file)._replace(machines=cluster)
    others = tuple(setting for setting in job.settings if setting.loc != FIELDS["model"].setting)
    return job._replace(known=known, settings=others)


def _cluster(text: Any) -> Source | None:
    """The cluster of a cluster.yaml or hostfile. Raises SpecError with all its problems."""
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > MAX_BYTES:
        raise DsforgeError(f"a cluster file must be text of at most {MAX_BYTES >> 10} KiB")
    if not SLOTS.search(text):
        return parse_source(text, CLUSTER)
    entries = hostfile_entries(text, HOSTFILE, by_name=True)
    hosts = [{"address": entry.address, "slots": entry.slots} for entry in entries]
    lines: dict[Loc, str] = {("hosts", index): e.place for index, e in enumerate(entries)}
    return Source(HOSTFILE, {"hosts": hosts}, lines)


def _job(fields: Mapping[str, str], *files: str) -> Job:
    """Settings and wishes of fields that are known. Raises SpecError with all problems."""
    problems, settings, wishes, words = [], [], {}, ["dsforge", "plan", *files]
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
            settings.append(Setting(_place(field, value), value, field.flag))
        else:
            wishes[name] = value
    if problems:
        raise SpecError(tuple(problems))
    return Job(tuple(settings), wishes, " ".join(words))


def _place(field: Field, value: object) -> tuple[str, ...]:
    """Where a value stands in a spec file: `--for` takes engines, and programs that train."""
    named = field == FIELDS["back_end"] and value in NAMES
    return ("strategy", "program") if named else field.setting


def _texts(values: Any, name: str, longest: int = LONGEST_TEXT) -> dict[str, str]:
    """A mapping of texts of bounded length. Raises DsforgeError for anything else."""
    if not isinstance(values, Mapping):
        raise DsforgeError(f"`{name}` must be a mapping of texts")
    for key, text in values.items():
        if not isinstance(text, str) or len(text) > longest:
            raise DsforgeError(f"`{key[:60]}` must be text of at most {longest:,} characters")
    return dict(values)


def _known(fields: Mapping[str, str], config: Any, hub: Mapping[str, str]) -> Known:
    """The model of a config.json, dropped on the page or read from the hub; else none."""
    name = fields.get("model", "").strip()
    if config is not None:
        if not isinstance(config, str) or len(config) > MAX_CONFIG_BYTES:
            raise DsforgeError("a config.json must be text of at most 1 MiB")
        folder = os.path.abspath(FOLDER)  # noqa: PTH100 (where `gen` is told that it is)
        return _model(config, FOLDER, {"path": folder})
    if name in hub:
        return _model(hub[name], name, {"hub_id": name})
    return Known()


def _model(config: str, name: str, update: dict[str, str]) -> Known:
    """The model of a config.json. Raises SpecError with all its problems."""
    model, reasons = model_of_config(parsed_config(config, CONFIG), name)
    return Known(model=model.model_copy(update=update), reasons=reasons)
