"""The surroundings of a line in a window of a log: its ends, what follows it, what stands before.

All places are offsets into the window's bytes; whatever the log is, each look is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise, takewhile

from dsforge.diagnose.line_forms import LEVELS, exception_in, is_listed, is_mention
from dsforge.diagnose.log_line import LONGEST, Line, cleaned, plain
from dsforge.diagnose.rule import Rule
from dsforge.diagnose.run_phases import reports_loss
from dsforge.diagnose.traceback_frames import holds_traceback, last_traceback, names_frame

AHEAD_BYTES = 16_000  # a hit this close to the end waits for what follows it
BEFORE_BYTES = 8_000  # context that stays behind
INTERLEAVED = 4  # ranks whose lines may stand between two lines of one
BELOW_AN_ASSERTION = 32  # lines in which its error is looked for: marks, and what others print
_LINE = re.compile(rb"[^\r\n]+")
_FAILED = re.compile(rb"AssertionError(?:\x1b\[[\d;]{0,9}m|[ \t\r])*(?:\n|\Z)")  # without a message
CUT_LINES = 6  # of one message, in which words are looked for that make it another
_ERROR = re.compile(r"(?:\w{1,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit)\b")
_END = re.compile(  # below marks, where a text ends, or others say that the process died
    rb"[\s~^`|*.-]{0,2000}(?:\Z|(?!File )[^\n]{0,200}?(?:exited on signal|exit ?code|return code|"
    rb"dumped\)|Killed|killed|slurmstepd|srun: error|Root Cause|SignalException|ActorDied|"
    rb"Watchdog caught|Heartbeat monitor|DistStoreError|closed by peer|CalledProcessError))"
)
_RAISED = re.compile(  # an error and its message, as source code
    r"raise (?P<kind>(?:\w{1,60}\.){0,4}[A-Z]\w{1,60})\(\s{0,4}[frbFRB]{0,2}[\"']"
    r"(?P<what>[^\n]{4,400})|(?P<assertion>assert [^\n]{3,400})"
)
_VALUE = re.compile(r"\{[\w.!:]{1,80}\}")  # that an f-string puts into its text
_CODE = re.compile(r" {2,3}\S[^\n]{0,200}?(?: = |\w\()")  # a source that lost some of its indent
_ARROW = re.compile(r"-{1,4}> ?\[?\d{1,6}\b")  # the line of a notebook's frame that was running
_HUNK = re.compile(rb"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")  # of a diff
NARROW, WIDE = 48, 260  # bytes of a line that a terminal may have cut


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


def without_diffs(window: bytes) -> bytes:
    """The text with empty lines for those of diffs, which somebody changed and nothing ran.

    The head of a hunk says how many lines it has, before the change and after it.
    """
    if b"@@ -" not in window:
        return window
    lines, before, after = window.split(b"\n"), 0, 0
    for number, line in enumerate(lines):
        if head := _HUNK.match(line):
            before, after = (int(count or 1) for count in head.groups())
        elif max(before, after) > 0 and line[:1] in b" \t+-\\":
            lines[number] = b""
            before -= not line.startswith(b"+")
            after -= not line.startswith(b"-")
        else:
            before = after = 0
    return b"\n".join(lines)


def following(
    window: bytes, stop: int, said: Line, count: int, *, notices: bool = False
) -> list[tuple[int, str]]:
    """The next lines of the same speaker, each with its distance.

    Where lines name their rank or host, those of others are left out. So are notices, which another
    thread or a child process wrote in between, unless the line is one itself or they are asked for.
    """
    return list(_after(window, stop, said, count, notices=notices))


def _after(
    window: bytes, stop: int, said: Line, count: int, *, notices: bool = False
) -> Iterator[tuple[int, str]]:
    """The lines of `following`, each read when it is asked for."""
    if not count:
        return
    taken = 0
    ahead = window[stop + 1 : stop + AHEAD_BYTES].split(b"\n", INTERLEAVED * (count + 1) + 1)
    for distance, raw in enumerate(ahead[: INTERLEAVED * (count + 1)], start=1):
        line = cleaned(raw)
        if same(said, line) and (notices or line.form != "notice" or said.form == "notice"):
            yield distance, line.text
            taken += 1
        if taken == count:
            return


def failed_assertion(window: bytes, stop: int, said: Line) -> Line | None:
    """The source line of an assertion that failed without a message: then it is the message."""
    text = said.text.strip()
    if not text.startswith("assert "):
        return None
    if not _FAILED.search(window, stop, stop + AHEAD_BYTES):
        return None  # cheap: most assertions in a log are source lines that did not fail
    after = (line.strip() for _, line in _after(window, stop, said, BELOW_AN_ASSERTION))
    own = takewhile(lambda line: not names_frame(line), after)
    if "AssertionError" not in own:
        return None
    return said._replace(text=text, whole=f"error: {text}")


def raised_in_source(window: bytes, line: tuple[int, int], said: Line) -> Line | None:
    """What the last line of a traceback raises, where its error line was not pasted.

    Where lines follow, it stands below a frame, and none of them is an error, a frame or a step.
    """
    found = _RAISED.match(said.text.strip())
    if found is None:
        return None
    if not _END.match(window, line[1]):
        after = (text for _, text in _after(window, line[1], said, BELOW_AN_ASSERTION))
        if not is_source(window, line[0]) or any(map(_goes_on, after)):
            return None
    text = found["assertion"] or f"{found['kind']}: {found['what'].rstrip(')')}"
    text = _VALUE.sub("...", text)
    return said._replace(text=text, whole=f"error: {text}")


def _goes_on(text: str) -> bool:
    """Whether a line below a frame says that its source was not the end of a failure."""
    return names_frame(text) or bool(_ERROR.match(text)) or reports_loss(text)


def cut_lines(window: bytes, start: int) -> list[tuple[tuple[int, int], bytes]]:
    """The lines from a place on that a terminal may have cut: bounds, and the text over the cut.

    The text is in lower case and stands twice: as if a word was cut, and as if between words.
    """
    lines = [(m.start() + start, m.end() + start) for m in _LINE.finditer(window[start:])]
    found = []
    for line, after in pairwise(lines):
        if NARROW <= line[1] - line[0] <= WIDE:
            one, other = (window[slice(*place)].strip().lower() for place in (line, after))
            found.append((line, b"\n".join((one + other[:WIDE], one + b" " + other[:WIDE]))))
    return found


def wrapped(rule: Rule, raw: bytes, line: tuple[int, int], said: Line) -> re.Match[str] | None:
    """The match of a rule in a line that a terminal has cut into several.

    A family knows no message, so it cannot tell the rest of a line from the next one.
    """
    for text in () if rule.kind == "family" else _rejoined(raw, line, said, 2):
        found = rule.match(text)
        if found and found.start() < len(said.text) < found.end():
            return found
    return None


def taken_back(
    rule: Rule, found: re.Match[str], raw: bytes, *, line: tuple[int, int], said: Line
) -> bool:
    """Whether a line may be cut, and its rest has words that the pattern of a match excludes."""
    pattern = found.re.pattern
    if rule.kind == "family" or rule.lines or "(?!" not in pattern or pattern.endswith("$"):
        return False
    return not all(found.re.search(text) for text in _rejoined(raw, line, said, CUT_LINES))


def _rejoined(raw: bytes, line: tuple[int, int], said: Line, count: int) -> list[str]:
    """A line with those after it, as if cut within a word, and between words; nothing if whole."""
    rest = []
    if NARROW <= line[1] - line[0] <= WIDE:
        after = [text for _, text in following(raw, line[1], said, count, notices=True)]
        rest = list(takewhile(str.strip, after))
    if not rest or len(rest[0]) > WIDE:
        return []
    if len(rest[0]) > line[1] - line[0] + len(rest[0].partition(" ")[0]):
        return []  # its first word would have had room: nothing was cut here
    if LEVELS.match(rest[0]) or exception_in(rest[0]):
        return []  # a message of its own
    return [joint.join([said.text, *rest])[:LONGEST] for joint in ("", " ")]


def is_said(line: Line, start: int) -> bool:
    """Whether a line reports what stands at a place, and does not only show or discuss it."""
    form = line.form
    if form == "source" or is_listed(line.text, start):
        return False
    return form != "plain" or not is_mention(line.text, start)


def last_frames(context: str) -> str:
    """The last traceback of a context: frames, the source below each, boxes and errors.

    Nothing of it, where training went on after it: what comes then is another failure.
    """
    kept: list[str] = []
    ended = False  # by the exception's own line; a frame after it is of another traceback
    for raw in last_traceback(context).split("\n"):
        line = cleaned(raw.encode())
        begins = names_frame(line.text)
        ran = line.text.startswith(("    ", "│")) or _ARROW.match(line.text) is not None
        frame = begins or ran or _CODE.match(line.text) is not None
        if begins and ended:
            kept, ended = [], False
        ended = ended or (not frame and exception_in(line.text) is not None)
        if line.form != "notice" and (frame or line.form == "error"):
            kept.append(line.text)
        elif reports_loss(line.text):
            kept, ended = [], False
    return "\n".join(kept)


def lines_before(window: bytes, place: int) -> str:
    """The lines before a place of the window, as many as are kept."""
    before = window[max(0, place - BEFORE_BYTES) : place].replace(b"\r", b"\n")
    return plain(before.decode("utf-8", "replace"))


def frames_below(window: bytes, stop: int) -> str:
    """The traceback below a line, up to the end of the log, where its own error is missing.

    Who reports a failure puts the error into the title, and the log below it breaks off.
    """
    rest = window[stop : stop + AHEAD_BYTES + 1]
    if len(rest) > AHEAD_BYTES:
        return ""
    text = plain(rest.decode("utf-8", "replace"))
    if not holds_traceback(text):
        return ""
    lines = [cleaned(raw) for raw in rest.split(b"\n")]
    begun = (number for number, line in enumerate(lines) if holds_traceback(line.text))
    last = max(begun, default=0)
    return "" if any(exception_in(line.text) for line in lines[last + 1 :]) else text


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
