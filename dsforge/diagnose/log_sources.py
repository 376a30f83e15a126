"""Where logs come from: files, folders of them, a stream, a text at hand."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from io import UnsupportedOperation
from pathlib import Path
from traceback import format_exception
from typing import TYPE_CHECKING, BinaryIO

from dsforge.diagnose.failures_in_words import (
    QUOTED,
    above_frames,
    asked,
    bare_messages,
    complaints,
    is_bare,
    met,
    named,
    python_messages,
    reported,
    told,
    unexplained,
    with_line_ends,
    without_mark,
)
from dsforge.diagnose.flight_recorder import rank_of, recorded
from dsforge.diagnose.log_scanner import Scan, scan
from dsforge.diagnose.partial_messages import partly_known
from dsforge.diagnose.ranking import Cause, causes
from dsforge.diagnose.report import CONFIDENT
from dsforge.diagnose.rule import ANSWERS, MatchedLine
from dsforge.diagnose.rulebook import Rulebook, is_in_words, rulebook
from dsforge.errors import DsforgeError
from dsforge.outside import NULL_DEVICE, UnreadableError, opened
from dsforge.walk import Walk

if TYPE_CHECKING:
    from dsforge.plan import Plan

CHUNK_BYTES = 1 << 20
STREAM_BYTES = 1 << 16
MOST_FILES = 512
MOST_BYTES = 1 << 30  # of one log: ten seconds
WAY_OUT = "its end is enough: tail -c 1G LOG | dsforge diagnose"
ENDINGS = (".log", ".txt", ".out", ".err", "stdout", "stderr")
NAMES = ("dmesg", "sacct", "kern.log", "journal")  # beginnings, of what others say about the run


def diagnose_text(text: str, name: str = "log") -> tuple[Cause, ...]:
    """The causes that a text shows, likeliest first; empty where nothing is wrong."""
    return diagnose_stream([text.encode("utf-8", "replace")], name)


def diagnose_error(error: BaseException) -> tuple[Cause, ...]:
    """The causes that a Python exception and its traceback show."""
    return diagnose_text("".join(format_exception(error)), "traceback")


def diagnose_stream(
    chunks: Iterable[bytes], name: str, plan: Plan | None = None
) -> tuple[Cause, ...]:
    """The causes that a stream of bytes shows; memory does not grow with its length.

    With a plan, memory errors are put into its terms, and slow steps are held against it.
    """
    return _causes_of([scan(chunks, name, rulebook(with_plan=plan is not None))], plan)


def diagnose_files(paths: Sequence[Path], plan: Plan | None = None) -> tuple[Cause, ...]:
    """The causes that the logs of one run show together; folders stand for the logs in them.

    Raises DsforgeError where a path is not there, holds no log, or cannot be read.
    """
    files = dict.fromkeys(file for path in paths for file in _logs(path))
    rules = rulebook(with_plan=plan is not None)
    dumps = {file: rank for file in files if (rank := rank_of(file)) is not None}
    scans = [_scanned(file, rules) for file in files if file not in dumps]
    return _causes_of([*scans, *_recorded(dumps, rules)], plan)


def _recorded(dumps: dict[Path, int], rules: Rulebook) -> list[Scan]:
    """What the dumps of flight recorders show, those of each folder together."""
    folders: dict[Path, dict[int, Path]] = {}
    for file, rank in sorted(dumps.items()):
        folders.setdefault(file.parent, {})[rank] = file
    return [
        scan([recorded(ranks).encode("utf-8", "replace")], str(ranks[min(ranks)]), rules)
        for ranks in folders.values()
    ]


def _causes_of(scans: Sequence[Scan], plan: Plan | None) -> tuple[Cause, ...]:
    """The causes in what was read, in the terms of the plan where there is one."""
    if plan is None:
        found = causes(scans, rulebook())
        if not found or found[0].rule == "unknown-end":
            found = _told(scans) or found or _unknown(scans)
        elif found[0].confidence < CONFIDENT or found[0].hits[0].rule.kind == "family":
            found = _better_told(scans, found[0]) or found
        known_by = found[0].confidence if found else 0.0
        parts = partly_known(scans, found) if known_by < CONFIDENT else ()
        return (*parts, *found) if parts and parts[0].confidence > known_by else found
    from dsforge.diagnose.oom_in_plan import in_ledger_terms
    from dsforge.diagnose.slow_network import SLOW_NETWORK, slow_network

    steps = [hit for scan in scans for hit in scan.hits if hit.rule.id == SLOW_NETWORK]
    others = [
        scan._replace(hits=tuple(hit for hit in scan.hits if hit.rule.id != SLOW_NETWORK))
        for scan in scans
    ]
    return (*in_ledger_terms(causes(others, rulebook()), plan), *slow_network(steps, plan))


def _told(scans: Sequence[Scan]) -> tuple[Cause, ...]:
    """The causes of a failure that a short text tells in words, where it is no log."""
    if len(scans) != 1:
        return ()
    log, text = scans[0], without_mark(scans[0].text)
    return (
        _said(log, with_line_ends(text))
        or _said(log, told(text) or above_frames(text), in_words=True)
        or _said(log, python_messages(text))
        or _said(log, bare_messages(text), counts=is_bare)
        or _said(log, complaints(text), in_words=True, counts=is_in_words)
        or _said(log, reported(text), in_words=True)
        or _said_to_be_met(log, met(text))
        or _said(log, asked(text), in_words=True, counts=is_in_words)
    )


def _better_told(scans: Sequence[Scan], known: Cause) -> tuple[Cause, ...]:
    """The causes of a message that the line of a known one quotes, where a rule knows more."""
    found = _told(scans)
    if not found or found[0].confidence < CONFIDENT or found[0].rule not in rulebook():
        return ()
    same = found[0].evidence[0].line == known.evidence[0].line
    better = found[0].hits[0].rule.kind in ANSWERS or found[0].confidence > known.confidence
    return found if same and better else ()


def _said_to_be_met(log: Scan, messages: list[tuple[int, str]]) -> tuple[Cause, ...]:
    """The causes in messages that somebody quotes, most of them without the exception's name."""
    return _said(log, messages, in_words=True) or _said(log, named(messages), counts=is_bare)


def _unknown(scans: Sequence[Scan]) -> tuple[Cause, ...]:
    """A message that somebody says to have met, and that no rule knows."""
    quoted = unexplained(scans[0].text) if len(scans) == 1 else []
    if not quoted:
        return ()
    number, one = quoted[0]
    found = _said(scans[0], [(number, f"failure: {one}")])
    message = f"the text quotes a message that no rule knows: {one}"
    return tuple(cause._replace(message=message) for cause in found[:1])


def _said(
    log: Scan,
    said: list[tuple[int, str]],
    *,
    in_words: bool = False,
    counts: Callable[[MatchedLine], bool] | None = None,
) -> tuple[Cause, ...]:
    """The causes in what a text says that programs printed, with the numbers of its lines."""
    rules, lines = rulebook(in_words=in_words), log.text.splitlines()
    text = "\n".join(one for _, one in said)
    read = scan([text.encode()], log.file, rules)
    read = read._replace(hits=tuple(filter(counts, read.hits))) if counts else read
    found = causes([read], rules)
    places = [number for number, _ in said]
    return tuple(
        cause._replace(
            confidence=round(cause.confidence * QUOTED, 2),
            evidence=tuple(
                proof._replace(line=places[proof.line - 1], text=lines[places[proof.line - 1] - 1])
                for proof in cause.evidence
            ),
        )
        for cause in found
    )


def _scanned(path: Path, rules: Rulebook) -> Scan:
    try:
        return scan(_chunks(path), str(path), rules)
    except UnreadableError as error:
        raise DsforgeError(f"{path} {error.reason}", WAY_OUT) from error


def _chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file or pipe, a part at a time. Raises UnreadableError."""
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise UnreadableError("file-too-large", f"is larger than {MOST_BYTES >> 30} GiB")
    with opened(path) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def stream_chunks(stream: BinaryIO) -> Iterator[bytes]:
    """What is piped in or pasted, as it comes. Raises DsforgeError where it is a device."""
    with suppress(UnsupportedOperation):  # a stream of another kind than files
        state = os.fstat(stream.fileno())
        known = stream.isatty() or state.st_rdev == NULL_DEVICE
        if stat.S_ISCHR(state.st_mode) and not known:
            raise DsforgeError("stdin is a device, which has no end", WAY_OUT)
    while chunk := stream.read(STREAM_BYTES):
        yield chunk


def _logs(path: Path) -> list[Path]:
    """The files that a path stands for: itself, or those of the folder and its folders."""
    if not path.exists():
        raise DsforgeError(f"{path} does not exist", "give a log file, a folder of logs, or -")
    if not path.is_dir():
        return [path]
    found: list[Path] = []
    walk = Walk(path, lambda name: name.startswith("."))
    for entry in walk:
        if entry.is_file(follow_symlinks=False) and _tells(Path(entry.path)):
            found.append(Path(entry.path))
        if len(found) > MOST_FILES:
            raise DsforgeError(f"{path} has more than {MOST_FILES} logs", "name those of one run")
    if walk.left_out:
        raise DsforgeError(f"{path} is too large: {walk.left_out}", "name the folder of one run")
    if not found:
        raise DsforgeError(
            f"{path} has no log (*.log, *.txt, *.out, *.err, stdout, stderr, dmesg*, sacct*) and "
            "no dump of a flight recorder (*_rank_0)"
        )
    return found


def _tells(path: Path) -> bool:
    """Whether a file of a folder tells of a run."""
    return path.name.endswith(ENDINGS) or path.name.startswith(NAMES) or rank_of(path) is not None
