"""With which releases names, arguments and attributes of packages came and went.

`names/PACKAGE.json` is written by scripts/release_names.py from the sources of the releases that it
lists under `read`; releases.py has what was looked up by hand.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

FOLDER = Path(__file__).parent / "names"
PACKAGES = ("transformers", "trl", "peft", "accelerate", "deepspeed", "datasets")
Field = Literal["names", "arguments", "attributes"]
# Classes that hold the attributes of a whole family, by the end of a name.
FAMILIES = {
    "Model": "PreTrainedModel",
    "ForCausalLM": "PreTrainedModel",
    "ForConditionalGeneration": "PreTrainedModel",
    "ForSequenceClassification": "PreTrainedModel",
    "ForTokenClassification": "PreTrainedModel",
    "LMHeadModel": "PreTrainedModel",
    "Tokenizer": "PreTrainedTokenizerBase",
    "TokenizerFast": "PreTrainedTokenizerBase",
    "Processor": "ProcessorMixin",
    "Config": "PretrainedConfig",
}
_JOINT = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Life(NamedTuple):
    """The release that brought a name, and the first that lacks it; empty where not read."""

    package: str
    came: str
    went: str


class _Table(NamedTuple):
    came: dict[tuple[str, str], str]
    went: dict[tuple[str, str], str]
    owners: frozenset[str]


@cache
def releases_read(package: str) -> tuple[str, str]:
    """The first and the last release that a package's table was read from."""
    read = json.loads((FOLDER / f"{package}.json").read_text(encoding="utf-8"))["read"]
    return read[0], read[-1]


@cache
def _always(package: str) -> frozenset[str]:
    """The names of a package itself that all releases read have."""
    text = (FOLDER / f"{package}.json").read_text(encoding="utf-8")
    return frozenset(json.loads(text)["always"].split())


EXPORTED = (  # ends of the names that transformers exports for each family of models
    "Config",
    "FeatureExtractor",
    "ForCausalLM",
    "ForConditionalGeneration",
    "ForMaskedLM",
    "ForQuestionAnswering",
    "ForSequenceClassification",
    "ForTokenClassification",
    "Model",
    "Processor",
    "Tokenizer",
    "TokenizerFast",
)


def is_constant(package: str, name: str) -> bool:
    """Whether every release of a package that was read has a name."""
    return package in PACKAGES and name in _always(package)


@cache
def _table(package: str, field: Field) -> _Table:
    """What came and what went, by owner and name."""
    changes = json.loads((FOLDER / f"{package}.json").read_text(encoding="utf-8"))[field]
    came, went = (_by_name(changes[way]) for way in ("came", "went"))
    return _Table(came, went, frozenset(owner for owner, _ in (*came, *went)))


def _by_name(releases: dict[str, str]) -> dict[tuple[str, str], str]:
    """`owner:name name;owner:name` by release, turned over; the first release that says a name."""
    found: dict[tuple[str, str], str] = {}
    for release, said in releases.items():
        for part in said.split(";"):
            owner, _, names = part.partition(":")
            found.update({(owner, name): release for name in names.split()})
    return found


def lives(field: Field, owner: str, name: str) -> list[Life]:
    """The packages whose `owner` got or lost a name, and when."""
    found = []
    for package in PACKAGES:
        table = _table(package, field)
        life = Life(package, table.came.get((owner, name), ""), table.went.get((owner, name), ""))
        if life.came or life.went:
            found.append(life)
    return found


def has_owner(field: Field, owner: str) -> str:
    """The package that is known to have a class or function; empty where none is."""
    return next((p for p in PACKAGES if owner in _table(p, field).owners), "")


def family_of(owner: str) -> str:
    """The base class of transformers that a class is one of, by the end of its name."""
    ends = (base for end, base in FAMILIES.items() if owner.endswith(end))
    return next(ends, "")


def export(package: str, module: str, name: str) -> Life:
    """When a module of a package (empty: the package itself) got and lost a name.

    A class of a family of models came and went with the configuration of its family.
    """
    if package not in PACKAGES:
        return Life(package, "", "")
    table = _table(package, "names")
    life = Life(package, table.came.get((module, name), ""), table.went.get((module, name), ""))
    if life.came or life.went or module or not name.endswith(EXPORTED):
        return life
    ends = sorted((joint.start() for joint in _JOINT.finditer(name)), reverse=True)
    families = (("", f"{name[:end]}Config") for end in ends)
    config = next((key for key in families if key in table.came), None)
    if config is None:
        return Life(package, "", "")
    return Life(package, table.came[config], table.went.get(config, ""))


def architecture(kind: str) -> str:
    """The release of transformers from which on it knows a model type; empty where not read."""
    config = f"{re.sub('[_-]', '', kind)}config".lower()
    came = _table("transformers", "names").came
    return next((r for (o, n), r in came.items() if not o and n.lower() == config), "")


def spelling(package: str, name: str) -> str:
    """A name of a package that differs in its capitals only; empty where there is none."""
    if package not in PACKAGES:
        return ""
    table = _table(package, "names")
    families = {one.removesuffix("Config") for _, one in table.came if one.endswith("Config")}
    family = next((f for f in families if name.lower().startswith(f.lower()) and f), "")
    known = {*_always(package), *(one for _, one in table.came), family + name[len(family) :]}
    return next((one for one in known if one != name and one.lower() == name.lower()), "")


def other_owners(field: Field, name: str) -> list[str]:
    """Who else has had a name, as `package owner`."""
    return [
        f"{package} {owner}"
        for package in PACKAGES
        for owner, one in {**_table(package, field).came, **_table(package, field).went}
        if one == name
    ]
