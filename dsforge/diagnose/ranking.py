"""From hits to causes: which line came first, and which lines only follow from it.

The first error in time is the cause. What launchers, time-outs and destructors say later is left
out where something explains it, and is the answer where nothing does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from dsforge.diagnose.computed import case_of, values_of
from dsforge.diagnose.line_forms import LEVELS
from dsforge.diagnose.log_context import last_frames
from dsforge.diagnose.log_scanner import Scan
from dsforge.diagnose.rule import ANSWERS, ERRORS, MatchedLine, compiled
from dsforge.diagnose.rulebook import Rulebook
from dsforge.diagnose.templates import filled_fix, filled_message
from dsforge.diagnose.traceback_frames import TRACEBACK

SHOWN_LINES = 4  # of evidence for one cause
SHOWN_CAUSES = 5
LATER = 0.5  # factor on the confidence of a cause that came after another
CAUGHT = 0.5  # and of an exception that was logged, after which the program went on
LINES_BEFORE = 40  # of a plain line, in which the error that it continues may stand
WENT_ON_LINES = 3  # fewer of them after an exception may be its own end
LAST = (ERRORS, ("echo",), ("exit",))  # answers where nothing better is there, best first
_TOP = re.compile(r":?\s{0,40}File [^\n]{1,300}, in <module>")  # the first of all frames
_RAISED = ("error", "error")  # kind and form of an exception that no rule knows
_ROW = re.compile(  # of torchrun's table
    r"exitcode {1,4}: {1,4}-?\d{1,4} \(pid: |traceback {1,4}: Signal \d{1,3} \(SIG"
)
_OTHERS, _ROOT, _TABLE_LINES = "Failures:", "Root Cause (first observed failure):", 400
_CHAINED = ("another exception occurred:", "direct cause of the following exception:")


class Evidence(NamedTuple):
    """A line that proves a cause."""

    file: str
    line: int
    text: str


class Cause(NamedTuple):
    """Why a run failed, in words, with evidence and a fix."""

    rule: str
    confidence: float  # 0 to 1
    message: str
    why: str
    evidence: tuple[Evidence, ...]
    fix: str
    hits: tuple[MatchedLine, ...]

    @property
    def kind(self) -> Literal["cause", "hint"]:
        """A cause of a failure, or a hint to what is noticeable where nothing failed."""
        return "hint" if self.hits[0].rule.kind == "hint" else "cause"


def causes(scans: Sequence[Scan], rules: Rulebook) -> tuple[Cause, ...]:
    """What the logs of one run show, likeliest cause first; empty where nothing is wrong."""
    files = {scan.file: number for number, scan in enumerate(scans)}
    counting = _root_causes([hit for scan in scans for hit in _counting(scan)])
    steps = {scan.file: scan.progress_line for scan in scans}
    hits = _first_readers(_lasting(_without_notices(counting), steps), rules)
    timed = len(files) > 1 and all(hit.when for hit in hits)

    def place(hit: MatchedLine) -> tuple[str, int, int, int]:
        return (hit.when if timed else "", files[hit.file], hit.line, rules.place(hit.rule.id))

    groups = _grouped(sorted(hits, key=place))
    groups = _without_consequences(groups)
    chosen = _cascade(groups, place)
    ends = {scan.file: scan.lines for scan in scans if not _failed(scan)}

    def weight(number: int, group: tuple[MatchedLine, ...]) -> float:
        caught = _was_caught(group, ends) or all(_survived(hit, steps) for hit in group)
        return (LATER if number else 1.0) * (CAUGHT if caught else 1.0)

    return tuple(
        _cause(group, weight(number, group)) for number, group in enumerate(chosen[:SHOWN_CAUSES])
    )


def _root_causes(hits: list[MatchedLine]) -> list[MatchedLine]:
    """The hits, less those of the ranks that torchrun's table lists above its root cause."""
    rows = [hit for hit in hits if _ROW.search(hit.text)]
    roots = [hit for hit in rows if hit.before.rfind(_ROOT) > hit.before.rfind(_OTHERS)]
    others = [hit for hit in rows if hit.before.rfind(_OTHERS) > hit.before.rfind(_ROOT)]
    listed = {(hit.file, hit.line) for hit in others if any(_is_above(hit, root) for root in roots)}
    return [hit for hit in hits if (hit.file, hit.line) not in listed]


def _is_above(hit: MatchedLine, root: MatchedLine) -> bool:
    """Whether a row of torchrun's table can stand in that of a root cause."""
    return hit.file == root.file and 0 < root.line - hit.line < _TABLE_LINES


def _survived(hit: MatchedLine, steps: dict[str, int]) -> bool:
    """Whether training went on for several steps after an error; `steps`: from which line."""
    fails = hit.rule.kind in (*ANSWERS, *ERRORS, "echo")
    return fails and hit.line < steps[hit.file]


def _lasting(hits: list[MatchedLine], steps: dict[str, int]) -> list[MatchedLine]:
    """The hits, less those that the run survived, where another failure ended it."""
    lasting = [hit for hit in hits if not _survived(hit, steps)]
    ended = any(hit.rule.kind in (*ANSWERS, *ERRORS) for hit in lasting)
    return lasting if ended else hits


def _failed(scan: Scan) -> bool:
    """Whether a log tells of a process that failed."""
    return any(hit.rule.kind in ("exit", "death") for hit in scan.hits)


def _counting(scan: Scan) -> list[MatchedLine]:
    """The hits of a log that ended well are those of rules that count in spite of it."""
    if _failed(scan) or not scan.success_line:
        return list(scan.hits)
    return [hit for hit in scan.hits if hit.rule.survives_success or hit.line > scan.success_line]


def _without_notices(hits: list[MatchedLine]) -> list[MatchedLine]:
    """The hits, less those of programs that go on, unless the run then fails in that component."""
    failure = "\n".join(_failure_text(hit) for hit in hits if _is_failure(hit))
    return [
        hit
        for hit in hits
        if not _needs_confirmation(hit)
        or (hit.rule.confirmed_by and compiled(hit.rule.confirmed_by).search(failure))
    ]


def _needs_confirmation(hit: MatchedLine) -> bool:
    """Whether a line proves nothing by itself."""
    if hit.rule.kind not in ("cause", *ERRORS, "echo") or hit.rule.any_level:
        return False
    if hit.form == "plain" and hit.rule.errors_only:
        lines_before = "\n".join(hit.before.rstrip().split("\n")[-LINES_BEFORE:])
        continues = hit.rule.continues
        return not (continues and compiled(continues).search(lines_before))
    return hit.form == "notice"


def _is_failure(hit: MatchedLine) -> bool:
    """Whether a line is an error by its form, or tells of a process that was killed."""
    return hit.form == "error" or hit.rule.kind == "death"


def _failure_text(hit: MatchedLine) -> str:
    """An error and the frames that lead to it."""
    if TRACEBACK not in hit.before:
        return hit.text
    return f"{last_frames(hit.before)}\n{hit.text}"


def _first_readers(hits: list[MatchedLine], rules: Rulebook) -> list[MatchedLine]:
    """The hits, of several on one line only that of the rule that stands first."""
    seen: set[tuple[str, int]] = set()
    kept = []
    for hit in sorted(hits, key=lambda hit: rules.place(hit.rule.id)):
        if (hit.file, hit.line) not in seen or hit.rule.kind not in (*ANSWERS, "family"):
            kept.append(hit)
        seen.add((hit.file, hit.line))
    return kept


def _grouped(hits: list[MatchedLine]) -> list[tuple[MatchedLine, ...]]:
    """All hits of each rule together, in the order of their first."""
    groups: dict[str, list[MatchedLine]] = {}
    for hit in hits:
        groups.setdefault(hit.rule.id, []).append(hit)
    return [tuple(group) for group in groups.values()]


def _without_consequences(groups: list[tuple[MatchedLine, ...]]) -> list[tuple[MatchedLine, ...]]:
    """The groups that no other group explains."""
    explained = {name for group in groups for name in group[0].rule.explains}
    known = [group for group in groups if group[0].rule.kind != "error"]
    taken = {(hit.file, hit.line) for group in known for hit in group}
    kept = []
    for group in groups:
        rule = group[0].rule
        own = tuple(hit for hit in group if _is_new(hit, taken, known))
        if rule.id not in explained and own:
            kept.append(own)
    return kept


def _is_new(
    hit: MatchedLine, taken: set[tuple[str, int]], known: list[tuple[MatchedLine, ...]]
) -> bool:
    """Whether an exception is none that another rule has read, nor one in a destructor."""
    if hit.rule.kind != "error":
        return True
    read = any(group[0].rule.match(hit.text) for group in known)
    return (hit.file, hit.line) not in taken and not read and not _was_ignored(hit)


def _was_ignored(hit: MatchedLine) -> bool:
    """Whether an exception was raised in a destructor, which Python only reports."""
    said = hit.before.rpartition(TRACEBACK)[0] or hit.before
    return "Exception ignored in" in said.rstrip().rpartition("\n")[2]


def _ended_nothing(hit: MatchedLine) -> bool:
    """Whether an exception was ignored, or logged as a warning below the top of the program."""
    said, _, frames = hit.before.rpartition(TRACEBACK)
    warned = " WARN" in " " + said.rstrip().rpartition("\n")[2]
    return _was_ignored(hit) or (warned and not _TOP.match(frames))


def _cascade(groups: list[tuple[MatchedLine, ...]], place: object) -> list[tuple[MatchedLine, ...]]:
    """The groups that answer, best first."""
    by_kind: dict[str, list[tuple[MatchedLine, ...]]] = {}
    for group in groups:
        by_kind.setdefault(group[0].rule.kind, []).append(group)
    hints = sorted(by_kind.get("hint", []), key=lambda group: -group[0].rule.confidence)
    strong = [g for g in groups if g[0].rule.kind in ANSWERS]
    if strong:
        first = _first_cause(by_kind.get("cause", strong))
        early = [g for g in strong[: strong.index(first)] if g[0].rule.kind != "cause"]
        rest = [g for g in strong if g not in early and g is not first]
        return [*_raised_before(groups, strong), *early, first, *rest, *hints]
    for kinds in LAST:
        if last := [group for group in groups if group[0].rule.kind in kinds]:
            return [_telling(last), *hints]
    return hints


def _raised_before(
    groups: list[tuple[MatchedLine, ...]], strong: list[tuple[MatchedLine, ...]]
) -> list[tuple[MatchedLine, ...]]:
    """The error that ended a process, where all that a rule knows is what it brought about.

    That is a death by a signal or a wait in the same log, after an exception or another error that
    was not logged by a program that went on, nor ignored in a destructor.
    """
    if any(group[0].rule.kind == "cause" for group in strong):
        return []
    files = {hit.file for hit in strong[0]}
    before = [
        group
        for group in groups[: groups.index(strong[0])]
        if group[0].file in files
        and (group[0].rule.kind == "family" or (group[0].rule.kind, group[0].form) == _RAISED)
        and not all(map(_ended_nothing, group))
    ]
    return [_telling(before)] if before else []


def _telling(groups: list[tuple[MatchedLine, ...]]) -> tuple[MatchedLine, ...]:
    """The first group; of errors that were raised one from another, the first that tells why."""
    first, *later = groups
    if first[0].rule.kind == "error":
        for group in later:
            before = group[0].before
            raised_from = max(before.rfind(words) for words in _CHAINED)
            if group[0].rule.kind == "family" and raised_from > before.rfind(first[0].text) >= 0:
                return group
    return first


def _first_cause(groups: list[tuple[MatchedLine, ...]]) -> tuple[MatchedLine, ...]:
    """The first group that is an error by its form; else the first."""
    errors = (group for group in groups if any(_is_failure(hit) for hit in group))
    return next(errors, groups[0])


def _was_caught(group: tuple[MatchedLine, ...], ends: dict[str, int]) -> bool:
    """Whether a program only logged what it met and went on; `ends`: logs of no failure."""
    return all(
        hit.line + WENT_ON_LINES < ends.get(hit.file, 0) and _is_logged(hit) for hit in group
    )


def _is_logged(hit: MatchedLine) -> bool:
    """Whether a line with a level, as loggers write it, stands before a hit's traceback."""
    if hit.form == "notice":
        return False  # what stands before it in a log that breaks off is the traceback below it
    said, traceback, _ = hit.before.rpartition(TRACEBACK)
    return bool(traceback and LEVELS.search(said.rstrip().rpartition("\n")[2]))


def _cause(group: tuple[MatchedLine, ...], weight: float) -> Cause:
    """The explanation of one group, and a factor on how sure it is."""
    rule = group[0].rule
    values = values_of(group)
    case = case_of(group[0], values)
    said = rule._replace(
        message=case.message or rule.message,
        cause=case.cause or rule.cause,
        fix=case.fix or rule.fix,
        confidence=case.confidence or rule.confidence,
    )
    return Cause(
        rule=rule.id,
        confidence=round(said.confidence * weight, 2),
        message=filled_message(said.message, values),
        why=filled_message(said.cause, values),
        evidence=tuple(Evidence(h.file, h.line, h.text.strip()) for h in group[:SHOWN_LINES]),
        fix=filled_fix(said.fix, values),
        hits=group,
    )
