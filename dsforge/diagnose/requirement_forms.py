"""What the message of a program's own check asks for: its parts, by the form of its sentence.

Programs check settings, arguments and data before they go on, and say in English what they want:
a value of a list, one setting beside another, a multiple of a number. The forms are few, however
many programs there are; names and numbers are the case's own. Held against the messages that the
installed packages raise (tests/diagnose/test_requirements.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MOST = 400  # characters of a message that are read

_MUST = r"(?:must|should|ha(?:s|ve) to|needs? to|(?:is|are) (?:required|expected) to)"
# What may not be; what somebody or something does not do.
_NOT = r"(?:cannot|can't|can not|may not|must not|should not)"
_NEVER = r"(?:does not|doesn't|do not|don't|did not|cannot|can't)"
_SET = (
    r"(?:specified|provided|set|passed|given|defined|supplied|configured|enabled|"
    r"present|included)"
)
_GIVE = r"(?:specify|provide|pass|set|define|give|supply|choose)"
_IF = r"(?:with|for|when|if|while|together with|in order to|to)\b"
_BOUND = (
    r"(?=(?:strictly )?(?:greater|less|larger|smaller|higher|lower|longer|shorter|"
    r"more|fewer) than|at (?:least|most)|[<>]|between|(?:an? )?(?:strictly "
    r")?(?:positive|non-?negative|non-?zero|non-?empty)|(?:with)?in (?:the )?(?:range|"
    r"interval)|in [\[(][-\d. ]+,[^,\])]+[\])])"
)
_TYPE = (
    r"(?=of (?:the )?(?:type|class) |(?:an )?instances? of |an? (?:subclass|list|"
    r"tuple|dict|set|str|bool|float|int|number|tensor|callable|path|sequence|function|"
    r"torch|iterable|array|object|`?[A-Z])|(?:str|int|float|bool|list|tuple|dict|"
    r"callable|tensor|number)s?\b|torch\.)"
)
# Words of a check, by the form of what it asks for; what they speak of stands left and right of
# them. The first that a sentence contains counts.
_CHECKS = tuple(
    (form, re.compile(words))
    for form, words in (
        ("divides", rf"(?:{_MUST}|{_NEVER}) (?:evenly )?divide\b"),
        (
            "excludes",
            (
                rf"(?:is |are )?\b(?:mutually exclusive|incompatible|not (?:\w+ )?compatible)(?: "
                rf"with)?|(?<!not )conflicts? with|but not both|"
                rf"(?:at the same time|simultaneously)$|"
                rf"{_NEVER} work (?:together )?with|(?:is|are) not (?:\w+ )?supported (?:together "
                rf")?(?:with|when|if|while)\b|{_NOT} (?:both )?be (?:used|combined|set|enabled|"
                rf"specified|applied)(?: together| both)? (?:with|when|if|while|at the same time|"
                rf"and)\b|{_NOT} (?:both )?be (?:used|set|specified|combined|enabled) (?:together|"
                rf"both)"
            ),
        ),
        (
            "choice",
            (
                rf"(?:{_MUST}|can|may) (?:only |either )*be (?:either )?(?:one of|"
                rf"in(?= ?[\[({{](?![-\d. ]+,[^,\]]+[\])]))|among|any of|"
                rf"(?=['\"`][\w./ -]+['\"`],? (?:or )?['\"`]))|"
                rf"\bnot (?:one of|in(?= ?[\[({{]))"
            ),
        ),
        (
            "bound",
            rf"{_MUST} be (?:an? (?:integer|float|number) )?{_BOUND}",
        ),
        (
            "beyond",
            (
                rf"{_NOT} be {_BOUND}|(?:is|are|was|were) (?=(?:greater|less|larger|smaller|"
                rf"longer|shorter|more|fewer) than)"
            ),
        ),
        (
            "needed",
            rf"(?:{_MUST} be {_SET}|(?:is|are) (?:required|needed|mandatory)) {_IF}",
        ),
        (
            "needs",
            (
                rf"(?<!not )(?<!n't )(?<!longer )(?<!never )\b(?:requires?|needs|depends on)\b|"
                rf"{_MUST} be (?:used|combined|set) "
                rf"(?:together )?with|can only be (?:used|set|specified|enabled|applied|called)"
                rf"(?: together| along)? (?:with|when|if|for|on|in|after)|"
                rf"(?:is|are) only (?:\w+ )?(?:supported|"
                rf"available|valid|allowed|implemented|compatible)? ?(?:with|when|if|for|on|in|"
                rf"by)\b|only (?:(?:works|applies) (?:with|when|if|for|on|to)|supports?\b)"
            ),
        ),
        ("type", rf"(?:{_MUST} (?:be|contain)|to be|(?:is|are) not|can only be) {_TYPE}"),
        (
            "missing",
            (
                rf"{_MUST} be (?:explicitly |also |first )?{_SET}|(?:is|are) (?:required|mandatory|"
                rf"missing)\b|(?:is|are|was|were|has|have)(?: not|n't) (?:been )?{_SET}|(?:is|was|"
                rf"are) (?:None|empty)\b|(?:{_NOT}|{_MUST} not) be (?:None|empty|null)|not {_SET}\b"
            ),
        ),
        (
            "unsupported",
            (
                r"(?:is|are)(?: not|n't| no longer)(?: yet| currently)? (?:supported|implemented|"
                r"available|allowed|permitted)|(?<!is )(?<!are )\bnot (?:yet |currently "
                r")?(?:supported|implemented)"
            ),
        ),
        ("unpassed", r"(?:did not|didn't|have not|haven't) (?:pass|provide|specify|give|set)\w*\b"),
        (
            "lacks",
            (
                rf"{_NEVER} (?:yet |currently |directly )?(?:support|implement|allow|"
                rf"handle)\b"
            ),
        ),
    )
)
# Sentences that begin with what they ask for.
_OPENINGS = tuple(
    (form, re.compile(words))
    for form, words in (
        (
            "either",
            (
                rf"^(?:(?:[Yy]ou )?(?:(?:[Mm]ust|[Nn]eeds? to|[Hh]ave to|[Ss]hould|[Pp]lease) )?"
                rf"(?i:{_GIVE}) )?(?:[Ee]ither(?: of)?|(?:[Ee]xactly|[Aa]t least|[Oo]nly) one of|"
                rf"[Oo]ne of(?=[^\n]{{1,200}} be {_SET}))(?: the)? "
                rf"(?P<left>[^\n]{{1,160}}? (?:or|and) [^\n]{{1,160}}?)(?:,? "
                rf"(?:(?:{_MUST}|can|may) be (?:both )?{_SET}|(?:is|are) (?:required|needed)|"
                rf"but not both|not both)\b[^\n]*)?$"
            ),
        ),
        (
            "excludes",
            (
                rf"^(?:[Yy]ou )?(?:{_NOT}|Cannot|Can't|[Dd]o not|[Dd]on't) (?:use|set|combine|"
                rf"enable|specify|pass|have|mix) (?:both )?(?P<left>[^\n]{{1,120}}?) (?:and|with|"
                rf"together with|along with|when|while|if)\b(?P<right>[^\n]{{1,160}})$"
            ),
        ),
        (
            "only",
            (
                r"^(?:[Cc]urrently,? )?[Oo]nly (?P<right>[^\n]{1,120}?) (?:is|are) (?:currently "
                r")?(?:supported|allowed|implemented|available|valid)(?: (?:for|with|in|by|on|as) "
                r"(?P<left>[^\n]{1,120}))?"
            ),
        ),
        ("type", rf"^[Ee]xpected {_TYPE}(?P<right>[^\n,]{{1,80}}?),? (?:but )?(?:got|received)\b"),
        (
            "type",
            rf"^[Ee]xpected (?P<left>[^\n]{{1,100}}?) to be {_TYPE}(?P<right>[^\n]{{1,120}})$",
        ),
        (
            "missing",
            (
                rf"^(?:[Yy]ou )?(?:(?:also )?(?:[Mm]ust|[Nn]eed to|[Hh]ave to|[Pp]lease|[Ss]hould|"
                rf"[Dd]id(?: not|n't)) (?:also )?{_GIVE} |[Mm]issing |[Nn]o (?=[^\n]{{1,80}} "
                rf"(?:given|provided|specified|passed|set)\b))(?:required |an? |the |your "
                rf")*(?P<left>[^\n]{{1,120}}?)(?: (?:was |were |is |are )?(?:given|provided|"
                rf"specified|passed|set)\b[^\n]*)?$"
            ),
        ),
    )
)
_SENTENCE = re.compile(r"(?<=[.!?;])\s+(?=[A-Z`'\"-])|(?<=[.!?]) (?=[a-z_]+[=.(])")
_GIVEN = re.compile(
    r"(?:\b(?:got|received|found|given|passed|provided|actual|instead (?:of|got)|but "
    r"(?:is|was)|set to)\b(?: (?:type|value|shape|an?|the|instead)\b)*:? ?)"
    r"(?P<given><class '[\w.]{1,60}'>|['\"`][^'\"`\n]{1,60}['\"`]|"
    r"\[[^\]\n]{0,60}\]|\([\d, ]{1,60}\)|-?\d[\w.+-]{0,30}|None|True|False|"
    r"[A-Za-z_][\w./-]{0,60}(?=[.,;)]|$))"
)
_NAME = re.compile(
    r"`(?P<code>[^`\n]{1,60})`|(?P<flag>--[A-Za-z][\w-]{1,50})|"
    r"['\"](?P<quoted>[A-Za-z_][\w.-]{1,50})['\"]|"
    r"\b(?P<dotted>[A-Za-z_]\w{0,40}(?:\.[a-z_]\w{0,40}){1,4})\b|"
    r"\b(?P<snake>[A-Za-z][A-Za-z0-9]{0,40}_\w{1,40})\b"
)
_CONDITION = re.compile(r"^(?:If|When|Since|As|Because|While|Unless) [^,\n]{1,120}, ")
_NUMBERED = re.compile(r"\((-?\d[\w.+-]{0,30})\)")
_BARE = re.compile(r"(?:[Tt]he )?([A-Za-z]\w{0,40})(?: ?[=(][^\n]{0,60})?")
_TURNED = {"needed": "needs", "lacks": "unsupported", "unpassed": "missing"}


class Requirement(NamedTuple):
    """What a message asks for, in its own words; empty where it does not say it."""

    form: str
    left: str = ""  # what the words of the check speak of
    right: str = ""
    given: str = ""


def requirement_in(message: str) -> Requirement | None:
    """The first requirement that a message states; None where it states none."""
    text = " ".join(message[:MOST].split())
    for sentence in _sentences(text):
        if found := _opening(sentence) or _check(sentence):
            said = found.given or _given(sentence) or _given(text)
            given = said or _in_parentheses(found.left)
            return _turned(found._replace(given=given.strip("'\"`")))
    return None


def _turned(found: Requirement) -> Requirement:
    """The same with what has to change on the left: `y is needed for x`, `x lacks y`."""
    if found.form in _TURNED:
        found = found._replace(form=_TURNED[found.form], left=found.right, right=found.left)
    if found.form == "missing" and len(names_in(found.left)) > 1 and " or " in found.left:
        return found._replace(form="either")
    return found


def _sentences(text: str) -> Iterator[str]:
    for sentence in _SENTENCE.split(text):
        yield _CONDITION.sub("", sentence.strip()).rstrip(".!")


def _opening(sentence: str) -> Requirement | None:
    for form, pattern in _OPENINGS:
        if found := pattern.search(sentence):
            left, right, given = (
                (found.groupdict().get(name) or "").strip(" ,:.")
                for name in ("left", "right", "given")
            )
            return Requirement(form, left, right, given)
    return None


def _check(sentence: str) -> Requirement | None:
    for form, pattern in _CHECKS:
        if found := pattern.search(sentence):
            left = sentence[: found.start()].strip(" ,:")
            right = sentence[found.end() :].strip(" ,:")
            return Requirement(form, left, right) if left else None
    return None


def _given(text: str) -> str:
    """The value that a message complains of."""
    found = _GIVEN.search(text)
    return found["given"] if found else ""


def _in_parentheses(left: str) -> str:
    """The number that stands behind a setting's name."""
    found = _NUMBERED.search(left)
    return found[1] if found else ""


def names_in(phrase: str) -> list[str]:
    """The settings that a phrase names, as they are written in code; the only word of one, too."""
    found = [next(filter(None, match.groups())) for match in _NAME.finditer(phrase)]
    bare = _BARE.fullmatch(phrase)
    return found or ([bare[1]] if bare else [])
