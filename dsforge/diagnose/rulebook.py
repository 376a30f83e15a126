"""The rules of `rules/*.yaml`, of which only those asked for are parsed.

Parsing all of them as YAML would take longer than reading a log. So each entry begins with two
fields, `id` and `needles`, that a pattern finds and that are JSON as well: they are the index, and
an entry is parsed when one of its needles occurs. A test holds the files to the form.

The order counts, specific rules first: of two that match the same line the earlier one answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from dsforge.diagnose.rule import MatchedLine, Rule, rule_from

FOLDER = Path(__file__).parent / "rules"
FILES = (
    "first_steps run_parts distributed_runs node_services platforms fabric mpi parallel "
    "megatron strategies engine containers slurm orchestrator memory installs build device "
    "accelerators sharding config collective remote cluster tuner_checks tuning_scripts "
    "launcher finetuning processors numerics training trainer usage packages data input "
    "checkpoint storage environment libraries checks job values transformers_messages "
    "adapter_messages data_messages engine_messages torch_messages host_messages "
    "program_messages site frameworks rollouts engines wrapped_errors families unknown"
).split()
WITH_PLAN = "slow_network"  # a file whose rules say something beside a plan only
IN_WORDS = "in_words"  # and one for sentences that tell a failure, which are no logs
_ENTRY = re.compile(r"^- id: (?P<id>[\w-]+)\n  needles: (?=\[)", re.MULTILINE)
DIGITS = b"0123456789"
WORD = re.compile(rb"[a-z_]+")  # of a needle, or of a text in lower case without its digits
_JSON = json.JSONDecoder()


class Entry(NamedTuple):
    """A rule that is not parsed yet."""

    needles: tuple[str, ...]
    text: str  # YAML: a list with one mapping


class Rulebook(Mapping[str, Rule]):
    """Rules by id, in their order; parsed on first use."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self.entries = entries
        self._order = {name: number for number, name in enumerate(entries)}
        self._parsed: dict[str, Rule] = {}

    def __getitem__(self, name: str) -> Rule:
        if name not in self._parsed:
            rule = _parsed(self.entries[name].text)
            shared = self[rule.cases_of].cases if rule.cases_of else ()
            self._parsed[name] = rule._replace(cases=rule.cases + shared)
        return self._parsed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def by_needle(self) -> dict[bytes, tuple[str, ...]]:
        """The rules that look for each needle."""
        found: dict[bytes, list[str]] = {}
        for name, entry in self.entries.items():
            for needle in entry.needles:
                found.setdefault(needle.encode(), []).append(name)
        return {needle: tuple(names) for needle, names in found.items()}

    def needles_in(self, text: bytes) -> list[bytes]:
        """The needles that a text without digits and capitals may have, in the order of the rules.

        Where a needle occurs, so does a word within it, with its ends: of the thousands of needles
        only those of the words of a text have to be searched for.
        """
        words = {b"", *WORD.findall(text)} & self._by_word.keys()
        sought = (needle for word in words for needle in self._by_word[word])
        found = [needle for needle in sought if self.without_digits[needle] in text]
        return sorted(found, key=self._needle_order.__getitem__)

    @cached_property
    def _needle_order(self) -> dict[bytes, int]:
        return {needle: number for number, needle in enumerate(self.by_needle)}

    @cached_property
    def _by_word(self) -> dict[bytes, tuple[bytes, ...]]:
        """The needles that have a whole word within, by the longest; by no word, the others."""
        found: dict[bytes, list[bytes]] = {b"": []}
        for needle, text in self.without_digits.items():
            inner = (m for m in WORD.finditer(text) if m.start() > 0 and m.end() < len(text))
            word = max((m.group() for m in inner), key=len, default=b"")
            found.setdefault(word, []).append(needle)
        return {word: tuple(needles) for word, needles in found.items()}

    @cached_property
    def without_digits(self) -> dict[bytes, bytes]:
        """Each needle as it stands in a text whose digits are taken out."""
        return {needle: needle.translate(None, DIGITS) for needle in self.by_needle}

    def place(self, name: str) -> int:
        """The place of a rule in the order."""
        return self._order[name]


@cache
def rulebook(*, with_plan: bool = False, in_words: bool = False) -> Rulebook:
    """All rules; with a plan those too that hold a log against it, in words those for sentences."""
    files = [*FILES, *([WITH_PLAN] if with_plan else []), *([IN_WORDS] if in_words else [])]
    entries: dict[str, Entry] = {}
    for file in files:
        entries.update(indexed((FOLDER / f"{file}.yaml").read_text(encoding="utf-8")))
    return Rulebook(entries)


def is_in_words(hit: MatchedLine) -> bool:
    """Whether a hit is of a rule for sentences."""
    return hit.rule.id not in rulebook()


def indexed(text: str) -> dict[str, Entry]:
    """The entries of a file by id, found without parsing it."""
    found = list(_ENTRY.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return {
        match["id"]: Entry(tuple(_JSON.raw_decode(text, match.end())[0]), text[match.start() : end])
        for match, end in zip(found, ends, strict=True)
    }


def _parsed(text: str) -> Rule:
    """The rule of one entry. Plain values only: the safe loader makes no objects."""
    import yaml  # 30 ms, which a log without a fault need not pay

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    (entry,) = yaml.load(text, Loader=loader)  # noqa: S506 (both are safe loaders)
    return rule_from(entry)
