"""One pass over a log: which rules match where, in bounded memory and time whatever the log is.

The file is read in windows. Logs repeat themselves: of the lines of a window, without digits and
capitals, only those never seen before are searched for the words of the rules, in C loops. What
then might know a line is decoded and matched. Every rule keeps its first hits; a word that occurs
endlessly without matching is given up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsforge.diagnose.line_forms import EXCEPTION, is_listed, is_mention
from dsforge.diagnose.log_line import LONGEST, Line, cleaned, plain
from dsforge.diagnose.rule import Hit, Rule, compiled
from dsforge.diagnose.rulebook import Rulebook

WINDOW_BYTES = 1 << 20
AHEAD_BYTES = 16_000  # a hit this close to the end waits for what follows it
BEFORE_BYTES = 8_000  # context that stays behind
OWN = ("cause: ", "  fix   ", "  line ")  # what dsforge itself has written under a failed run
SOURCE_INDENT = "    "  # of the code below a frame of a traceback
NARROW, WIDE = 60, 260  # bytes of a line that a terminal may have cut
END_BYTES = 16_000  # of a log, in which an error without a traceback is looked for
END_LINES = 5
ECHOES = ("ChildFailedError", "CalledProcessError", "SystemExit", "KeyboardInterrupt")
KEPT_HITS = 16  # of a rule in one file: one for each of the first ranks
INTERLEAVED = 4  # ranks whose lines may stand between two lines of one
TRIED_LINES = 1_000  # for one needle in one file
LONGEST_NEEDLE = 100
CUT_BYTES = 1 << 16  # of a line that are searched
KNOWN_BYTES = 16 << 20  # of lines known to say nothing

_LINE = re.compile(rb"[^\r\n]+")
_ENDING = re.compile(
    r"(?:^|[\[(:] ?)(?:fatal|error|failed|failure|abort(?:ed|ing)?|panic)(?=[: ]|$)|"
    r"\b(?:error|fatal|failed|failure): |core dumped",
    re.IGNORECASE,
)
_DIGITS = b"0123456789"
_FLAT = bytes(range(256)).lower().replace(b"\r", b"\n")

# What a run says it is doing; the last of them before a failure names the phase.
PHASES = (
    ("loading the model", (b"loading checkpoint shards", b"loading weights", b"from_pretrained")),
    ("building C++ ops", (b"emitting ninja build file", b"building extension module")),
    (
        "initialising the optimizer",
        (
            b"initializing optimizer states",
            b"zerostageenum",
            b"loading extension module cpu_adam",
            b"creating fp16 zero",
            b"creating torch.bfloat16 zero",
            b"time to load cpu_adam",
        ),
    ),
    ("training", (b"step ", b"step=", b"{'loss'", b"steps/s", b"iteration ")),
    (
        "saving a checkpoint",
        (
            b"saving model checkpoint",
            b"saving checkpoint",
            b"[torch] saving",
            b"checkpoint is about to be saved",
            b"weights being written",
        ),
    ),
)
SUCCESS = (b"exits successfully", b"weights written and checked", b"'train_runtime'")


class Scan(NamedTuple):
    """What one log says: hits in the order of their lines, and the last line that tells success."""

    file: str
    hits: tuple[Hit, ...]
    success_line: int
    lines: int


def scan(chunks: Iterable[bytes], file: str, rules: Rulebook) -> Scan:
    """The hits of all rules in a log that comes in pieces of any size."""
    scanner = _Scanner(file, rules)
    held = bytearray()
    for chunk in _parts(chunks):
        held += chunk
        if len(held) >= WINDOW_BYTES + AHEAD_BYTES + BEFORE_BYTES:
            used = scanner.look(bytes(held), len(held) - AHEAD_BYTES)
            del held[:used]
    scanner.look(bytes(held), len(held))
    scanner.look_at_the_end(bytes(held))
    hits = sorted(scanner.hits, key=lambda hit: hit.line)
    return Scan(file, tuple(hits), scanner.success_line, scanner.lines_before + held.count(b"\n"))


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks, none larger than a window."""
    for chunk in chunks:
        for start in range(0, len(chunk), WINDOW_BYTES):
            yield chunk[start : start + WINDOW_BYTES]


class _Scanner:
    """The state of one pass."""

    def __init__(self, file: str, rules: Rulebook) -> None:
        self.file = file
        self.hits: list[Hit] = []
        self.success_line = 0
        self.lines_before = 0  # line ends before the window
        self._seen = 0  # bytes of the window that are done
        self._phase, self._when = "", ""
        self._rules = rules
        self._by_needle: dict[bytes, list[str]] = {}
        self._tried: dict[bytes, int] = {}
        self._lines: dict[str, set[int]] = {name: set() for name in rules}
        for name, entry in rules.entries.items():
            for needle in entry.needles:
                self._by_needle.setdefault(needle.encode(), []).append(name)
        self._plain = {needle: needle.translate(None, _DIGITS) for needle in self._by_needle}
        self._known: set[bytes] = set()  # lines without digits that have no needle
        self._known_bytes = 0

    def look(self, window: bytes, end: int) -> int:
        """Match everything in the window up to `end`; how many bytes of it can be dropped."""
        lower = window.lower()
        for needle in self._candidates(window[self._seen : end + LONGEST_NEEDLE]):
            self._follow(needle, (window, lower), end)
        self._phase = self._phase_at(lower, end)
        for word in SUCCESS:
            place = lower.rfind(word, self._seen, end)
            if place >= 0:
                self.success_line = max(self.success_line, self._number(window, place))
        drop = max(0, end - BEFORE_BYTES)
        self.lines_before += window.count(b"\n", 0, drop)
        self._seen = end - drop
        return drop

    def _candidates(self, part: bytes) -> list[bytes]:
        """The needles that lines of this part may have; lines known to have none are left out."""
        flat = part.translate(_FLAT, _DIGITS).split(b"\n")
        lines = {line[:CUT_BYTES] for line in flat} - self._known
        text = b"\n".join(lines)
        found = [needle for needle in self._by_needle if self._plain[needle] in text]
        if self._known_bytes < KNOWN_BYTES:
            words = [self._plain[needle] for needle in found]
            dull = {line for line in lines if not any(word in line for word in words)}
            self._known |= dull
            self._known_bytes += sum(map(len, dull))
        return found

    def _follow(self, needle: bytes, window: tuple[bytes, bytes], end: int) -> None:
        """Try the rules of one needle on each line of the window that has it."""
        raw, lower = window
        place = lower.find(needle, self._seen, end + len(needle) - 1)
        while place >= 0:
            self._tried[needle] = self._tried.get(needle, 0) + 1
            waiting = [
                name for name in self._by_needle[needle] if len(self._lines[name]) < KEPT_HITS
            ]
            if not waiting or self._tried[needle] > TRIED_LINES:
                del self._by_needle[needle]
                return
            start, stop = _bounds(raw, place)
            self._match([self._rules[name] for name in waiting], raw, (start, stop), lower)
            place = lower.find(needle, max(stop, place + 1), end + len(needle) - 1)

    def _match(self, rules: list[Rule], raw: bytes, line: tuple[int, int], lower: bytes) -> None:
        """Add a hit for each rule whose pattern the line has."""
        said = cleaned(raw[slice(*line)])
        if said.text.startswith(OWN) or (
            said.text.startswith(SOURCE_INDENT) and _is_source(raw, line[0])
        ):
            return
        for rule in rules:
            lines = [(0, said.text), *_following(raw, line[1], said, rule.lines)]
            found = rule.match("\n".join(text for _, text in lines))
            found = found or _wrapped(rule, raw, line, said)
            if found is None or not _is_said(said, found.start()):
                continue
            number = self._number(raw, line[0])
            end = found.start() + len(found.group().rstrip())
            offset, shown = lines[min(found.string.count("\n", 0, end), len(lines) - 1)]
            if number + offset in self._lines[rule.id]:
                continue
            self._lines[rule.id].add(number + offset)
            context = _context(raw, line[0])
            if offset:
                context += "\n".join(text for distance, text in lines if distance < offset)
            if rule.context and not compiled(rule.context).search(_last_frames(context) + shown):
                continue
            self.hits.append(
                Hit(
                    rule=rule,
                    file=self.file,
                    line=number + offset,
                    rank=said.rank,
                    when=said.when or _last_time(context),
                    text=shown.strip() or said.text.strip(),
                    values={name: value or "" for name, value in found.groupdict().items()},
                    before=context,
                    phase=self._phase_at(lower, line[0]),
                    form=said.form,
                )
            )

    def look_at_the_end(self, window: bytes) -> None:
        """Add what no needle finds: an exception or an error in the last lines."""
        start = max(window.rfind(b"\n", 0, max(0, len(window) - END_BYTES)), 0)
        lines = [(m.start() + start, cleaned(m.group())) for m in _LINE.finditer(window[start:])]
        for place, line in lines:
            found = EXCEPTION.match(line.text.lstrip())
            if found and line.form == "error" and found["kind"].rpartition(".")[2] not in ECHOES:
                self._add("error-line", window, (place, line), found.groupdict())
                return
        if any(hit.rule.kind not in ("exit", "hint") for hit in self.hits):
            return
        for place, line in lines[-END_LINES:]:
            if _ENDING.search(line.text) and line.form in ("error", "plain"):
                values = {"kind": "", "what": line.text.strip()[:300]}
                self._add("unknown-end", window, (place, line), values)
                return

    def _add(
        self, rule: str, window: bytes, said: tuple[int, Line], values: dict[str, str]
    ) -> None:
        """Add a hit of a rule on the line at a place of the window."""
        place, line = said
        context = _context(window, place)
        if rule not in self._rules or line.text.startswith(OWN):
            return
        self.hits.append(
            Hit(
                rule=self._rules[rule],
                file=self.file,
                line=self._number(window, place),
                rank=line.rank,
                when=line.when or _last_time(context),
                text=line.text.strip(),
                values={name: value or "" for name, value in values.items()},
                before=context,
                phase=self._phase,
                form=line.form,
            )
        )

    def _number(self, window: bytes, place: int) -> int:
        """The number of the line at a place of the window."""
        return self.lines_before + window.count(b"\n", 0, place) + 1

    def _phase_at(self, lower: bytes, place: int) -> str:
        """What the run was doing at a place of the window."""
        last, phase = -1, self._phase
        for name, words in PHASES:
            found = max(lower.rfind(word, 0, place) for word in words)
            last, phase = (found, name) if found > last else (last, phase)
        return phase


def _bounds(window: bytes, place: int) -> tuple[int, int]:
    """Begin and end of the line around a place; of a huge line, the part around it."""
    low, high = max(0, place - LONGEST), min(len(window), place + LONGEST)
    start = max(window.rfind(b"\n", low, place), window.rfind(b"\r", low, place)) + 1
    ends = [end for end in (window.find(b"\n", place, high), window.find(b"\r", place, high))
            if end >= 0]  # fmt: skip
    return max(start, low), min(ends, default=high)


def _is_source(window: bytes, start: int) -> bool:
    """Whether the line before names a frame: then this one is source code, and proves nothing."""
    before = window[max(0, start - LONGEST) : max(0, start - 1)].rpartition(b"\n")[2]
    return b'File "' in before and b", line " in before


def _following(window: bytes, stop: int, said: Line, count: int) -> list[tuple[int, str]]:
    """The next lines of the same speaker, where lines name theirs, each with its distance."""
    taken: list[tuple[int, str]] = []
    if not count:
        return taken
    ahead = window[stop + 1 : stop + AHEAD_BYTES].split(b"\n", INTERLEAVED * count + 1)
    for distance, raw in enumerate(ahead[: INTERLEAVED * count], start=1):
        line = cleaned(raw)
        if _same(said, line):
            taken.append((distance, line.text))
        if len(taken) == count:
            break
    return taken


def _wrapped(rule: Rule, raw: bytes, line: tuple[int, int], said: Line) -> re.Match[str] | None:
    """The match of a rule in a line that a terminal has cut into several."""
    if not NARROW <= line[1] - line[0] <= WIDE:
        return None
    following = [text for _, text in _following(raw, line[1], said, 2)]
    if not following or len(following[0]) > WIDE:
        return None
    for joint in ("", " "):
        found = rule.match(joint.join([said.text, *following])[:LONGEST])
        if found and found.start() < len(said.text) < found.end():
            return found
    return None


def _is_said(line: Line, start: int) -> bool:
    """Whether a line reports what stands at a place, and does not only show or discuss it."""
    form = line.form
    if form == "source" or is_listed(line.text, start):
        return False
    return form != "plain" or not is_mention(line.text, start)


def _last_frames(context: str) -> str:
    """The last traceback of a context, or all of it where it has none."""
    return context.rpartition("Traceback (most recent call last)")[2]


def _context(window: bytes, place: int) -> str:
    """The lines before a place of the window, as many as are kept."""
    before = window[max(0, place - BEFORE_BYTES) : place].replace(b"\r", b"\n")
    return plain(before.decode("utf-8", "replace"))


def _same(one: Line, other: Line) -> bool:
    """Whether two lines can be of the same process."""
    return not (one.rank is not None and other.rank not in (one.rank, None)) and (
        not one.host or not other.host or one.host == other.host
    )


def _last_time(text: str) -> str:
    """The time of the last line that has one."""
    for line in reversed(text.splitlines()[-40:]):
        when = cleaned(line.encode()).when
        if when:
            return when
    return ""
