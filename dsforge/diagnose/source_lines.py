"""What the source line under the last frame tells: what was called, and what was None.

People paste tracebacks of Python, of notebooks (`----> 3 code`) and of rich (`| > 482 | code |`).
"""

from __future__ import annotations

import re

from dsforge.diagnose.rule import MatchedLine
from dsforge.diagnose.traceback_frames import names_frame
from dsforge.diagnose.unknown_errors import calling_package, unknown_error

_BOX = re.compile(r"^[│|]\s?|\s*[│|]$")
_NUMBERED = re.compile(r"^(?P<arrow>-{1,4}>|❱)? ?(?P<number>\d{1,6})(?: │|\s)\s*(?P<code>\S.*)$")
_OWN_FRAME = re.compile(r'File "[^"\n]{1,300}", line \d{1,7}, in [^\n]{1,100}')
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d")
_MARKS = re.compile(r"[\^~ ]+")
_CALLED = re.compile(r"([A-Za-z_][\w.]{0,100})\(")
_NOT_CALLED = ("super", "print", "isinstance", "raise", "type", "len", "dict", "list")
_LOOKBACK = 60  # lines
NEAR_LINES = 6  # before an error, that people paste of a traceback
SOURCE_INDENT = 4  # of the code below a frame of a traceback


def source_line(before: str) -> str:
    """The code of the last frame; empty where the log does not show it."""
    shown, indent = "", 0
    for raw in reversed(before.rstrip().split("\n")[-_LOOKBACK:]):
        line = _BOX.sub("", raw.strip()).strip()
        numbered = _NUMBERED.match(line)
        if numbered and numbered["arrow"]:
            return numbered["code"].strip(" │")
        if names_frame(line):
            return shown
        if line and not _MARKS.fullmatch(line) and not numbered:
            shown, indent = line, len(raw) - len(raw.lstrip())
    return shown if indent >= SOURCE_INDENT else ""


def own_line(before: str) -> str:
    """The code of the deepest frame that is not of an installed package."""
    places = [
        place.end()
        for place in _OWN_FRAME.finditer(before)
        if not _INSTALLED.search(place[0]) and "<frozen" not in place[0]
    ]
    return before[places[-1] :].lstrip("\n").split("\n")[0].strip() if places else ""


def called_in(code: str) -> str:
    """The name that a line of code calls first, as it is written there."""
    names = (name for name in _CALLED.findall(code) if name.split(".")[-1] not in _NOT_CALLED)
    return next(names, "")


def none_in(code: str, what: str) -> str:
    """The expression that was None, by what was asked of it: an attribute, or an operation."""
    if asserted := re.match(r"assert ([\w.]+) is not None", what):
        return asserted[1]
    marks = {"subscriptable": r"\[", "callable": r"\(", "iterable": r"(?<=\bin )[\w.]+()"}
    mark = next((mark for word, mark in marks.items() if word in what), "")
    if not mark and not re.fullmatch(r"\w+", what):
        return ""
    for found in re.finditer(mark or rf"\.{re.escape(what)}\b", code):
        operand = _operand(code[: found.end() if "iter" in what else found.start()])
        if operand and operand not in _NOT_CALLED:
            return operand
    return ""


def _operand(code: str) -> str:
    """The operand that a piece of code ends with: a name with its dots, calls and indices."""
    depth, start = 0, len(code)
    for place in range(len(code) - 1, -1, -1):
        sign = code[place]
        if sign in ")]":
            depth += 1
        elif sign in "([":
            depth -= 1
        if depth < 0 or (not depth and not (sign.isalnum() or sign in "_.([")):
            break
        start = place
    return code[start:].lstrip(".([")


def none_expression(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """What is known of any error, its source line, and the expression that was None."""
    code = source_line(hits[0].before)
    said = hits[0].values.get("what", "")
    return {**unknown_error(hits), "source": code, "expression": none_in(code, said)}


def with_source(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """What is known of any error, its source line, and the last lines before it, frames or not."""
    before = hits[0].before
    near = [*before.rstrip().split("\n")[-NEAR_LINES:], hits[0].text]
    return {**unknown_error(hits), "source": source_line(before), "near": "\n".join(near)}


def argument_count(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The call of the user's own code that gave too many arguments, and the counts without self."""
    values = hits[0].values
    counts = {name: values[name] for name in ("has", "given")}
    less = {f"{k}_less": str(int(v) - 1) if v.isdigit() else v for k, v in counts.items()}
    return {**calling_package(hits), **less, "call": own_line(hits[0].before)}
