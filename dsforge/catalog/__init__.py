"""Models, accelerators and links by name, each row with its source.

Names are forgiving (case, separators, organisation, vendor words), because people copy them from
hub pages, from nvidia-smi and from each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from dsforge.catalog.index import Table, parsed, table
from dsforge.specs import GpuSpec, LinkSpec, ModelSpec
from dsforge.units import GBPS, GIB, TFLOP

Kind = Literal["model", "gpu", "link"]

FALLBACK_LINK = "pcie-4"

_VENDOR_WORDS = r"nvidia|amd|intel|habana|tesla|geforce|quadro|radeon|instinct|rtx|gpu"
_VARIANT = re.compile(r"[-_](instruct|chat|base|it|pt|hf|deduped)$", re.IGNORECASE)
_NOT_IN_SPEC = (
    "aliases",
    "params_exact",
    "params_non_embedding",
    "params_active",
    "source",
    "note",
)


def model(name: str) -> ModelSpec:
    """The shape of a model by catalog name, alias or hub id. SpecError where it is unknown."""
    return _model_spec(_models().row(_known(name)))


def find_model(name: str) -> str | None:
    """The catalog name of a model for a name, alias or hub id; none where it is unknown."""
    return _models().find(_known(name))


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


def model_names() -> tuple[str, ...]:
    """Names of all models, in catalog order."""
    return tuple(_models().texts)


def gpu_names() -> tuple[str, ...]:
    """Names of all accelerators, in catalog order."""
    return tuple(_gpus().texts)


def link_names() -> tuple[str, ...]:
    """Names of all links, in catalog order."""
    return tuple(_links().texts)


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


def _known(name: str) -> str:
    """The name, or the name without `-instruct`, `-chat` and the like: they share the shape."""
    base = name
    while _models().find(base) is None and _VARIANT.search(base):
        base = _VARIANT.sub("", base)
    return base if _models().find(base) else name


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
