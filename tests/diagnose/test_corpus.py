"""Every log of the corpus gets its cause; healthy logs get none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from dsforge.diagnose import Cause, diagnose_files
from dsforge.diagnose.report import CONFIDENT
from dsforge.diagnose.rulebook import rulebook

HERE = Path(__file__).parent
LEAST_RIGHT = 0.85  # of the held-out logs, which were written after the rules


class Case(NamedTuple):
    """A log, the rule that should answer (none where nothing is wrong), and where it is from."""

    log: str
    rule: str | None
    origin: str  # provoked: a real run, see provoke.py; written: from the text in the source
    note: str


def table(name: str) -> list[Case]:
    """The cases of one table."""
    return [Case(**row) for row in json.loads((HERE / name).read_text(encoding="utf-8"))]


CASES = table("cases.json")
HELD_OUT = table("held_out.json")


def found(case: Case, folder: str) -> tuple[Cause, ...]:
    """The causes in the log of a case."""
    return diagnose_files([HERE / folder / f"{case.log}.log"])


def first(causes: tuple[Cause, ...]) -> str | None:
    """The rule that answers first."""
    return causes[0].rule if causes else None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.log)
def test_the_first_cause_is_the_right_one(case: Case) -> None:
    """The rule of the table answers first, and each line it cites stands in the log."""
    causes = found(case, "logs")

    assert first(causes) == case.rule
    text = (HERE / "logs" / f"{case.log}.log").read_text(encoding="utf-8").splitlines()
    for cause in causes:
        assert all(line.text[:40] in text[line.line - 1] for line in cause.evidence)
        assert cause.fix
        assert cause.message


def test_held_out_logs(record_property: pytest.RecordProperty) -> None:
    """Logs written after the rules, in other words and other orders, are mostly understood."""
    answers = {case.log: (case.rule, first(found(case, "held_out"))) for case in HELD_OUT}
    wrong = {log: pair for log, pair in answers.items() if pair[0] != pair[1]}
    right = len(answers) - len(wrong)
    record_property("count", f"diagnose: held-out logs right {right} / {len(answers)}")

    assert right / len(answers) >= LEAST_RIGHT, wrong


def test_the_counts(record_property: pytest.RecordProperty) -> None:
    """Right and tried, false alarms on healthy logs, rules with a log: printed and bounded."""
    right = sum(first(found(case, "logs")) == case.rule for case in CASES)
    healthy = [case for case in CASES if case.rule is None]
    alarms = sum(bool(found(case, "logs")) for case in healthy)
    real = sum(case.origin == "provoked" for case in CASES)
    kinds = {case.rule for case in CASES if case.rule}
    record_property(
        "count",
        f"diagnose: {len(rulebook())} rules, {len(CASES)} logs ({real} provoked); causes right "
        f"{right} / {len(CASES)}, false alarms {alarms} / {len(healthy)} healthy logs",
    )

    assert alarms == 0
    assert kinds <= set(rulebook())


def test_healthy_logs_give_no_confident_cause_when_they_are_cut() -> None:
    """A log that is read while the run goes on is no failure."""
    for case in CASES:
        if case.rule is None:
            lines = (HERE / "logs" / f"{case.log}.log").read_text(encoding="utf-8").splitlines()
            from dsforge.diagnose import diagnose_text

            causes = diagnose_text("\n".join(lines[: len(lines) // 2]))
            assert all(cause.confidence < CONFIDENT for cause in causes), case.log
