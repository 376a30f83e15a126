"""How good diagnosis is on failures of public threads.

`python tests/diagnose/scoring.py` writes `docs/diagnosis.md`. The failures come in batches, each
written down at once and answered before any rule was changed for it (`first_answers`); those with
`rules: later` before there was a rule that knows them. `healthy.yaml` are logs of runs that ended
well and texts that are no logs, `harmless.yaml` lines of healthy programs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dsforge.diagnose import diagnose_text
from dsforge.diagnose.report import CONFIDENT
from dsforge.diagnose.rulebook import rulebook

HERE = Path(__file__).resolve().parent
THREADS = HERE / "threads"
PAGE = HERE.parents[1] / "docs" / "diagnosis.md"
BATCHES = ("before", "after", "third", "fourth", "fifth", "sixth")
UNKNOWN = "unknown"  # the label of a failure that no rule is meant to know
PAGE_TEXT = """\
# Diagnosis on failures that people reported

Made by `python tests/diagnose/scoring.py` from `tests/diagnose/threads/`: excerpts of error text
from {failures} public threads, labelled by hand with {causes} causes, {before} of them before
a rule for them existed. A test fails if a figure gets worse.

## On new failures

Each batch was written down and answered before any rule was changed for it. "Unknown" says that no
rule knows the error, and where to look; "wrong" names another cause, with a confidence of
{confident} or more. "Sure" are the answers that had a confidence of {sure} or more, and how many of
them were right.

| batch | written | failures | right | unknown | wrong | sure |
|---|---|---|---|---|---|---|
{batches}

## On all failures

Rules were written for these failures since, so these figures show that the rules are consistent,
not how they perform on new ones.

| | |
|---|---|
| rules | {rules} |
| first cause right | {all_right} |
| confidence {confident} or more, and wrong | {known_wrong} of {failures} |
| no answer at all to an error | {silent} of {failures} |
| false alarms on healthy and unrelated texts | {alarms} of {healthy} |
| harmless lines that must not change an answer, tried before and after each failure | {harmless} |

A rule is an entry of `dsforge/diagnose/rules/*.yaml`: words that find a line, patterns that parse
it, message, cause, fix, sources, and excerpts that it must match (`hits`) or must not (`misses`).
A new rule is one entry with its excerpt; the tests run it on the excerpts of all other rules.

## Confidence

A rule may have a confidence of {sure} or more only where it has answered a failure rightly, of a
thread or a provoked one, and was never wrong on a new batch. This came with `sixth`; of the answers
to `fifth`, 16 would have been sure by that, and all 16 were right (22 of 24 before). With the 6 of
`sixth` that are 22 of 22: too few to say 97 %.

| answers with a confidence of | right |
|---|---|
{classes}

## Causes

Recall: right of the failures with that cause. Precision: right of the answers that name it.

| cause | recall | precision |
|---|---|---|
{table}
"""
FIRST_ANSWERS = ("right", "unknown", "wrong")
SURE = 0.9  # confidence of answers that may be acted on without a look
CLASSES = ((0.9, 1.0), (0.7, 0.9), (0.5, 0.7), (0.0, 0.5))  # of confidence


class Failure(NamedTuple):
    """One failure: its text, the rule that should answer, and where it was reported."""

    source: str
    cause: str
    text: str
    rules: str  # later: written down before a rule knew it; earlier: after
    wrapped: bool = False  # one message over several lines, which nothing may stand between


class Answer(NamedTuple):
    """What diagnosis said of a failure."""

    failure: Failure
    rule: str
    confidence: float

    @property
    def known(self) -> bool:
        """Whether a cause was named with confidence."""
        return self.confidence >= CONFIDENT

    @property
    def right(self) -> bool:
        """The right cause, or an honest "unknown" where no rule is meant to know it."""
        if self.failure.cause == UNKNOWN:
            return bool(self.rule) and not self.known
        return self.rule == self.failure.cause


@cache
def document(name: str) -> Any:
    """One file of the corpus."""
    return yaml.safe_load((THREADS / f"{name}.yaml").read_text(encoding="utf-8"))


def failures() -> list[Failure]:
    """All failures of the corpus."""
    return [
        Failure(
            row["source"],
            row["cause"],
            row["text"],
            row.get("rules", document(name)["rules"]),
            row.get("wrapped", False),
        )
        for name in BATCHES
        for row in document(name)["failures"]
    ]


def answered(failure: Failure) -> Answer:
    """What diagnosis says first of a failure."""
    causes = diagnose_text(failure.text)
    if not causes:
        return Answer(failure, "", 0.0)
    return Answer(failure, causes[0].rule, causes[0].confidence)


def share(answers: Iterable[bool]) -> str:
    """`right of all (percent)`."""
    values = list(answers)
    right = sum(values)
    return f"{right} of {len(values)} ({100 * right / len(values):.0f} %)" if values else "none"


def page() -> str:
    """The page of figures."""
    answers = [answered(failure) for failure in failures()]
    causes = sorted({answer.failure.cause for answer in answers})
    healthy = [bool(diagnose_text(row["text"])) for row in document("healthy")["texts"]]
    return PAGE_TEXT.format(
        failures=len(answers),
        causes=len(causes),
        before=sum(answer.failure.rules == "later" for answer in answers),
        rules=len(rulebook()),
        all_right=share(answer.right for answer in answers),
        confident=CONFIDENT,
        sure=SURE,
        known_wrong=sum(answer.known and not answer.right for answer in answers),
        silent=sum(not answer.rule for answer in answers),
        alarms=sum(healthy),
        healthy=len(healthy),
        harmless=len(document("harmless")["lines"]),
        classes="\n".join(_class(low, high, answers) for low, high in CLASSES),
        table="\n".join(_row(cause, answers) for cause in causes),
        batches="\n".join(_batch(name) for name in BATCHES if "first_answers" in document(name)),
    )


def _batch(name: str) -> str:
    """One line of the table of first answers."""
    first, written = document(name)["first_answers"], document(name)["written"]
    shares = [f"{first[key]} ({100 * first[key] / first['of']:.0f} %)" for key in FIRST_ANSWERS]
    sure = document(name).get("first_sure")
    shares.append(f"{sure['right']} of {sure['of']}" if sure else "not recorded")
    return " | ".join([f"| `{name}`", str(written), str(first["of"]), *shares]) + " |"


def proven() -> set[str]:
    """The rules that were right on a failure, less those that were wrong on a new batch."""
    cases = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))
    right = {answer.rule for answer in map(answered, failures()) if answer.right}
    provoked = {case["rule"] for case in cases if case["origin"] == "provoked"}
    wrong = {rule for name in BATCHES for rule in document(name).get("wrong_rules", [])}
    return (right | provoked) - wrong


def _class(low: float, high: float, answers: list[Answer]) -> str:
    """One line of the table of confidence."""
    right = share(answer.right for answer in answers if low <= answer.confidence < high)
    return f"| {low} to {high} | {right} |"


def _row(cause: str, answers: list[Answer]) -> str:
    """One line of the table of causes."""
    of_cause = [answer.right for answer in answers if answer.failure.cause == cause]
    named = [answer.right for answer in answers if answer.rule == cause]
    return f"| `{cause}` | {share(of_cause)} | {share(named)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
