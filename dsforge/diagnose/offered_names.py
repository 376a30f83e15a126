"""What a message says of a name that is not known: where it was looked for, what is offered."""

from __future__ import annotations

import re
from difflib import get_close_matches
from itertools import takewhile

from dsforge.diagnose.rule import MatchedLine
from dsforge.diagnose.source_lines import with_source

_REGISTRY = re.compile(
    r"(?P<given>[\w.:-]{1,100})['\"]? is not in the (?P<registry>[\w:. -]{1,60}?) ?registry|"
    r"No object named ['\"](?P<object>[^'\"\n]{1,100})['\"] found in "
    r"['\"](?P<of>[^'\"\n]{1,60})['\"] registry|"
    r"(?P<unregistered>[\w.:-]{1,100})['\"]? (?:is|was|has) not (?:been )?registered|"
    r"Unknown model \((?P<timm>[^()\n]{1,120})\)"
)
_OFFERED = re.compile(  # a list of names, in brackets, or after words that announce one
    r"(?:[\[({](?P<listed>[^\[\](){}\n]{3,2000})[\])}])|"
    r"(?:one of|choose from|(?:must|should) be(?: either)?|(?i:options|choices)|"
    r"(?:[Aa]vailable|[Ss]upported|[Vv]alid)[\w ]{0,30})"
    r"(?: are| is)?:? (?P<said>[\w.'\"`-]{1,60}(?:(?:, ?| or | and |\|)[\w.'\"`-]{1,60}){1,200})"
)
_QUOTES = "'\"`\u2018\u2019\u201c\u201d"
_QUOTED = re.compile(rf"[{_QUOTES}](?P<name>[^{_QUOTES}\n]{{1,120}})[{_QUOTES}]")
_BEFORE = re.compile(r"(?P<name>[\w./:-]{2,120})[`'\"]?,? (?:is |was |are |were |does )?not\b")
_AFTER = re.compile(
    r"(?:[Uu]nknown|[Uu]nrecogni[sz]ed|[Uu]ndefined|[Nn]o such|not (?:find|found|locate))"
    r"(?: [\w ]{1,30}?)?:? [`'\"(]?(?P<name>[\w./:-]{2,120})"
)
_SPLIT = re.compile(r",\s*| or | and |\|")
_PATH = re.compile(
    r"^(?:[A-Za-z]:)?[\w.~@+\\/-]*[\\/][\w.~@+ \\/-]*$|\.(?:jsonl?|ya?ml|bin|pth?|ckpt|safetensors|"
    r"txt|csv|parquet|np[yz]|h5|pkl|model|png|jpg|wav|mp4|so|sh|py|cfg|zip|tar)$"
)
_ENDS = ("but", "got", "not", "received", "found", "default")  # words behind a list
_VERBS = ("is", "was", "are", "were", "does", "do", "it", "that", "this")
NEAR = 0.6  # likeness of a misspelt name
SHOWN = 10  # names that are offered
FEWEST = 2  # names that make a list


def _names(listed: str) -> list[str]:
    """The names of a list, without quotation marks and what a dictionary says of each."""
    parts = (part.strip(" '\"`\n") for part in _SPLIT.split(listed))
    said = takewhile(lambda part: part not in _ENDS, filter(None, parts))
    return [part for part in said if re.fullmatch(r"[\w./:@+ -]{1,80}", part)]


def offers_in(what: str) -> tuple[list[str], int]:
    """The names that a message offers, and where its list begins."""
    for found in _OFFERED.finditer(what):
        names = _names(found["listed"] or found["said"])
        if len(names) >= FEWEST and not all(name.isdigit() for name in names):
            return names, found.start()
    return [], len(what)


def nearest_of(given: str, offers: list[str]) -> str:
    """The offered name that is most like a misspelt one; empty where none is."""
    near = get_close_matches(given.lower(), [name.lower() for name in offers], 1, NEAR)
    return next((name for name in offers if near and name.lower() == near[0]), "")


def _given(what: str, offers: list[str], end: int) -> str:
    """The name that was not known: what is quoted before the list, or what the message is about."""
    found = [_AFTER.search(what[:end]), *_QUOTED.finditer(what[:end]), _BEFORE.search(what[:end])]
    names = (one["name"].strip(" .,:") for one in found if one)
    return next((one for one in names if one and one not in offers and one not in _VERBS), "")


def named_thing(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The name that was not known, where it was looked up, and the nearest of those offered."""
    what = hits[0].values.get("what", "")
    known = {**with_source(hits), "registry": "", "nearest": "", "offers": "", "facts": ""}
    if found := _REGISTRY.search(what):
        named = ("given", "object", "unregistered", "timm")
        given = next(found[name] for name in named if found[name])
        registry = (found["registry"] or found["of"] or "").strip(" '")
        return {
            **known,
            "given": given,
            "registry": registry,
            "facts": "timm" if found["timm"] else "registry",
        }
    offers, begin = offers_in(what)
    given = _given(what, offers, begin)
    nearest = nearest_of(given, offers)
    facts = "path" if _PATH.search(given) else ""
    if offers and given:
        facts = "nearest" if nearest else "offers"
    shown = ", ".join(offers[:SHOWN]) + (" ..." if len(offers) > SHOWN else "")
    more = {"given": given, "nearest": nearest, "offers": shown, "facts": facts}
    return {**known, **more, "count": str(len(offers))}
