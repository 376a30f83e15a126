"""One pass over a log: which rules match where, in bounded memory and time whatever the log is.

The file is read in windows. Logs repeat themselves: of the lines of a window, without digits and
capitals, only those never seen before are searched for the words of the rules, in C loops. What
then might know a line is decoded and matched. Every rule keeps its first hits; a word that occurs
endlessly without matching is given up.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsforge.diagnose.line_forms import exception_in, form_of
from dsforge.diagnose.log_context import (
    AHEAD_BYTES,
    BEFORE_BYTES,
    bounds,
    cut_lines,
    failed_assertion,
    following,
    frames_below,
    is_said,
    is_source,
    last_frames,
    last_time,
    lines_before,
    raised_in_source,
    taken_back,
    without_diffs,
    wrapped,
)
from dsforge.diagnose.log_line import Line, cleaned, plain
from dsforge.diagnose.rule import ANSWERS, MatchedLine, Rule
from dsforge.diagnose.rulebook import DIGITS, Rulebook
from dsforge.diagnose.run_phases import STEPS, SUCCESS, last_steps, phase_at
from dsforge.diagnose.traceback_frames import (
    TRACEBACK,
    begins_traceback,
    heading_exception,
    is_frame,
)

WINDOW_BYTES = 1 << 20
OWN = ("cause: ", "  fix   ", "  line ")  # what dsforge itself has written under a failed run
SOURCE_INDENT = "    "  # of the code below a frame of a traceback
END_BYTES = 16_000  # of a log, in which an error without a traceback is looked for
END_LINES = 5
STRAIGHT = {
    quote.encode(): straight
    for quotes, straight in (("\u2018\u2019", b"'"), ("\u201c\u201d", b'"'))
    for quote in quotes
}
BEGUN = (b"\xe2\x80", b"\xe2", b"\r")  # first bytes of what is replaced, at the end of a chunk
ECHOES = (  # errors that only follow another, or hand it on
    *("ChildFailedError", "CalledProcessError", "SystemExit", "KeyboardInterrupt"),
    *("RayTaskError", "DatasetGenerationError"),
)
KEPT_HITS = 16  # of a rule in one file: one for each of the first ranks
TRIED_LINES = 1_000  # for one needle in one file
LONGEST_NEEDLE = 100
CUT_BYTES = 1 << 16  # of a line that are searched
SHORT_BYTES = 4_500  # of a text that may be a question, in any script
KNOWN_BYTES = 16 << 20  # of lines known to say nothing

_LINE = re.compile(rb"[^\r\n]+")
_ENDING = re.compile(
    r"(?:^|[\[(:] ?)(?:fatal|error|failed|failure|abort(?:ed|ing)?|panic)(?=[: ]|$)|"
    r"\b(?:error|fatal|failed|failure|failure '[^'\n]{1,80}') ?: (?!true|false)|core dumped|"
    r"\bfailure [\w./]{1,80}:\d|command not found|died or was killed|"
    r"\b[A-Z]\w{1,60}(?:Error|Exception) (?:occurred|was raised)\b|"
    r"Max retries exceeded|lost communication|"
    r"^Unrecognized |^[a-z]{2,40}(?:error|exception): |\berror in:? \S{1,200}:\d|"
    r"\berror \(\d{1,4}\) ?:|following error:",
    re.IGNORECASE,
)
_GAVE_UP = re.compile(  # a notice that ends the program
    r"\b(?:unable|failed|could not|cannot)\b[^\n]{1,300}\b(?:exit|abort|giv|quitt)ing\b",
    re.IGNORECASE,
)
_KERNEL = re.compile(
    r"\[ {0,8}\d{1,8}\.\d{6}\] "
)  # what hosts print as they start counts as normal

_FLAT = bytes(range(256)).lower().replace(b"\r", b"\n")


def proves_nothing(hit: MatchedLine) -> bool:
    """Whether a hit alone is no answer: a launcher's last word, a hint, a notice."""
    unsure = hit.form == "notice" or (hit.form == "plain" and hit.rule.errors_only)
    return hit.rule.kind in ("exit", "hint") or (unsure and not hit.rule.any_level)


class Scan(NamedTuple):
    """What one log says: hits in the order of their lines, and the last lines that tell success."""

    file: str
    hits: tuple[MatchedLine, ...]
    success_line: int
    lines: int
    progress_line: int = 0  # after it, training went on for several steps; 0: nowhere
    text: str = ""  # all of it, where it is short enough to be a sentence or two


def scan(chunks: Iterable[bytes], file: str, rules: Rulebook) -> Scan:
    """The hits of all rules in a log that comes in pieces of any size."""
    scanner = _Scanner(file, rules)
    held = bytearray()
    for chunk in _parts(chunks):
        held += chunk
        if len(held) >= WINDOW_BYTES + AHEAD_BYTES + BEFORE_BYTES:
            used = scanner.look(bytes(held), len(held) - AHEAD_BYTES)
            del held[:used]
    if scanner.is_whole(held):
        held[:] = without_diffs(bytes(held))
    scanner.look(bytes(held), len(held))
    scanner.look_across_cuts(bytes(held))
    scanner.look_at_the_end(bytes(held))
    hits = sorted(scanner.hits, key=lambda hit: hit.line)
    lines = scanner.lines_before + held.count(b"\n")
    text = bytes(held).decode("utf-8", "replace") if scanner.is_whole(held) else ""
    return Scan(file, tuple(hits), scanner.success_line, lines, scanner.progress_line, text)


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks, none larger than a window; curled quotes and line ends of Windows are plain."""
    rest = b""  # the begin of a quote or a line end
    for chunk in chunks:
        for start in range(0, len(chunk), WINDOW_BYTES):
            part = rest + chunk[start : start + WINDOW_BYTES]
            rest = next((begin for begin in BEGUN if part.endswith(begin)), b"")
            part = part[: len(part) - len(rest)].replace(b"\r\n", b"\n")
            for curled, straight in STRAIGHT.items():
                part = part.replace(curled, straight)
            yield part
    yield rest


def _evidence(raw: bytes, line: tuple[int, int]) -> Line | None:
    """The line, where it can say what failed: not our own words, nor the source below a frame."""
    said = cleaned(raw[slice(*line)])
    if said.text.startswith(OWN):
        return None
    asserted = failed_assertion(raw, line[1], said)  # below its frame, or without it
    code = said.text.startswith(SOURCE_INDENT) and not is_frame(said.text)  # pip indents frames
    if asserted or not code:
        return asserted or said
    return raised_in_source(raw, line, said) or (None if is_source(raw, line[0]) else said)


def _context(raw: bytes, line: tuple[int, int]) -> str:
    """The lines before a line; without a traceback there, one that breaks off below it, too."""
    before = lines_before(raw, line[0])
    if TRACEBACK in before or last_frames(before):
        return before
    return before + frames_below(raw, line[1])


class _Scanner:
    """The state of one pass."""

    def __init__(self, file: str, rules: Rulebook) -> None:
        self.file = file
        self.hits: list[MatchedLine] = []
        self.success_line = 0
        self._steps: deque[int] = deque(maxlen=STEPS)  # lines of the last that were reported
        self.lines_before = 0  # line ends before the window
        self._seen = 0  # bytes of the window that are done
        self._phase, self._when = "", ""
        self.rules = rules
        self._by_needle = dict(rules.by_needle)
        self._tried: dict[bytes, int] = {}
        self._lines: defaultdict[str, set[int]] = defaultdict(set)
        self._known: set[bytes] = set()  # lines without digits that have no needle
        self._known_bytes = 0

    def look(self, window: bytes, end: int) -> int:
        """Match everything in the window up to `end`; how many bytes of it can be dropped."""
        lower = window.lower()
        for needle in self._candidates(window[self._seen : end + LONGEST_NEEDLE]):
            self._follow(needle, (window, lower), end)
        self._phase = phase_at(lower, end, self._phase)
        for word in SUCCESS:
            place = lower.rfind(word, self._seen, end)
            if place >= 0:
                self.success_line = max(self.success_line, self._number(window, place))
        for place in last_steps(lower, self._seen, end):
            self._steps.append(self._number(window, place))
        drop = max(0, end - BEFORE_BYTES)
        self.lines_before += window.count(b"\n", 0, drop)
        self._seen = end - drop
        return drop

    def is_whole(self, window: bytes | bytearray) -> bool:
        """Whether a window is all of a short log."""
        return not self.lines_before and len(window) <= SHORT_BYTES

    @property
    def progress_line(self) -> int:
        """The line from which several steps were still reported; 0 where fewer were."""
        return self._steps[0] if len(self._steps) == STEPS else 0

    def _candidates(self, part: bytes) -> list[bytes]:
        """The needles that lines of this part may have; lines known to have none are left out."""
        flat = part.translate(_FLAT, DIGITS).split(b"\n")
        lines = {line[:CUT_BYTES] for line in flat} - self._known
        text, without_digits = b"\n".join(lines), self.rules.without_digits
        found = [n for n in self.rules.needles_in(text) if n in self._by_needle]
        if self._known_bytes < KNOWN_BYTES:
            parts = [without_digits[needle] for needle in found]
            dull = {line for line in lines if not any(part in line for part in parts)}
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
            start, stop = bounds(raw, place)
            self._match([self.rules[name] for name in waiting], raw, (start, stop), lower)
            place = lower.find(needle, max(stop, place + 1), end + len(needle) - 1)

    def _match(self, rules: list[Rule], raw: bytes, line: tuple[int, int], lower: bytes) -> None:
        """Add a hit for each rule whose pattern the line has."""
        said = _evidence(raw, line)
        if said is None:
            return
        for rule in rules:
            lines = [(0, said.text), *following(raw, line[1], said, rule.lines)]
            found = rule.match("\n".join(text for _, text in lines))
            if found and taken_back(rule, found, raw, line=line, said=said):
                continue
            found = found or wrapped(rule, raw, line, said)
            if found is None or not is_said(said, found.start()):
                continue
            number = self._number(raw, line[0])
            end = found.start() + len(found.group().rstrip())
            offset, shown = lines[min(found.string.count("\n", 0, end), len(lines) - 1)]
            if number + offset in self._lines[rule.id]:
                continue
            self._lines[rule.id].add(number + offset)
            context = _context(raw, line)
            if offset:
                context += "\n".join(text for distance, text in lines if distance < offset)
            if rule.context and not rule.fits(found, last_frames(context) + shown):
                continue
            self.hits.append(
                MatchedLine(
                    rule=rule,
                    file=self.file,
                    line=number + offset,
                    rank=said.rank,
                    when=said.when or last_time(context),
                    text=shown.strip() or said.text.strip(),
                    values={name: value or "" for name, value in found.groupdict().items()},
                    before=context,
                    phase=phase_at(lower, line[0], self._phase),
                    form=form_of(shown, shown) if offset else said.form,
                    after=self._rest(raw, line[0]),
                )
            )

    def look_across_cuts(self, window: bytes) -> None:
        """Where no cause is known: the words that a terminal has divided between two lines."""
        lasting = (hit for hit in self.hits if hit.line >= self.progress_line)
        if any(hit.rule.kind in ANSWERS and not proves_nothing(hit) for hit in lasting):
            return
        places = cut_lines(window, max(window.rfind(b"\n", 0, max(0, len(window) - END_BYTES)), 0))
        text = b"\n".join(joined for _, joined in places)
        for needle in self.rules.needles_in(text.translate(None, DIGITS)):
            if needle not in text or needle not in self._by_needle:
                continue
            names = self._by_needle[needle]
            rules = [rule for name in names if (rule := self.rules[name]).kind in ANSWERS]
            for line, joined in places:
                if needle in joined:
                    self._match(rules, window, line, window.lower())

    def look_at_the_end(self, window: bytes) -> None:
        """Add what no needle finds: an exception or an error in the last lines."""
        start = max(window.rfind(b"\n", 0, max(0, len(window) - END_BYTES)), 0)
        lines = [(m.start() + start, cleaned(m.group())) for m in _LINE.finditer(window[start:])]
        for echoes in (False, True):  # an error that only follows another is better than none
            for place, line in lines:
                found = exception_in(line.text)
                if found is None or line.form != "error":
                    continue
                name = found["kind"].partition("(")[0].rpartition(".")[2]
                if (name in ECHOES) is echoes:
                    self._add("error-line", window, (place, line), found.groupdict())
                    return
            if not self._nothing_proven():
                break
        if self._nothing_proven():
            gave_up = [said for said in lines if _GAVE_UP.search(said[1].text)]
            self._look_for_an_ending(window, gave_up or lines[-END_LINES:])
        frames = [said for said in lines if is_frame(said[1].text)]
        cut_off = frames or [said for said in lines if begins_traceback(said[1].text)]
        went_on = cut_off and self._number(window, cut_off[-1][0]) < self.progress_line
        if cut_off and not went_on and self._only_notices():
            self._look_for_an_ending(window, cut_off[-1:])

    def _nothing_proven(self) -> bool:
        """Whether no hit is an answer to how the log ends."""
        return all(proves_nothing(hit) or hit.line < self.progress_line for hit in self.hits)

    def _only_notices(self) -> bool:
        """Whether no hit tells of a failure, not even that there was one."""
        return all(proves_nothing(hit) and hit.rule.kind != "exit" for hit in self.hits)

    def _look_for_an_ending(self, window: bytes, lines: list[tuple[int, Line]]) -> None:
        """Add the first of these lines that says in plain words that something failed."""
        for place, line in lines:
            gave_up = line.form == "notice" and _GAVE_UP.search(line.text)
            if _KERNEL.match(line.text) or not (gave_up or line.form in ("error", "plain")):
                continue
            found = _ENDING.search(line.text)
            warned = line.form == "error"
            begun = begins_traceback(line.text) or is_frame(line.text)
            cut_off = begun and place == lines[-1][0] and self._only_notices()
            if warned or cut_off or gave_up or (found and is_said(line, found.start())):
                values = {"kind": heading_exception(line.text), "what": line.text.strip()[:300]}
                self._add("unknown-end", window, (place, line), values)
                return

    def _add(
        self, rule: str, window: bytes, said: tuple[int, Line], values: dict[str, str]
    ) -> None:
        """Add a hit of a rule on the line at a place of the window."""
        place, line = said
        context = lines_before(window, place)
        if begins_traceback(line.text):
            context += f"{line.text}{frames_below(window, bounds(window, place)[1])}"
        if rule not in self.rules or line.text.startswith(OWN):
            return
        self.hits.append(
            MatchedLine(
                rule=self.rules[rule],
                file=self.file,
                line=self._number(window, place),
                rank=line.rank,
                when=line.when or last_time(context),
                text=line.text.strip(),
                values={name: value or "" for name, value in values.items()},
                before=context,
                phase=self._phase,
                form=line.form,
                after=self._rest(window, place),
            )
        )

    def _rest(self, window: bytes, place: int) -> str:
        """The lines after that of a place, in a text that is short enough to be a report."""
        if not self.is_whole(window):
            return ""
        return plain(window[place:].partition(b"\n")[2].decode("utf-8", "replace"))

    def _number(self, window: bytes, place: int) -> int:
        """The number of the line at a place of the window."""
        return self.lines_before + window.count(b"\n", 0, place) + 1
