"""The surroundings of a line in a window of a log: its ends, what follows it, what stands before.

All places are offsets into the window's bytes; whatever the log is, each look is bounded.
"""

from __future__ import annotations

import re

from dsforge.diagnose.line_forms import is_listed, is_mention
from dsforge.diagnose.log_line import LONGEST, Line, cleaned, plain
from dsforge.diagnose.rule import Rule

AHEAD_BYTES = 16_000  # a hit this close to the end waits for what follows it
BEFORE_BYTES = 8_000  # context that stays behind
INTERLEAVED = 4  # ranks whose lines may stand between two lines of one
_FRAME = re.compile(r'File "|\.py(?:: ?| in )')  # of Python, of notebooks
NARROW, WIDE = 60, 260  # bytes of a line that a terminal may have cut


def bounds(window: bytes, place: int) -> tuple[int, int]:
    """Begin and end of the line around a place; of a huge line, the part around it."""
    low, high = max(0, place - LONGEST), min(len(window), place + LONGEST)
    start = max(window.rfind(b"\n", low, place), window.rfind(b"\r", low, place)) + 1
    ends = [end for end in (window.find(b"\n", place, high), window.find(b"\r", place, high))
            if end >= 0]  # fmt: skip
    return max(start, low), min(ends, default=high)


def is_source(window: bytes, start: int) -> bool:
    """Whether the line before names a frame: then this one is source code, and proves nothing."""
    before = window[max(0, start - LONGEST) : max(0, start - 1)].rpartition(b"\n")[2]
    return b'File "' in before and b", line " in before


def following(window: bytes, stop: int, said: Line, count: int) -> list[tuple[int, str]]:
    """The next lines of the same speaker, where lines name theirs, each with its distance."""
    taken: list[tuple[int, str]] = []
    if not count:
        return taken
    ahead = window[stop + 1 : stop + AHEAD_BYTES].split(b"\n", INTERLEAVED * count + 1)
    for distance, raw in enumerate(ahead[: INTERLEAVED * count], start=1):
        line = cleaned(raw)
        if same(said, line):
            taken.append((distance, line.text))
        if len(taken) == count:
            break
    return taken


def wrapped(rule: Rule, raw: bytes, line: tuple[int, int], said: Line) -> re.Match[str] | None:
    """The match of a rule in a line that a terminal has cut into several."""
    if not NARROW <= line[1] - line[0] <= WIDE:
        return None
    rest = [text for _, text in following(raw, line[1], said, 2)]
    if not rest or len(rest[0]) > WIDE:
        return None
    for joint in ("", " "):
        found = rule.match(joint.join([said.text, *rest])[:LONGEST])
        if found and found.start() < len(said.text) < found.end():
            return found
    return None


def is_said(line: Line, start: int) -> bool:
    """Whether a line reports what stands at a place, and does not only show or discuss it."""
    form = line.form
    if form == "source" or is_listed(line.text, start):
        return False
    return form != "plain" or not is_mention(line.text, start)


def last_frames(context: str) -> str:
    """The last traceback of a context: frames, the source below each, boxes and errors."""
    kept = []
    for raw in context.rpartition("Traceback (most recent call last)")[2].split("\n"):
        line = cleaned(raw.encode())
        frame = _FRAME.search(line.text) is not None or line.text.startswith(("    ", "│"))
        if line.form != "notice" and (frame or line.form == "error"):
            kept.append(line.text)
    return "\n".join(kept)


def lines_before(window: bytes, place: int) -> str:
    """The lines before a place of the window, as many as are kept."""
    before = window[max(0, place - BEFORE_BYTES) : place].replace(b"\r", b"\n")
    return plain(before.decode("utf-8", "replace"))


def same(one: Line, other: Line) -> bool:
    """Whether two lines can be of the same process."""
    return not (one.rank is not None and other.rank not in (one.rank, None)) and (
        not one.host or not other.host or one.host == other.host
    )


def last_time(text: str) -> str:
    """The time of the last line that has one."""
    for line in reversed(text.splitlines()[-40:]):
        when = cleaned(line.encode()).when
        if when:
            return when
    return ""
