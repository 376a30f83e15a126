"""The frames of tracebacks, as Python, notebooks and rich print them, and people paste them.

Lines come without the prefixes of launchers (`log_line.cleaned`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'[ \t]{0,8}File "[^"\n]{1,300}", line \d{1,7}(?:, in \S|\s*$)')
_CELL = r"(?:\]\([^)\s]{1,300}\))?"  # the link that a notebook puts behind a file
_NAMED = re.compile(
    rf'File "|\.py{_CELL}(?::| in )|^\S*(?:ipython-input|ipykernel|Cell In|/tmp/ipykernel)'
)
# What notebooks put above the frames; the message stands at their end.
_HEADING = re.compile(
    r"(?P<kind>[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit))\s{2,60}" + re.escape(TRACEBACK)
)
_BEGIN = re.compile(
    rf"{re.escape(TRACEBACK)}|^\s{{0,8}}File \S|"
    rf"^\[?[~/][^\s\]]{{1,300}}\.py{_CELL} in \w",  # of a notebook
    re.MULTILINE,
)
_PLACE = re.compile(
    r'File "(?P<file>[^"\n]{1,300})", line (?P<line>\d{1,7})(?:, in (?P<function>[\w<>.]{1,80}))?|'
    r"(?:File )?(?P<path>(?:[~/]|[A-Za-z]:\\)[^\s:│\"]{1,300}\.py):(?P<number>\d{1,7})"
    r"(?:,? in (?P<name>[\w<>.]{1,80}))?|"
    r"^\[?(?P<module>(?:[~/]|[A-Za-z]:\\)[^\s:│\"\]]{1,300}\.py)"
    rf"{_CELL} in (?P<method>[\w<>.]{{1,80}})\(",  # of a notebook
    re.MULTILINE,
)


class Frame(NamedTuple):
    """A place in a program: file, line (empty in notebooks) and function (empty at times)."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        """Place and function, as an editor takes them."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        return place + (f" in {self.function}" if self.function else "")


def is_frame(line: str) -> bool:
    """Whether a line is a frame of Python's own tracebacks."""
    return _FRAME.match(line) is not None


def names_frame(line: str) -> bool:
    """Whether a line names the place of a frame, in any form."""
    return _NAMED.search(line) is not None


def begins_traceback(line: str) -> bool:
    """Whether a line stands above the frames of a traceback, in a log or in a notebook."""
    return line.startswith(TRACEBACK) or _HEADING.match(line) is not None


def heading_exception(line: str) -> str:
    """The exception that a notebook names above the frames; empty in any other line."""
    found = _HEADING.match(line)
    return found["kind"] if found else ""


def holds_traceback(text: str) -> bool:
    """Whether one of these lines heads a traceback, or is a frame."""
    return _BEGIN.search(text) is not None


def last_traceback(text: str) -> str:
    """What stands below the last heading of a traceback; all of it where there is none."""
    return text.rpartition(TRACEBACK)[2]


def frames(text: str) -> list[Frame]:
    """The frames of the last traceback, outermost first."""
    return [
        Frame(
            found["file"] or found["path"] or found["module"],
            found["line"] or found["number"] or "",
            found["function"] or found["name"] or found["method"] or "",
        )
        for found in _PLACE.finditer(last_traceback(text))
    ]


def begins_with_place(text: str) -> bool:
    """Whether a text begins with the place of a frame."""
    return _PLACE.match(text) is not None
