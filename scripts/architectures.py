"""Refresh the defaults in `dsforge/huggingface/architectures.json` from transformers.

An entry names its fields, keys and facts by hand; every default that a config class has is taken
from that class. To add an architecture: write its entry with `null` for each default, run this, and
let `tests/conformance/test_every_architecture.py` judge the facts. `--check` only compares.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[1] / "dsforge" / "huggingface" / "architectures.json"
ROTARY = ("rope_theta", "partial_rotary_factor")
WIDTH = 100  # of a line of the file
MISSING = object()
COMPUTED = ("norm_epsilon", "dropout_defaults")  # fields that an entry may lack
EPSILON, EPSILON_KEY = 1e-5, "rms_norm_eps"  # where an entry has none


def refreshed(data: dict[str, Any]) -> dict[str, Any]:
    """The data with the defaults of the installed transformers."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import CONFIG_MAPPING, __version__

    rows = dict(sorted(data["architectures"].items()))
    for name, row in rows.items():
        if name in CONFIG_MAPPING:
            rows[name] = _row(row, CONFIG_MAPPING[name]())
    return data | {"read_in": f"transformers {__version__}", "architectures": rows}


def _row(row: dict[str, Any], config: Any) -> dict[str, Any]:
    """One entry with the defaults of its class."""
    from dsforge.huggingface.architecture import DROPOUT_KEYS, LLAMA_KEYS, MLA_KEYS

    keys = {**LLAMA_KEYS, **row.get("keys", {})}
    found = dict(row)
    for part, named in (
        ("defaults", keys),
        ("moe_defaults", row.get("moe_keys", {})),
        ("mla_defaults", MLA_KEYS),
        ("recurrent_defaults", row.get("recurrent_keys", {})),
    ):
        if part in row:
            found[part] = {
                field: _default(config, field, named.get(field, ()), value)
                for field, value in row[part].items()
            }
    dropped = {
        place: _default(config, place, named, 0.0)
        for place, named in row.get("dropout_keys", DROPOUT_KEYS).items()
    }
    found["dropout_defaults"] = {place: rate for place, rate in dropped.items() if rate}
    if "ffn_factor" in row:  # the class computes it from its own hidden size
        found["defaults"]["ffn_hidden_size"] = None
    if "switches" in row:
        found["switches"] = [
            {**switch, "default": _value(config, switch["key"], switch["default"])}
            for switch in row["switches"]
        ]
    key = row.get("norm_epsilon_key", EPSILON_KEY)
    if key is not None:
        found["norm_epsilon"] = _value(config, key, row.get("norm_epsilon", EPSILON))
        if found["norm_epsilon"] == EPSILON:
            del found["norm_epsilon"]
    if not found["dropout_defaults"]:
        del found["dropout_defaults"]
    return {name: found[name] for name in (*row, *COMPUTED) if name in found}


def _default(config: Any, field: str, keys: tuple[str, ...], known: Any) -> Any:
    """The default of a field: of the first key that the class has, else what is known."""
    if field in ROTARY:
        rotary = getattr(config, "rope_parameters", None) or {}
        rotary = rotary.get("full_attention", rotary)
        return rotary.get(field, known)
    found = [value for key in keys if (value := _value(config, key, MISSING)) is not MISSING]
    return found[0] if found else known


def _value(config: Any, key: str, known: Any) -> Any:
    """An attribute of a config; a dot leads into a nested one."""
    for part in key.split("."):
        inner = config.get(part, MISSING) if isinstance(config, Mapping) else MISSING
        config = getattr(config, part, MISSING) if inner is MISSING else inner
        if config is MISSING:
            return known
    return config


def text_of(data: dict[str, Any]) -> str:
    """The file: a line for each field of an entry, lists of names wrapped."""
    rows = [
        f"    {json.dumps(name)}: {{\n" + ",\n".join(_fields(row)) + "\n    }"
        for name, row in data["architectures"].items()
    ]
    refused = [
        f"    {json.dumps(why)}: [\n" + _wrapped(names) + "\n    ]"
        for why, names in data["refused"].items()
    ]
    parts = [
        f'  "read_in": {json.dumps(data["read_in"])}',
        '  "architectures": {\n' + ",\n".join(rows) + "\n  }",
        f'  "same_as": {json.dumps(data["same_as"])}',
        f'  "text_types": {json.dumps(data["text_types"])}',
        '  "refused": {\n' + ",\n".join(refused) + "\n  }",
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _fields(row: dict[str, Any]) -> list[str]:
    return [f"      {json.dumps(name)}: {json.dumps(value)}" for name, value in row.items()]


def _wrapped(names: list[str]) -> str:
    """Names in lines of the usual width."""
    lines = ["     "]
    for name in names:
        word = f" {json.dumps(name)},"
        if len(lines[-1]) + len(word) > WIDTH:
            lines.append("     ")
        lines[-1] += word
    return "\n".join(lines).removesuffix(",")


if __name__ == "__main__":
    now = FILE.read_text(encoding="utf-8")
    text = text_of(refreshed(json.loads(now)))
    if "--check" in sys.argv[1:]:
        sys.exit(0 if text == now else f"{FILE} differs from the installed transformers")
    FILE.write_text(text, encoding="utf-8")
