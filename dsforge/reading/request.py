"""Request: spec file, cluster file, workload file, hostfile and command line as one value.

The command line is an overlay: each of its values goes into the mapping of the file that it
belongs to, under the name of its flag, and the whole is validated once. So a flag and a key obey
the same rules, and a problem names whichever of the two is wrong.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dsforge.errors import SpecError
from dsforge.plan import Machines, Reason, Request, is_tuned
from dsforge.reading.cluster import pools_of
from dsforge.reading.files import SpecFile
from dsforge.reading.model import CONFIG, read_model
from dsforge.reading.priced_only import beyond_positions, of_preference
from dsforge.reading.problems import Collector, validated
from dsforge.reading.refusals import refusal
from dsforge.reading.source import Setting, Source, read_source
from dsforge.reading.unequal import Pool
from dsforge.reading.workload import FITTED, Fitted, fitted, workload_file, workload_of
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.strategy import Constraints

COMMAND_LINE = "command line"


class Known(NamedTuple):
    """Inputs that a program hands over as finished values: nothing of them is read or chosen.

    `reasons` are those of the model, where it was read before.
    """

    model: ModelSpec | None = None
    reasons: tuple[Reason, ...] = ()
    cluster: ClusterSpec | None = None
    workload: Workload | None = None


class Asked(NamedTuple):
    """What a user names: files, and settings whose `loc` begins with their part of the spec."""

    spec: Path | None = None
    given: Source | None = None  # a spec that is no file
    known: Known = Known()
    machines: Source | None = None  # a cluster that is no file
    cluster: Path | None = None
    workload: Path | None = None
    hostfile: Path | None = None
    resolve: bool = False
    by_name: bool = False  # hosts may be names: nobody goes there
    ds_config: Path | None = None
    settings: tuple[Setting, ...] = ()

    def settings_of(self, part: str) -> tuple[Setting, ...]:
        """The settings of one part, located inside it."""
        return tuple(s._replace(loc=s.loc[1:]) for s in self.settings if s.loc[0] == part)


def read_request(asked: Asked) -> Request:
    """Everything that a plan needs. Raises one SpecError with the problems of all parts."""
    return _read(asked) if asked.ds_config is None else _as_configured(asked, asked.ds_config)


def _as_configured(asked: Asked, path: Path) -> Request:
    """The request under a ds_config. Some values follow only once model and ranks are known."""
    from dsforge.reading.ds_config import read_ds_config, reasons_of, settings_of, settings_within

    file = read_ds_config(path)
    asked = asked._replace(settings=(*settings_of(file), *asked.settings))
    request = _read(asked)
    within = settings_within(file, request)
    request = _read(asked._replace(settings=(*within, *asked.settings)))
    return request.model_copy(update={"reasons": (*request.reasons, *reasons_of(file, request))})


def _read(asked: Asked) -> Request:
    parts = Collector()
    spec = parts.attempt(lambda: _spec_source(asked))
    if asked.spec is not None or asked.given is not None:
        parts.attempt(lambda: validated(SpecFile, spec.value))
    model = parts.attempt(lambda: _model(asked, spec.value))
    pools = parts.attempt(lambda: _all_pools(asked, spec.value))
    workload = parts.attempt(
        lambda: workload_file(_part(asked, spec.value, "workload", asked.workload))
    )
    strategy = parts.attempt(
        lambda: validated(Constraints, _part(asked, spec.value, "strategy", None))
    )
    parts.check()
    shape, known = model.value
    every, *others = pools.value
    micro = strategy.value.micro_batch_size or 1
    computed, chosen = (
        (asked.known.workload, ())
        if asked.known.workload is not None
        else workload_of(workload.value, shape, every.cluster, micro=micro)
    )
    shape, fixed, why = of_preference(shape, computed, strategy.value)
    chosen = (*chosen, *why, *beyond_positions(shape, computed, fixed))
    rest = tuple(reason for reason in chosen if reason.rule not in FITTED)
    length, tuned = computed.sample_tokens, is_tuned(shape)
    given = asked.known.workload and Fitted(computed.precision, computed.global_batch_size, ())
    fit = partial(fitted, workload.value, sequence_length=length, tuned=tuned, micro=micro)
    return Request(
        model=shape,
        cluster=every.cluster,
        workload=computed,
        constraints=fixed,
        reasons=(*known, *every.reasons, *chosen),
        others=tuple(
            _machines(pool, given or fit(pool.cluster), (*known, *pool.reasons, *rest))
            for pool in others
        ),
        listed_gpus=every.listed_gpus,
    )


def _machines(pool: Pool, found: Fitted, reasons: tuple[Reason, ...]) -> Machines:
    """A set of hosts with what follows for the workload, and with all reasons."""
    return Machines(
        cluster=pool.cluster,
        precision=found.precision,
        global_batch_size=found.global_batch_size,
        reasons=(*reasons, *found.reasons),
        alike=pool.alike,
    )


def _spec_source(asked: Asked) -> Source:
    """The spec that is given, the spec file, or an empty one that stands for the command line."""
    if asked.given is not None:
        return asked.given
    return Source(COMMAND_LINE, {}) if asked.spec is None else read_source(asked.spec)


def _all_pools(asked: Asked, spec: Source) -> tuple[Pool, ...]:
    """The cluster, and where its hosts differ the sets of them that may train alone."""
    if asked.known.cluster is not None:
        return (Pool(asked.known.cluster, ()),)
    return pools_of(
        _part(asked, spec, "cluster", asked.cluster),
        hostfile=asked.hostfile,
        resolve=asked.resolve,
        by_name=asked.by_name,
    )


def _part(asked: Asked, spec: Source, key: str, path: Path | None) -> Source:
    """The mapping of one part: its own file, else the spec's, under the command line."""
    written = spec.values.get(key)
    if path is None and isinstance(written, str):
        path = (asked.spec.parent if asked.spec else Path()) / written
    source = spec.part(key) if path is None else read_source(path)
    if key == "cluster" and asked.machines is not None:
        source = asked.machines
    if key == "cluster" and asked.hostfile is not None:
        source = source.without("hosts", "nodes")  # the hostfile says both
    home = path or asked.spec
    if key == "workload" and home is not None:
        source = source.overlaid(_data_paths(source, home.parent))
    return source.overlaid(asked.settings_of(key))


def _data_paths(source: Source, folder: Path) -> tuple[Setting, ...]:
    """The data paths of a file, which are relative to its folder, as seen from here."""
    data = source.part("data").values
    return tuple(
        Setting(("data", key), str(folder / data[key]), source.place(("data", key)))
        for key in ("train", "validation")
        if isinstance(data.get(key), str)
    )


def _model(asked: Asked, spec: Source) -> tuple[ModelSpec, tuple[Reason, ...]]:
    """The model, by flag or spec. Raises SpecError."""
    if asked.known.model is not None:
        return asked.known.model, asked.known.reasons
    flag = next((s for s in asked.settings if s.loc == ("model",)), None)
    text = flag.value if flag else _relative_to_spec(asked.spec, spec.values.get("model"))
    if not isinstance(text, str):
        hint = "`--model llama-2-7b`, a folder, a config.json, or a size such as 7b"
        raise refusal("model-missing", spec.name, "`model` is missing", hint)
    try:
        return read_model(text)
    except SpecError as error:
        place = flag.place if flag else spec.place(("model",))
        problems = tuple(replace(p, place=p.place or place) for p in error.problems)
        raise SpecError(problems) from error


def _relative_to_spec(spec: Path | None, text: object) -> object:
    """A path in a spec file is relative to that file; what exists there wins over a name."""
    if spec is None or not isinstance(text, str):
        return text
    try:
        exists = (spec.parent / text / CONFIG).is_file() or (spec.parent / text).is_file()
    except (OSError, ValueError):
        exists = False
    return str(spec.parent / text) if exists or text.startswith(("./", "../")) else text
