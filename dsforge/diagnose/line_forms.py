"""What a line is: an error, a notice of a program that goes on, a line of source code, or plain.

A notice is no cause. Programs report missing options, retries and fallbacks all the time, in words
that an error would use; the level they write, or the words that say that they go on, tell the two
apart. Patterns are bounded and look at the first characters of a line only where that suffices.
"""

from __future__ import annotations

import re
from typing import Literal

Form = Literal["error", "notice", "source", "plain"]

EXCEPTION = re.compile(
    r"^(?P<kind>(?a:(?:[A-Za-z_]\w{0,60}\.){0,6}_?[A-Z]\w{0,60})"
    r"(?:Error|Exception|Interrupt|Failure|Failed|Invalid|Exit|OfResources|Timeout|Unsupported|"
    r"NotFound|Conflict|TimeoutExpired|BrokenProcessPool|LimitHit)(?:\([A-Z]\w{0,60}\))?"
    r"|(?:[A-Za-z_]\w{0,60}\.){1,6}Error"
    r"|Exception|Timeout|StopIteration|assert)(?: ?:\s*|\s*$|(?=\(['\"]))(?P<what>[^\n]{0,300})"
)
_LEAD = re.compile(
    r"(?:\[[^\]\n]{0,160}\]|[\w.:-]{1,40}\]|\d[\w.:,/-]{0,40}(?=[\s|])|[|>:-]|"
    r"(?:INFO|ERROR|CRITICAL|FATAL|std(?:out|err))\S{0,40})\s{0,4}"
)
_LEADS = 10  # pieces of a prefix: times, numbers, brackets, levels
LEVELS = re.compile(r"\b(?:DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b")
_LEVEL_ERROR = re.compile(
    r"\[(?:ERROR|FATAL|CRITICAL)\]|^(?:ERROR|FATAL|CRITICAL|Error|error|fatal)\b[: ]|"
    r"[-|\s](?:ERROR|FATAL|CRITICAL)[\s|-]|^\[?[EF]\d{4}[ :]|\[E\d{0,4} ?[^\]\n]{0,80}\]|NCCL WARN|"
    r"\b\w{1,20}\.(?:h|cc):\d{1,4} WARN |"
    r"error while loading shared libraries|^\S{0,200}python[\d.]{0,5}: (?:No module|Error while)|"
    r": (?:fatal )?error: |Assertion [`'][^\n]{1,200} failed"
)
_LEVEL_NOTICE = re.compile(
    r"\[(?:WARNING|WARN|INFO|DEBUG|NOTICE)\b[^\]\n]{0,60}\]|"
    r"^\s{0,8}(?:WARNING|WARN|INFO|DEBUG|NOTICE|Warning|warning|NOTE|Note)\b[: ]|"
    r"(?:[-|]|\d)\s{1,3}(?:WARNING|WARN|INFO|DEBUG|NOTICE)\b|\bWARNING[:!]|"
    r"\b(?:User|Future|Deprecation|Runtime|Resource|Import|PendingDeprecation|Insecure\w{0,20})"
    r"Warning\b|^\[?[IW]\d{4}[ :]|\[W\d{0,4}(?: [^\]\n]{0,80})?\]|NCCL INFO|"
    r"\d: [IW] \w{1,40}/|^wandb: |^\s{0,8}(?:warnings\.)?warn(?:ings)?\("
)
_GOES_ON = re.compile(
    r"accepting this combination|fall(?:ing|s)? ?back|will (?:now )?(?:be )?"
    r"(?:ignored?|skip(?:ped)?|disabled?|proceed|continue|retry|use)\b|\b(?:ignoring|skipping|"
    r"retrying|proceeding|defaulting|continuing|disabling)\b|error caught was|could not find: "
    r"libnccl|failed to load image python extension|(?:some|no) (?:optimi[sz]ations|features|"
    r"performance)|is optional|optional (?:dependency|package|import)|if you (?:want|wish|need|"
    r"plan|would like) to|for (?:better|best|faster|improved) (?:performance|speed)|"
    r"(?:not (?:be )?|dis)abled\b|\[(?:NO|OKAY|YES)\]|using [^\n]{1,60} instead|can safely ignore|"
    r"pip's dependency resolver does not|not a git repository|detect the name of this notebook|"
    r"not installed[^\n]{0,40}(?:using|so|\bwill\b)|could not import|unable to import|failed to "
    r"import [^\n]{1,60}\(optional|consider (?:installing|using)|"
    r"cannot use [^\n]{1,40}, using|(?:is|was) not (?:found|installed|available)[,.;] ?"
    r"(?:using|running|some|please|install|falling|the|it|so|but|and|continuing|default)",
    re.IGNORECASE,
)
_REASONS = re.compile(
    r"(?:potential root causes|possible (?:root )?(?:causes|reasons)|one of the following reasons|"
    r"common (?:causes|reasons)|this (?:could|may|might) be (?:because|due|caused))",
    re.IGNORECASE,
)
_SOURCE = re.compile(
    r"^\s{0,8}(?:-{1,4}>\s?\d{1,6}\b|"
    r"\d{1,6} (?=\s{2,}\S)|❱\s*\d{1,6}\b|\d{1,6}\s*│)|│\s*❱?\s*\d{1,6}\s*│"
)

# A job in the table of Slurm's sacct that did not end well: its number, state and exit code.
_ACCOUNT = re.compile(
    r"^ {0,8}\d{1,12}(?:[._]\w{1,20})?[ |][^\n]{0,300}?[ |](?:FAILED|TIMEOUT|OUT_OF_ME\w{0,4}\+?|"
    r"NODE_FAIL|PREEMPTED|CANCELLED\+?)[ |](?:[^\n]{0,200}?[ |])?\s{0,20}\d{1,3}:\d{1,3}(?:[ |]|$)"
)

_CODE = re.compile(
    r"(?:[\w./-]{1,200}\.\w{1,4}:\d{1,7}[:-])?"  # as grep shows lines
    r"\s{0,20}(?:\d{1,2}\. (?:This|If|You|When|Make|Set|Use|Check)\b|"
    r"[-+*] (?!\d)|[-+]\s{2,}|#+ |//|\"{3}|(?:raise|echo|except|print|log|assert|throw|"
    r"grep|if|elif|return)\b[ (\"]|(?:Fix(?:e[sd])?|Handle|Retry|Avoid|Improve|Catch|Document)\b )"
    r"|[\w/]{1,100}\.py::|[\w./-]{1,200}\.(?:md|rst):\d{1,7}[:-]"
)
_QUOTING = ('"', "'", "`", "\u201c", "\u2018")
_MESSAGE = re.compile(
    r"\s{0,20}(?:'[\w.-]{1,60}' (?:is not recognized|不是|n'est pas|не является|no se|ist )|"
    r"'[\w.]{1,80}' object (?:has no attribute '|is not (?:callable|subscriptable|iterable))|"
    r"\"[-\u2013]{1,2}\w{2,40}[`'\"]{0,2} (?:value|argument|option) |"
    r"`\S{0,200}\.so[\d.]*: |\{|\"\w{1,40}\" ?:|'\w{1,40}': |"
    r"[\w.]{1,80}(?:Error|Exception)\(|'\(?\w{1,40}(?:Error|Pool)\(|"
    r"\"(?:[A-Z]\w{1,60}Error|hipError\w{1,60}): |terminate called after throwing an instance of '|"
    r"(?:Exception|Error) [\w ]{1,40}: ['\"])"
)
_PASTED = re.compile(r"\) (?:[\w.]{1,60}\.)?[A-Z]\w{1,40}(?:Error|Exception): [^\n]{0,120}$")
_QUOTED = re.compile(
    r"([\"'`])(?:[^\"'`\n]{1,40} ){7}[^\"`\n]{1,200}\1"
)  # a message that somebody quotes whole
_ENDED = re.compile(  # what somebody says of a run of their own
    r"\b(?:fail|return|crash|stop|end|exit|quit|die|get|got)[a-z]{0,4}\b[^\"\n]{0,40}"
    r"\"exits with return code = -\d{1,2}\""
)
_PROSE = re.compile(r"(?:[A-Za-z][\w'-]{0,30}[,;.]?\s+(?:\()?){4}")


def exception_in(text: str) -> re.Match[str] | None:
    """The exception that a line names, at its start or after times, numbers and levels."""
    rest = text.lstrip()
    for _ in range(_LEADS):
        found = EXCEPTION.match(rest)
        lead = None if found else _LEAD.match(rest)
        if lead is None:
            return found
        rest = rest[lead.end() :]
    return None


def form_of(raw: str, text: str) -> Form:
    """The form of a line; `raw` with its prefixes, `text` without."""
    if _ACCOUNT.search(raw):
        return "error"
    if _SOURCE.search(raw[:120]) or "Retrying (Retry(" in raw[:240]:
        return "source"
    if exception_in(text):
        return "error"
    heads = {raw[:240], text[:240]}  # mostly one
    is_error = any(map(_LEVEL_ERROR.search, heads))
    if _GOES_ON.search(text) or (not is_error and any(map(_LEVEL_NOTICE.search, heads))):
        return "notice"
    return "error" if is_error else "plain"


def is_listed(text: str, start: int) -> bool:
    """Whether what stands at a place is one of several possible reasons that a message lists."""
    found = _REASONS.search(text)
    return found is not None and found.end() <= start


def is_mention(text: str, start: int) -> bool:
    """Whether a line only speaks of what stands at a place: prose, code, a list, a quotation."""
    before = text[: start + (text[start : start + 1] == ":")]
    if _ENDED.search(text):
        return False
    if _CODE.match(text):  # unless it is a frame's line with its exception behind it
        return not _PASTED.search(text[:start])
    if before.endswith(_QUOTING) or text.lstrip().startswith(_QUOTING):
        return not (_MESSAGE.match(text) or _QUOTED.fullmatch(text.strip()))
    return bool(_PROSE.search(before)) and not re.search(r"[:\]=]", before)
