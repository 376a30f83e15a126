"""Tables of rows, of which only the rows asked for are parsed.

Parsing all of models.yaml as YAML takes 100 ms, a fifth of what `dsforge gen` may take, and the
parser's import another 30. So each row is written as JSON, which is YAML too, and begins with one
line that holds all its names: those lines are the index, and only wanted rows are parsed whole. A
test holds the files to the form.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dsforge.errors import Problem, SpecError

NEAREST = 5

OWN_CARD = (
    "describe it in a cluster file: `gpu: {name: mine, memory_gib: 48, "
    "memory_bandwidth_gb_s: 900, peak_tflops: {bf16: 180}}` and `intra_node: pcie-4`"
)
OWN: Mapping[str, str] = {"gpu": f", or {OWN_CARD}"}
# Accelerators that people ask for and that no plan can be made for: names, why, the way out.
FOREIGN = (
    (
        re.compile(r"\btpu|^v\d+[ep]?-\d+$|trillium", re.IGNORECASE),
        "DeepSpeed and Megatron-LM do not run on TPUs",
        "plan for GPUs, or use JAX and MaxText",
    ),
    (
        re.compile(r"trainium|inferentia|\btrn\d|\binf\d", re.IGNORECASE),
        "DeepSpeed and Megatron-LM do not run on AWS Neuron devices as they are",
        "plan for GPUs, or use NeuronX Distributed",
    ),
    (
        re.compile(r"ascend|\bnpu\b|^910[abc]?\d?$", re.IGNORECASE),
        "no sheet with the dense rates of Ascend cards is public, and the files are for CUDA",
        f"DeepSpeed runs there through torch_npu; for the figures {OWN_CARD}",
    ),
)

_ROW = "\n- "
_DECODER = json.JSONDecoder()
_TOKENS = re.compile(r"\d+(?:\.\d+)*|[^\W\d_]+")  # numbers with their dots, and words
_FRAMED = re.compile(
    r"[^\W_](?:.*[^\W_]|.*\))?", re.DOTALL
)  # begins and ends with a letter or digit


class Table(NamedTuple):
    """One YAML file: text of each row by name, and the name that each key stands for."""

    kind: str
    texts: Mapping[str, str]
    names: Mapping[str, str]
    words: re.Pattern[str]
    variants: Mapping[str, tuple[str, str]] = MappingProxyType({})

    def key(self, name: str) -> str:
        """The words and numbers of a name, without case and the words that say nothing.

        Numbers never merge: `llama2-7b` is `llama-2-7b`, but `qwen2.57b` is not `qwen2.5-7b`.
        """
        short = " ".join(_TOKENS.findall(name.lower()))
        return " ".join(self.words.sub("", short).split()) or short

    def find(self, name: str) -> str | None:
        """The row's name for a name, alias or hub id in any spelling; none where unknown."""
        if _FRAMED.fullmatch(name) is None:  # `-7b` is a typing error, not 7b
            return None
        return self.names.get(self.key(name))

    def variant(self, name: str) -> tuple[str, str] | None:
        """Row and hub id of other weights with the shape of a row; none where unknown."""
        return self.variants.get(self.key(name)) if _FRAMED.fullmatch(name) else None

    def row(self, name: str) -> dict[str, Any]:
        """The parsed row. Raises SpecError with the nearest names where there is none."""
        found = self.find(name)
        if found is None:
            raise SpecError((self._unknown(name),))
        return parsed(self.texts[found])

    def texts_named_like(self, words: str) -> list[str]:
        """The text of every row with all the words in its names; if none, in any spelling."""
        heads = [(text.partition("\n")[0].lower(), text) for text in self.texts.values()]
        exact = [text for head, text in heads if all(w in head for w in words.lower().split())]
        keys = [self.key(word) for word in words.split()]
        return exact or [text for head, text in heads if all(key in self.key(head) for key in keys)]

    def nearest(self, name: str) -> list[str]:
        """Names of the rows that are spelled most like the name, best first."""
        key = self.key(name.rpartition("/")[2])
        close = difflib.get_close_matches(key, self.names, n=3 * NEAREST, cutoff=0.5)
        return list(dict.fromkeys(self.names[match] for match in close))[:NEAREST]

    def _unknown(self, name: str) -> Problem:
        for pattern, message, hint in FOREIGN if self.kind == "gpu" else ():
            if pattern.search(name):
                said = f"gpu {name[:80]!r} cannot be planned for: {message}"
                return Problem(rule="catalog-gpu-foreign", message=said, hint=hint)
        nearest = self.nearest(name)
        hint = f"nearest: {', '.join(nearest)}; " if nearest else ""
        return Problem(
            rule=f"catalog-{self.kind}",
            message=f"{self.kind} {name[:80]!r} is not in the catalog",
            hint=f"{hint}`dsforge catalog {self.kind}s` lists all{OWN.get(self.kind, '')}",
        )


def parsed(text: str) -> dict[str, Any]:
    """The row at the beginning of a piece of a table; comments may follow it."""
    row: dict[str, Any] = _DECODER.raw_decode(text)[0]
    return row


@cache
def pretrainings() -> tuple[dict[str, Any], ...]:
    """The rows of `pretrainings.yaml`, smallest models first; the last holds for all."""
    text = Path(__file__).with_name("pretrainings.yaml").read_text(encoding="utf-8")
    return tuple(map(parsed, text.split(_ROW)[1:]))


@cache
def table(kind: str, words: str = "") -> Table:
    """The table `<kind>s.yaml` beside this module; `words` is a pattern of words to ignore."""
    text = Path(__file__).with_name(f"{kind}s.yaml").read_text(encoding="utf-8")
    empty = Table(kind, {}, {}, re.compile(words or r"$^"))
    texts: dict[str, str] = {}
    names: dict[str, str] = {}
    variants: dict[str, tuple[str, str]] = {}
    for row in text.split(_ROW)[1:]:
        head = json.loads(row.partition("\n")[0].removesuffix(",") + "}")
        name = head["name"]
        texts[name] = row
        for other in names_of(head):
            names.setdefault(empty.key(other), name)
        for hub_id in head.get("variants", ()):
            for other in (hub_id, *_short(hub_id)):
                variants.setdefault(empty.key(other), (name, hub_id))
    return empty._replace(
        texts=MappingProxyType(texts),
        names=MappingProxyType(names),
        variants=MappingProxyType(variants),
    )


def names_of(head: Mapping[str, Any]) -> list[str]:
    """Every name of a row: its own, aliases, and its hub id with and without the organisation."""
    hub_id = head.get("hub_id")
    return [
        head["name"],
        *head["aliases"],
        *([hub_id, hub_id.rpartition("/")[2]] if hub_id else ()),
    ]


def _short(hub_id: str) -> tuple[str, str]:
    """The name of a hub id as people write it: without organisation, `Meta-` and `-hf`."""
    name = hub_id.rpartition("/")[2]
    return name, name.removeprefix("Meta-").removesuffix("-hf")
