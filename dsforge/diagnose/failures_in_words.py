"""A failure that somebody tells in a sentence or a title, in place of its log.

Such a text quotes a message, or half of one, within prose, which in a log would only mention it.
Where a short text shows nothing as a log, and says that something failed, what it quotes is read
as if a program had printed it; rules/in_words.yaml reads the rest.
"""

from __future__ import annotations

import re

from dsforge.diagnose.log_line import cleaned
from dsforge.diagnose.quoted_messages import (
    EXCEPTION,
    messages,
    quoted,
    raised,
    unlabelled,
    whole_message,
)
from dsforge.diagnose.rule import ANSWERS, MatchedLine
from dsforge.diagnose.traceback_frames import TRACEBACK, is_frame

LONGEST = 1_500  # characters of a text that may be a question
MOST_LINES = 8
LEAST_MINE = 3  # places where somebody speaks of himself, in a question of any length
LEAST_LINES = 3  # of a report: a title, and what stands below
LONGEST_MESSAGE, MOST_MESSAGES = 600, 3  # characters and lines of messages without their exception
MOST_BEFORE = 40  # characters of it before what a rule knows
NAMES = ("RuntimeError: ", "ValueError: ")  # that it is given, as most have
QUOTED = 0.9  # factor on the confidence, as a part of a message may be of another one
_FAILS = re.compile(
    r"(?i:\b(?:errors?|fail(?:s|ed|ure|ing)?|crash\w{0,3}|exceptions?|raises?|throws?|killed|"
    r"hangs?|hung|hanging|stuck(?:s|ed)?|free[sz]\w{1,3}|deadlocks?|timed? ?out|timeouts?|"
    r"OOM(?:s|ed|ing)?|out of memory|encounter\w{0,3}|return code|"
    r"exits? (?:with )?(?:return |status )?code|segfaults?|segmentation fault|mismatch(?:es)?|"
    r"no progress|not progress\w{0,3}|just stops|has no attribute|unexpected keyword|"
    r"no module named|not applied|no effect|identical to|assert|"
    r"same (?:old )?(?:response|output|result)s?)(?![a-z])|"
    r"(?<![a-z])nan(?![a-z])|(?<![a-z])loss(?![a-z])[^\n]{0,30}(?:(?<![\d.])0(?![\d.])|\bzero\b))|"
    r"[A-Z]\w{1,60}(?:Error|Exception)(?![a-z])|报错|错误|失败|卡住|卡死|挂起|出错|显存|爆|为0|异常"
)
# Somebody to whom it happened: who says I, asks, or gives the exception by its name.
_OWN = re.compile(
    r"\b(?:I|I'm|I've|my|My|we|We|our|me|anyone|[Hh]elp|[Ww]hy|[Ss]olve|encounter\w{0,3})\b|"
    r"[Hh]ow (?:can|do|to) (?:I|we|fix|solve)\b|[Tt]his (?:error|problem|issue)|following error|"
    r"\b(?:the|an) error (?:message )?[\"“`']\w|"
    r"\bwith (?:the )?(?:error |message |error message )[\"“`']\w|"
    r"\bi (?:try|tried|run|ran|get|got|have|use|train)\b|"
    r"\b[Tt]he (?:code|program|script|process|model|adapter) (?:is|was|gets|hangs|stops)\b|"
    r"error in the title|[A-Z]\w{1,60}(?:Error|Exception)(?![a-z])|"
    r"\?[ \t]*(?:\n|$)|就报|会报|这个问题|请问|我|您好|你好|求问|求助|有没有人|有人知道|大佬|"
    r"报错|怎么|如何|解决|老是|什么|为啥|一直|ですか|ません|できない|까요|습니다|"
    r"\b(?:tengo|ayuda|alguien|por qué|ajuda)\b"
)
_NO = re.compile(r"\b(?i:cannot|can't|could not|couldn't|not|no|invalid|unable|missing|illegal)\b")
_YOURS = re.compile(r"\b[Yy]ou\b[^.!?\n]{0,40}$")  # what a page says to its readers
_TELLS = re.compile(  # what is no complaint of somebody who speaks of himself
    r"\bI(?:'ve)? (?:have |just |also )?(?:fix(?:ed)?|releas(?:e|ed)|wrote|written|explain(?:ed)?|"
    r"show|review(?:ed)?|announce|publish(?:ed)?)\b|\bso I (?:use|take|set|run)\b"
)
_FOLLOWED = re.compile(
    r"\b[Ff]ollow(?:ed|ing) (?:the|this|your|a) (?:\w+ ){0,3}(?:guide|tutorial)\b"
)
_MINE = re.compile(r"\b(?:I|I'm|I've|I'd|[Mm]y)\b|我|求助|请问")
# An end that nothing explains is a failure, and so is what a question asks about.
_QUIETLY = re.compile(
    r"\b(?:exit|quit|stop|end|terminat|crash|hang|stuck|freez|froze|kill|close|progress)\w{0,4}\b"
    r"[^.\n]{0,60}?(?P<quietly>\b(?:without|with no|no|any)\b[^.,\n]{0,20}?"
    r"\b(?:error|message|output|log|trace|warning|response|reason|information)\w{0,4})"
)
_ASKED = re.compile(
    r"\b(?:[Ww]hat|[Hh]ow|[Ww]hy|[Ww]here)\b[^.?\n]{0,30}\b(?:could|might|should|would)\b"
    r"[^.?\n]{0,60}\?|\b[Cc](?:ould|an) (?:any|some|you)[^.?\n]{0,80}\?"
)
# Words of what did not happen, or may happen to anybody.
_MAY = re.compile(
    r"(?i:\b(?:would|could|might|may|should)\b|"
    r"\bwill (?:almost |most )?(?:certainly|likely|probably)\b|"
    r"\b(?:avoid|prevent|detect)\w{0,3}\b|\bor else\b|\bin (?:which )?case\b|\bsee note\b|"
    r"\bno (?:\w+ ){0,2}(?:hangs?|OOM|errors?|deadlocks?|time-?outs?|crash\w{0,3}|NaNs?)\b|"
    r"\bruns? (?:clean|fine|well)\b)"
)
_SENTENCE = re.compile(r"[.!?]+\s+|\N{IDEOGRAPHIC FULL STOP}")
_LONGEST_TITLE = 200
_VERBS = (  # of titles that say what was changed
    "fix(?:es|ed)?|add(?:s|ed)?|update|avoid|prevent|handle|improve|reduce|support|document|catch|"
    "retry|make|allow|bump|remove|refactor|revert|load|skip|use|test|clarify|mention|workaround|"
    "expose|enable|introduce|implement|rename|move|change|set|log|print|report|detect|ensure|"
    "check(?! batch related)|switch|increase|decrease|close[sd]?|merge|restore|save|show|tell|"
    "delay|drop|replace|extend"
)
# What somebody did about a failure, or says of failures in general.
_OF_NONE = re.compile(
    r"\A[\s>]{0,4}(?:\[\w[^\]\n]{0,30}\]:?\s{0,2}|\w{1,12}(?:\([\w/ -]{1,30}\))?: )?"
    rf"(?i:(?:{_VERBS})\b(?! vs\b))|"
    r"\bwithout (?:any |an? |the )?(?:\w+ )?(?:error|problem|issue|timeout|OOM|crash)|"
    r"\bno longer (?:fails?|hangs?|crash\w{0,3}|raises?|happens?|occurs?|an? (?:issue|problem))|"
    r"\bgo(?:es)? away\b|\busually\b|(?:^\W{0,4}|[.!?] )"
    r"(?i:(?:if|when)(?! (?:I|we|the|this|it)\b)|should|what is|what does|how to)\b[^\n]{0,80}"
    r"\b(?:see|set|use|happens?|means?|avoid|prevent|handle)\b|"
    r"\b(?:is|are|was|were|been|now) (?:fixed(?! (?:at|to)\b)|solved|resolved)\b|\bworks now\b|"
    r"(?i:\berror handling\b|\b(?:defeat|techniques?|guide|tutorial|tips)\b)|"
    r"\b(?:is|are|has|have) (?:been )?gone\b|^usage: |"
    r"\bby default\b|\bnot observed\b|\bis avoided\b|\bno problem\b|\bshows that\b|"
    r"\b(?:would like|want) to know (?:whether|if)\b|"
    r"\A(?:Is|Are|Can|Could|Does|Do) (?!anyone\b)|"
    r"\b(?:can|may|might|should) help\b",
    re.MULTILINE,
)
_NO_REPORT = re.compile(r"\s*\[(?i:docs?|answer|features?|faq|rfc|tutorial|release|proposal)\b")
_PLACE = re.compile(r"^\S{1,200}\.\w{1,4}:\d{1,6}:")  # of a line in a file, as grep shows it
_OF_GUIDE = re.compile(rf"^(?i:what|how|when|why) (?!(?:can|do|to) (?:I|we)\b)|{_PLACE.pattern}")
_OF_A_PAGE = re.compile(  # lists, tables and code, as documents have them; reports, too
    rf"^\s{{0,8}}--?\w[\w-]{{0,30}}[ ,=]|{_PLACE.pattern}|"
    r"[|`]{3}|^\s{0,8}[-*#$\N{BULLET}] ",
    re.MULTILINE,
)
# What somebody says to have met, before the message.
_MET = re.compile(
    r"(?i:\b(?:get|gets|got|getting|gave|gives|give|sa(?:ys|y|id|w|ying)|see|seeing|receive[sd]?|"
    r"throw(?:s|n|ing)?|threw|rais(?:es|ed|ing)|encounter(?:s|ed|ing)?|show(?:s|ed|ing)?|prints?|"
    r"printed|reports?|reported|complain(?:s|ed|ing)?|prompts?|returns?|returned|"
    r"(?:fail|crash|stop|die|end|exit|error|break)(?:s|ed|ing)?(?: out)? with|"
    r"(?:error|exception|message|warning|problem|issue)(?: message)?(?: is| was| says?| reads?)?)\b"
    r"|提示|报错|错误|显示|出现)[^.!?(){}\[\]=\n\"'`“\u2018]{0,40}$"
)
_FLAT = re.compile(re.escape(TRACEBACK) + r":\s{0,4}File \S")
_LOST_END = re.compile(
    r"\s+(?=File \"[^\"\n]{1,300}\", line \d)|"
    r"\s+(?=(?:\w{1,40}\.){0,6}[A-Z]\w{1,60}(?:Error|Exception): )"
)
_CODE = re.compile(r"^\s*(?:except|raise|assert|return|print|if|for|with|import|from|def|class)\b")
_WITHOUT_BLANKS = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]{4}")
_MARK = re.compile(r"\A\s{0,8}#{1,4} ")


def told(text: str) -> list[tuple[int, str]]:
    """What a text in words says that a program printed, each with the number of its line from 1.

    Empty where the text is none that tells a failure. What a line quotes stands before the line.
    """
    words, log = _words_and_log(text)
    prose = "\n".join(words)
    if log or tells_no_failure(text) or not _FAILS.search(prose) or not _is_report(words):
        return []
    return [
        (number, one)
        for number, line in enumerate(words, start=1)
        for one in (*quoted(line), *_complaints(line))
    ]


def above_frames(text: str) -> list[tuple[int, str]]:
    """The lines of a traceback that breaks off, then the messages that the words above it quote.

    Empty where there are none, or the words tell no failure.
    """
    words, log = _words_and_log(text)
    prose = "\n".join(words)
    if not log or tells_no_failure(prose) or not _FAILS.search(prose):
        return []
    said = [(n, line) for n, line in enumerate(words, 1) if cleaned(line.encode()).form != "notice"]
    found = [(number, one) for number, line in said for one in quoted(line)]
    return [*enumerate(log, start=len(words) + 1), *found] if found else []


def _words_and_log(text: str) -> tuple[list[str], list[str]]:
    """The lines above the first frame of a traceback, and those from it on."""
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if _shows_traceback(line)), len(lines))
    return lines[:first], lines[first:]


def _shows_traceback(line: str) -> bool:
    """Whether a line heads a traceback, whatever stands before that, or is a frame."""
    return TRACEBACK in line or is_frame(cleaned(line.encode()).text)


def complaints(text: str) -> list[tuple[int, str]]:
    """The lines of a report that says what goes wrong in other words than those of errors.

    Of a text that nobody says of himself only the title counts.
    """
    lines = text.splitlines()
    if tells_no_failure(text) or 'File "' in text or _has_output(lines):
        return []
    own = _OWN.search(text) or _is_title(text.strip())
    read = lines if own else lines[:1] if _is_headed(text) else []
    return [
        (number, " ".join(said))
        for number, line in enumerate(read, start=1)
        if (said := [one for one in _SENTENCE.split(unlabelled(line)) if one and not _may(one)])
    ]


def reported(text: str) -> list[tuple[int, str]]:
    """What a report of any form says that failed: its title, and errors named in its lines.

    Around them stand settings, code and what a program printed before, which are not read.
    """
    numbered = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(numbered) < LEAST_LINES or not _heads_report(numbered[0][1], text):
        return []
    (number, title), *rest = numbered
    title = _untitled(title)
    fails = _FAILS.search(title) and not _may(title)
    found = [(number, one) for one in (*quoted(title), title)] if fails else []
    for number, line in rest:
        said = cleaned(line.encode())
        if said.form in ("source", "notice") or _CODE.search(said.text) or _may(line):
            continue
        if EXCEPTION.search(line):
            found += [(number, one) for one in quoted(line)]
        elif _MINE.search(line) and not _says_none(line):
            found += [(number, one) for one in _complaints(line)]
    return found


def met(text: str) -> list[tuple[int, str]]:
    """The messages that somebody says to have met or asks about, in any line of a text.

    They stand in quotes or begin with their exception; around them may stand whatever a report has.
    """
    mine = _MINE.search(text) is not None
    return [
        (number, one)
        for number, line in enumerate(text.splitlines(), start=1)
        if (mine or "?" in line) and not _CODE.match(line) and not _says_none(line)
        for start, one in messages(line)[:MOST_MESSAGES]
        if _is_met(line[max(0, start - _LONGEST_TITLE) : start].rstrip("*_~\"'`“ "))
    ]


def _is_met(before: str) -> bool:
    """Whether words before a message say that somebody met it, and not that anybody may."""
    return bool(_MET.search(before)) and not (_YOURS.search(before) or _may(before))


def unexplained(text: str) -> list[tuple[int, str]]:
    """The messages that somebody met and that say of themselves that something failed."""
    return [(number, one) for number, one in met(text) if _FAILS.search(one) or _NO.search(one)]


def asked(text: str) -> list[tuple[int, str]]:
    """The sentences of a long question in which somebody speaks of himself, or asks."""
    if len(_MINE.findall(text)) < LEAST_MINE:
        return []
    own = [
        (number, line.strip())
        for number, line in enumerate(text.splitlines(), start=1)
        if (_MINE.search(line) or "?" in line) and not _CODE.match(line)
    ]
    asks = any("?" in line for _, line in own)
    told_of = any(_says_none(line) or _TELLS.search(line) for _, line in own)
    return [] if told_of or not asks else [one for one in own if not _may(one[1])]


def _heads_report(line: str, text: str) -> bool:
    """Whether a first line is the title of a failure, or that of somebody's report."""
    title = _untitled(line)
    words = _has_words(title) and len(title) <= _LONGEST_TITLE
    if not words or _shows_traceback(line):
        return False
    if cleaned(line.encode()).form not in ("plain", "error"):
        return False
    if _says_none(line.strip()) or _says_none(title) or _OF_GUIDE.search(title):
        return False
    return bool(_FAILS.search(title) or _MINE.search(text))


def _has_words(line: str) -> bool:
    """Whether a line is several words, in any script, and no whole sentence."""
    return (line.count(" ") > 1 or bool(_WITHOUT_BLANKS.search(line))) and not line.endswith(".")


def _untitled(line: str) -> str:
    """The words of a title, without the marks of its tracker."""
    return unlabelled(line.strip().lstrip("#*> ").rstrip("*"))


def _is_report(lines: list[str]) -> bool:
    """Whether lines are what somebody says who met a failure, or begin with a title of one."""
    text = "\n".join(lines).strip()
    titled = _is_title(text) or (_is_headed(text) and _FAILS.search(lines[0]))
    return not _has_output(lines) and bool(_OWN.search(text) or titled)


def _has_output(lines: list[str]) -> bool:
    """Whether a program wrote some of these lines, and went on."""
    return any(cleaned(line.encode()).form in ("notice", "source") for line in lines)


def _is_headed(text: str) -> bool:
    """Whether the first line of several is a title, in words."""
    first, _, more = text.partition("\n")
    return bool(more) and _has_words(first) and _is_title(first)


def with_line_ends(text: str) -> list[tuple[int, str]]:
    """The lines of a traceback that was pasted as one line; empty where there is none."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if _FLAT.match(line.strip()):
            found += [(number, part) for part in _LOST_END.split(line.strip())]
    return found


def tells_no_failure(text: str) -> bool:
    """Whether a text is too long for a question, or says what was done about a failure."""
    too_long = len(text) > LONGEST or text.count("\n") > MOST_LINES
    page = _OF_A_PAGE.search(text) and not _MINE.search(text)
    return too_long or bool(page or _NO_REPORT.match(text) or _says_none(text))


def without_mark(text: str) -> str:
    """A text whose title lost the mark of a heading."""
    return _MARK.sub("", text, count=1)


def _says_none(text: str) -> bool:
    """Whether a text says what was done about a failure, or speaks of failures in general."""
    return bool(_OF_NONE.search(_FOLLOWED.sub("", _QUIETLY.sub(_loudly, text))))


def _may(text: str) -> bool:
    """Whether a sentence speaks of what did not happen, or may happen to anybody."""
    return bool(_MAY.search(_QUIETLY.sub(_loudly, _ASKED.sub("", text))))


def _loudly(found: re.Match[str]) -> str:
    """An end without the words that nothing explains it."""
    return found.group()[: found.start("quietly") - found.start()]


def python_messages(text: str) -> list[tuple[int, str]]:
    """The lines of a text that are messages of Python without its exception, with its name."""
    found = ((number, whole_message(line)) for number, line in _bare_lines(text))
    return [(number, said) for number, said in found if said]


def bare_messages(text: str) -> list[tuple[int, str]]:
    """The lines of a text that may be messages without their exception's name, with that name."""
    return named(_bare_lines(text))


def _bare_lines(text: str) -> list[tuple[int, str]]:
    """The lines of a text that may be messages without the name of their exception.

    Somebody who pastes an error into a search box or a title leaves the name out. Empty where the
    text is longer than that, tells what was done about an error, or was written by a program.
    """
    lines = text.splitlines()
    too_long = len(text) > LONGEST_MESSAGE or len(lines) > MOST_MESSAGES
    if too_long or tells_no_failure(text) or 'File "' in text:
        return []
    if any(cleaned(line.encode()).form != "plain" for line in lines if line.strip()):
        return []
    return [(n, unlabelled(line)) for n, line in enumerate(lines, start=1) if line.strip()]


def named(bare: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Messages without their exception's name, with the names that most have."""
    return [(number, name + one) for number, one in bare for name in NAMES]


def is_bare(hit: MatchedLine) -> bool:
    """Whether a rule's message begins such a line, and is none that healthy programs print."""
    found = hit.rule.match(hit.text)
    if found is None or hit.rule.errors_only:
        return False
    name = hit.text.find(": ") + 2
    room = MOST_BEFORE if hit.rule.kind in ANSWERS else 0
    in_quotes = hit.text[found.start() - 1] in "'\"`"
    begins = name <= found.start() <= name + room and not in_quotes
    return begins or (found.start() == 0 and hit.rule.kind in ANSWERS)


def _is_title(text: str) -> bool:
    """Whether a text is one line that is no whole sentence."""
    text = text.removesuffix(".") if len(text) < _LONGEST_TITLE / 2 else text
    return len(text) <= _LONGEST_TITLE and not re.search(r"\n|[.:;](?:\s|$)", text)


def _complaints(line: str) -> list[str]:
    """What somebody says of a failure of their own, where a line names no exception."""
    line = unlabelled(line).lstrip("\"'`")
    if raised(line):
        return []
    failing = (one for one in _SENTENCE.split(line) if _FAILS.search(one))
    return [] if any(_may(one) for one in failing) else [line]
