"""Write docs/ds-config-keys.md: what `dsforge estimate --ds-config` does with every key."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

from dsforge.ds_config.keys import TABLE, Treatment
from dsforge.lint.schemas.releases import frozen

TARGET = Path(__file__).resolve().parents[1] / "docs/ds-config-keys.md"
KINDS = {
    "priced": "Priced: changes memory or time, or is refused by name",
    "irrelevant": "Irrelevant to memory and time",
    "refused": "Refused when enabled: it changes memory or time and is not part of the estimate",
}
INTRODUCTION = """\
# Keys of a DeepSpeed config

Made by `python scripts/ds_config_keys.py`. What `dsforge estimate --ds-config` does with each key
of DeepSpeed {first} to {last}; a name that ends in `.*` stands for all keys below it. Other keys
are refused where DeepSpeed refuses them, else named as ignored.
"""


def page() -> str:
    """The page, in Markdown."""
    names = frozen().names
    lines = [INTRODUCTION.format(first=names[0], last=names[-1])]
    for kind, title in KINDS.items():
        rows = [(path, row) for path, row in TABLE.items() if row.kind == kind]
        lines += [f"## {title}", "", "| Keys | Why |", "|---|---|"]
        for row, group in groupby(rows, key=lambda pair: pair[1]):
            keys = ", ".join(f"`{path}`" for path, _ in group)
            lines.append(f"| {keys} | {why(row)} |")
        lines.append("")
    return "\n".join(lines)


def why(row: Treatment) -> str:
    """The reason, and when a refused key is let through."""
    off = "" if row.off is False else f"; `{json.dumps(row.off)}` is accepted"
    return f"{row.reason}{off}{f'; read only with {row.when}' if row.when else ''}"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
