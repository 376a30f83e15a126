"""Models, accelerators and links by name, each row with its source.

Names are forgiving (case, separators, organisation, vendor words), because people copy them from
hub pages, from nvidia-smi and from each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from dsforge.catalog.index import Table, names_of, parsed, pretrainings, table
from dsforge.specs import GpuSpec, LinkSpec, ModelSpec
from dsforge.units import GBPS, GIB, TFLOP

Kind = Literal["model", "gpu", "link"]

FALLBACK_LINK = "pcie-4"

_VENDOR_WORDS = r"nvidia|amd|intel|habana|tesla|geforce|quadro|radeon|instinct|rtx|gpu"
_VARIANT = re.compile(r"[-_](instruct|chat|base|it|pt|hf|deduped)$", re.IGNORECASE)
_NOT_IN_SPEC = (
    "aliases",
    "variants",
    "beside",
    "params_exact",
    "params_non_embedding",
    "params_active",
    "source",
    "note",
)


class Named(NamedTuple):
    """The weights that a name stands for, and the row that has their sizes."""

    row: str
    hub_id: str | None  # none: a row without published weights
    own_row: bool  # the row is of these weights; otherwise its sizes are lent
    spelled: bool  # as the catalog spells it, case aside


class Domain(NamedTuple):
    """Nodes that NVLink joins."""

    nodes: int
    gpus_per_node: int


class Pretraining(NamedTuple):
    """Settings of a published run."""

    learning_rate: float
    weight_decay: float
    source: str


def model(name: str) -> ModelSpec:
    """The shape of a row by name, alias or hub id. SpecError where it is unknown."""
    return _model_spec(_models().row(name))


def find_model(name: str) -> str | None:
    """The row of a name, alias or hub id; none where it is unknown."""
    return _models().find(name)


def named_model(name: str) -> Named | None:
    """The weights that a name or hub id stands for; none where the catalog does not know it.

    A hub id is known only as it is written on the hub, case aside, and stays as it was given. A
    name may be spelled with other separators.
    """
    listed = _models()
    row, variant = listed.find(name), listed.variant(name)
    if row is not None:
        named = Named(row, model(row).hub_id, True, name.lower() in _spellings(row))
    elif variant is not None:
        named = Named(*variant, False, name.lower() == variant[1].rpartition("/")[2].lower())
    else:
        return None
    if "/" not in name:
        return named
    same = named.hub_id is not None and name.lower() == named.hub_id.lower()
    return named._replace(hub_id=name, spelled=True) if same else None


def beside(row: str) -> str | None:
    """What the weights of a row hold beside its language model; none for most."""
    found: str | None = _models().row(row).get("beside")
    return found


def lent_shape(hub_id: str) -> str | None:
    """The row whose sizes weights of that name usually have; none where none is alike.

    Fine-tuned weights, and copies of other organisations, have the shape of the model that they
    are called after. Quantised ones have not.
    """
    listed, name = _models(), hub_id.rpartition("/")[2]
    while True:
        found = listed.find(name) or (listed.variant(name) or (None,))[0]
        if found is not None or _VARIANT.search(name) is None:
            return found
        name = _VARIANT.sub("", name)


def nearest_models(name: str) -> list[str]:
    """Names of the models that are spelled most like an unknown one, best first."""
    return _models().nearest(name)


def gpu(name: str) -> GpuSpec:
    """An accelerator by short name or by the name that its driver reports."""
    return _gpu_spec(_gpus().row(name))


def link(name: str) -> LinkSpec:
    """A link between accelerators, or one network adapter."""
    return _link_spec(_links().row(name))


def default_intra_node(card: GpuSpec) -> LinkSpec:
    """The link that such cards usually have inside a node; PCIe 4 for a card of its own making."""
    known = _gpus().find(card.name)
    return link(_gpus().row(known)["intra_node"] if known else FALLBACK_LINK)


def nvlink_domain(card: GpuSpec) -> Domain | None:
    """The NVLink domain that such cards usually stand in; none where it ends at the node."""
    known = _gpus().find(card.name)
    row = _gpus().row(known) if known else {}
    return Domain(*row["nvlink_domain"]) if "nvlink_domain" in row else None


def shared_host_gib(card: GpuSpec) -> float | None:
    """Host RAM beside such a card where both share one memory, GiB; none where they do not."""
    known = _gpus().find(card.name)
    found: float | None = _gpus().row(known).get("host_gib") if known else None
    return found


def model_names() -> tuple[str, ...]:
    """Names of all models, in catalog order."""
    return tuple(_models().texts)


def gpu_names() -> tuple[str, ...]:
    """Names of all accelerators, in catalog order."""
    return tuple(_gpus().texts)


def link_names() -> tuple[str, ...]:
    """Names of all links, in catalog order."""
    return tuple(_links().texts)


def pretraining(active_parameters: int) -> Pretraining:
    """What published runs of about that many active parameters were trained with."""
    row = next(row for row in pretrainings() if active_parameters <= row["active_parameters"])
    return Pretraining(row["learning_rate"], row["weight_decay"], row["source"])


def rows(kind: Kind, words: str = "") -> list[dict[str, Any]]:
    """Parsed rows of a table, sources and notes included; with `words`, those named like that."""
    listed = {"model": _models, "gpu": _gpus, "link": _links}[kind]()
    return [parsed(text) for text in listed.texts_named_like(words)]


def _models() -> Table:
    return table("model")


def _gpus() -> Table:
    return table("gpu", _VENDOR_WORDS)


def _links() -> Table:
    return table("link")


def _spellings(row: str) -> set[str]:
    """Names of a row as the catalog writes them, in lower case."""
    return {name.lower() for name in names_of(_models().row(row))}


def _model_spec(row: Mapping[str, Any]) -> ModelSpec:
    return ModelSpec(**{key: value for key, value in row.items() if key not in _NOT_IN_SPEC})


def _gpu_spec(row: Mapping[str, Any]) -> GpuSpec:
    return GpuSpec(
        name=row["name"],
        memory_bytes=round(row["usable_gib"] * GIB),
        memory_bytes_per_s=row["memory_gb_per_s"] * GBPS,
        peak_flops={precision: rate * TFLOP for precision, rate in row["peak_tflops"].items()},
        matmul_efficiency=row["matmul_efficiency"],
        host_link_bytes_per_s=row["host_link_gb_per_s"] * GBPS,
        power_w=row.get("power_w"),
        source=row["source"],
    )


def _link_spec(row: Mapping[str, Any]) -> LinkSpec:
    return LinkSpec(
        name=row["name"],
        kind=row["kind"],
        bytes_per_s=row["gb_per_s"] * GBPS,
        latency_s=row["latency_us"] / 1e6,
        efficiency=row["efficiency"],
        source=row["source"],
    )
