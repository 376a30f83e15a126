"""A log line without its wrapping: colours, progress bars, time, host and rank in front of it.

Launchers, pdsh, srun and torch each put something before the text that matters, on top of each
other. Patterns are bounded and lines are cut, so that no line can take long.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dsforge.diagnose.line_forms import Form, form_of

LONGEST = 2_000  # characters of a line that are looked at

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-9;?]{0,20}[ -/]?[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-_])"
)
_TIME = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"  # of syslog and journald
_WHEN = re.compile(_TIME)
_PREFIX = re.compile(
    r"\s{0,8}(?:"
    r"\[(?:rank|default)(?P<rank>\d{1,6})\]:?(?: (?! ))?"
    r"|\[\d{1,6},(?P<mpi>\d{1,6})\]<std(?:err|out)>:?(?: (?! ))?"
    r"|(?P<srun>\d{1,6}): ?(?=\D|$)"
    rf"|\[?{_TIME}\]?(?: |$)"
    r"|\([^()\n]{0,80}\bpid=\d{1,9}[^()\n]{0,60}\) ?"  # Ray
    r"|\[[A-Za-z][\w .-]{0,30}\]:? {1,2}(?=\[[A-Z]\w{1,20}\] {1,2}File \"|File \"|Traceback \()"
    r"|(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w.]{1,60}:\d{1,6}\] ?"  # vLLM
    r"|\d{1,3}%\|[^|\n]{0,400}\|[^\[\n]{0,40}\[[^\]\n]{0,60}\] ?"  # a progress bar
    rf"|{_MONTH} {{1,2}}\d{{1,2}} \d\d:\d\d:\d\d [\w.-]{{1,60}} (?:[\w./-]{{1,40}}\[\d{{1,9}}\]: )?"
    r"|[A-Za-z][\w.-]{0,60}[-_]\d{1,4} {1,20}\| ?"  # docker compose
    r"|>{1,3} ?|E {2,12}(?=\S)|│ {1,2}(?=\D)"  # quoted, pytest, a box
    r"|```(?=[^`\s])|`(?![^`\n]{0,400}`(?!\s*$))"  # a fence, a paste, a line that is all code
    r"|`(?=(?:\w{1,40}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception): [^`\n]{1,1800}`[.!?]?\s*$)"
    r"|raise \w{1,60}\([^\n]{0,300}?[()] (?=(?:\w{1,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception): )"
    r"|(?P<host>(?:\d{1,3}(?:\.\d{1,3}){3}|worker-\d{1,5})(?=: (?!Permission denied))"
    r"|[A-Za-z][\w.-]{0,60}-?\d{1,4}"
    r"(?=: \s*(?:\[|Traceback|File |[\w.]{1,60}(?:Error|Exception)|Killed|ssh|/))): "
    r")"
)
_RANK = re.compile(r"\b(?:global_?)?rank[ :=]{0,3}(\d{1,6})\b", re.IGNORECASE)


class _Shown(dict[int, str]):
    """Each character as it may be shown; filled as they come."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if not character.isprintable() and character not in "\t\n":
            character = " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"
        self[code] = character
        return character


_SHOWN = _Shown()


def plain(text: str) -> str:
    """The text without colours and whatever else drives a terminal or turns text around."""
    return _ESCAPES.sub("", text).translate(_SHOWN)


class Line(NamedTuple):
    """The text of a line, and who said it: rank and host, where the line names them."""

    text: str
    rank: int | None
    host: str
    when: str
    whole: str = ""  # with its prefixes

    @property
    def form(self) -> Form:
        """Whether it is an error, a notice, source code, or plain."""
        return form_of(self.whole, self.text)


def cleaned(raw: bytes) -> Line:
    """The line without colours, control characters and prefixes."""
    text = plain(raw[: 2 * LONGEST].decode("utf-8", "replace"))[:LONGEST].rstrip()
    found = _WHEN.search(text, 0, 200)
    when = found.group().replace("T", " ").replace(",", ".") if found else ""
    rank, host = None, ""
    whole = text
    for _ in range(4):
        prefix = _PREFIX.match(text)
        if prefix is None or not prefix.group():
            break
        number = prefix["rank"] or prefix["mpi"] or prefix["srun"]
        rank = int(number) if number else rank
        host = prefix["host"] or host
        text = text[prefix.end() :]
    if rank is None:
        named = _RANK.search(text)
        rank = int(named.group(1)) if named else None
    return Line(text, rank, host, when, whole)
