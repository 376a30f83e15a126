"""Fields of the page's form: how links and the command line call them, and what they set.

A field is one flag of `dsforge plan`; the tests compare both lists. Values are text as a person
typed it, in a form or in the fragment of a link.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from dsforge.units import REAL, WHOLE, parse_count

Kind = Literal["text", "whole", "sized", "real", "switch"]

THOUSAND = 1024  # `8k` tokens are 8192
MOST_DIGITS = 40


class Field(NamedTuple):
    """One field of the form."""

    flag: str
    setting: tuple[str, ...]  # place of the value in a spec file; empty: a wish for the whole run
    kind: Kind = "text"


FIELDS: dict[str, Field] = {
    "model": Field("--model", ("model",)),
    "nodes": Field("--nodes", ("cluster", "nodes"), "whole"),
    "gpus_per_node": Field("--gpus-per-node", ("cluster", "gpus_per_node"), "whole"),
    "gpu": Field("--gpu", ("cluster", "gpu")),
    "intra_node": Field("--intra-node", ("cluster", "intra_node")),
    "inter_node": Field("--inter-node", ("cluster", "inter_node")),
    "nics_per_node": Field("--nics-per-node", ("cluster", "nics_per_node"), "whole"),
    "host_memory": Field("--host-memory", ("cluster", "host_memory_gib"), "real"),
    "nvme_path": Field("--nvme-path", ("cluster", "nvme", "path")),
    "gpu_hour_price": Field("--gpu-hour-price", ("cluster", "gpu_hour_price"), "real"),
    "seq_len": Field("--seq-len", ("workload", "sequence_length"), "sized"),
    "global_batch": Field("--global-batch", ("workload", "global_batch_size"), "sized"),
    "tokens": Field("--tokens", ("workload", "tokens")),
    "precision": Field("--precision", ("workload", "precision")),
    "optimizer": Field("--optimizer", ("workload", "optimizer")),
    "method": Field("--method", ("workload", "method")),
    "back_end": Field("--for", ("strategy", "back_end")),
    "zero_stage": Field("--zero-stage", ("strategy", "zero_stage"), "whole"),
    "micro_batch": Field("--micro-batch", ("strategy", "micro_batch_size"), "sized"),
    "tp": Field("--tp", ("strategy", "tensor_parallel_size"), "whole"),
    "pp": Field("--pp", ("strategy", "pipeline_parallel_size"), "whole"),
    "cp": Field("--cp", ("strategy", "context_parallel_size"), "whole"),
    "ep": Field("--ep", ("strategy", "expert_parallel_size"), "whole"),
    "offload_optimizer": Field("--offload-optimizer", ("strategy", "offload_optimizer")),
    "offload_params": Field("--offload-params", ("strategy", "offload_parameters")),
    "recompute": Field("--recompute", ("strategy", "recompute")),
    "objective": Field("--objective", ()),
    "deadline_days": Field("--deadline-days", (), "real"),
    "budget": Field("--budget", (), "real"),
    "prefer": Field("--prefer", (), "real"),
    "risk": Field("--risk", (), "switch"),
}


def value_of(field: Field, text: str) -> str | int | float | bool:
    """The value of a field as it was typed. Raises ValueError that says what it must be."""
    text = text.strip()
    shown = f"`{field.flag}` (={text[:MOST_DIGITS]!a})"
    if field.kind == "switch":
        if text in ("1", ""):
            return bool(text)
        raise ValueError(f"{shown} must be 1 or left out")
    if field.kind == "text":
        return text
    if field.kind == "real":
        if REAL.fullmatch(text):
            return float(text)
        raise ValueError(f"{shown} must be a finite number")
    if WHOLE.fullmatch(text):
        return int(text)
    if field.kind == "sized":
        return _sized(text, shown)
    raise ValueError(f"{shown} must be a whole number")


def _sized(text: str, shown: str) -> int:
    """A length or a batch as people write it: `8k` is 8192."""
    try:
        return parse_count(text[:MOST_DIGITS], thousand=THOUSAND)
    except ValueError:
        raise ValueError(f"{shown} must be a whole number such as 4096 or 8k") from None
