"""Which known message a line is a part of, where no pattern reads it.

People paste the half of a message, without its begin, cut off by a terminal, or in the words of
another release. Such a line has runs of words in common with an example of the rule that knows the
message, and with those of no other rule. Only what stands behind `hits` in the rule files is
compared, and only where nothing better is known: reading all of it takes a quarter of a second.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from dsforge.diagnose.failures_in_words import tells_no_failure
from dsforge.diagnose.log_line import cleaned
from dsforge.diagnose.log_scanner import SOURCE_INDENT, Scan
from dsforge.diagnose.ranking import Cause, Evidence
from dsforge.diagnose.rule import ERRORS, MatchedLine, Rule
from dsforge.diagnose.rulebook import rulebook
from dsforge.diagnose.templates import filled_fix, without_values

RUN = 3  # words that stand together
LEAST_RUNS = 3  # of a line that an example has, too
LEAST_SHARE, LEAST_LEAD = 0.7, 0.3  # of the line's runs; and above the next rule's
WHOLE_RUNS = 2  # suffice where an example has all of them
MOST_WORDS = 60  # of a line that are compared
SURE = 0.85  # factor on a rule's confidence where the whole line is in an example; else in part
NOBODY = ""
MESSAGES = ("cause", "stall")  # kinds of rules that read a message; a death is seen by its ending
PART = "a part of this message is here"
_WORD = re.compile(r"[a-z_]{2,40}")
_NAME = re.compile(r"\w*(?:error|exception)|torch|warning|info|line|in|file|rank|raise")  # of any
_EXAMPLE = re.compile(r"^ {4,6}- ", re.MULTILINE)
_HITS = re.compile(r"^ +hits:\n((?: {4,}[-| ].*\n|\n)+)", re.MULTILINE)


class Nearest(NamedTuple):
    """The rule with the nearest example, and the share of a line's words that stand in it."""

    rule: Rule
    share: float

    @property
    def confidence(self) -> float:
        """How sure the rule is of a part of its message."""
        return self.rule.confidence * (SURE if self.share == 1 else SURE * SURE)


class _Place(NamedTuple):
    """A line that may be a part of a message."""

    file: str
    line: int
    text: str


def partly_known(scans: Sequence[Scan], found: Sequence[Cause]) -> tuple[Cause, ...]:
    """The rule whose message a line is a part of, as the answer; `found` is what else is known."""
    near = [(place, rule) for place in _places(scans, found) if (rule := nearest(place.text))]
    if not near:
        return ()
    place, one = max(near, key=lambda pair: pair[1].confidence)
    return (_cause(place, one),)


def _places(scans: Sequence[Scan], found: Sequence[Cause]) -> Iterator[_Place]:
    """The errors that no rule knows, and the lines of a short text that say what failed."""
    hits = [hit for cause in found for hit in cause.hits]
    unknown = [hit for hit in hits if hit.rule.kind in ERRORS and hit.form != "notice"]
    yield from (_Place(hit.file, hit.line, hit.text) for hit in unknown)
    read = {(hit.file, hit.line) for scan in scans for hit in scan.hits}
    for scan in scans:
        if found or not tells_no_failure(scan.text):
            for number, raw in enumerate(scan.text.encode().split(b"\n"), start=1):
                said = cleaned(raw)
                code = found and (said.form == "source" or raw.startswith(SOURCE_INDENT.encode()))
                if said.form != "notice" and not code and (scan.file, number) not in read:
                    yield _Place(scan.file, number, said.text.strip())


def _cause(place: _Place, near: Nearest) -> Cause:
    """The answer of a rule that has read nothing of the line: names stand for its values."""
    rule = near.rule
    hit = MatchedLine(rule, place.file, place.line, None, "", place.text, {}, "", "")
    return Cause(
        rule=rule.id,
        confidence=round(near.confidence, 2),
        message=f"{without_values(rule.message)} ({PART})",
        why=without_values(rule.cause),
        evidence=(Evidence(place.file, place.line, place.text),),
        fix=filled_fix(rule.fix, {}) or without_values(rule.fix),
        hits=(hit,),
    )


def nearest(line: str) -> Nearest | None:
    """The rule whose example a line is a part of; none where two are, or only few words."""
    runs = list(_runs(line))
    index = _index()
    shared = Counter(name for run in runs for name in index.get(run, ()))
    (name, count), (_, next_count) = [*shared.most_common(2), ("", 0), ("", 0)][:2]
    share, lead = (number / max(1, len(runs)) for number in (count, count - next_count))
    enough = count >= LEAST_RUNS or (count >= WHOLE_RUNS and share == 1)
    if name == NOBODY or not enough or share < LEAST_SHARE or lead < LEAST_LEAD:
        return None
    rule = rulebook()[name]
    tells = rule.kind in MESSAGES and not rule.context and not rule.errors_only
    return Nearest(rule, share) if tells else None


def _runs(line: str) -> Iterable[tuple[str, ...]]:
    """The runs of words of a line, without numbers, quotes and names of exceptions."""
    found = (word for word in _WORD.findall(line.lower()) if not _NAME.fullmatch(word))
    words = [word for word, _ in zip(found, range(MOST_WORDS), strict=False)]
    return zip(*(words[start:] for start in range(RUN)), strict=False)


@cache
def _index() -> Mapping[tuple[str, ...], frozenset[str]]:
    """The rules by the runs of words of their examples, whose last line is the message.

    Runs of the lines before it are no rule's, and speak against the rule that has them, too. The
    files are not parsed.
    """
    found: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for name, entry in rulebook().entries.items():
        for hits in _HITS.findall(entry.text):
            for example in _EXAMPLE.split(hits):
                *before, last = example.rstrip().rsplit("\n", 1)
                for owner, text in ((name, last), *((NOBODY, line) for line in before)):
                    for run in _runs(text):
                        found[run].add(owner)
    return {run: frozenset(names) for run, names in found.items()}
