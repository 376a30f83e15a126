"""What a rule says of a stated requirement: the settings, and what would be accepted."""

from __future__ import annotations

import re

from dsforge.diagnose.known_packages import distribution_of
from dsforge.diagnose.offered_names import SHOWN, nearest_of, offers_in
from dsforge.diagnose.requirement_forms import Requirement, names_in, requirement_in
from dsforge.diagnose.rule import MatchedLine
from dsforge.diagnose.sizes import LARGEST, divisors_of
from dsforge.diagnose.unknown_errors import message_of, unknown_error

_LONGEST = 70  # characters of a phrase that is shown
_REST = re.compile(  # of a sentence, that no longer says what is asked for
    r",? ?\(?(?:but |and |instead )?\b(?:got|received|found|instead)\b| but |[;:.] |"
    r", (?=(?:so|which|please|as|because|current\w*|otherwise|and|the|it|use|set|you|not)\b)"
)
_ARTICLE = re.compile(r"^(?:[Tt]he|[Aa]n?|[Yy]our|[Ee]xpected?|[Pp]arameter|[Aa]rgument) ")
_TRAILING = re.compile(r"(?:(?:^| )(?:is|are|currently|yet|now|also|only|argument|parameter))+$")
_ODD = re.compile(r"[/\\{}]|^\W*$")  # of paths and dumps: no phrase that a sentence could take up
_NUMBER = re.compile(r"\((\d{1,9})\)|(?<![\w.,])(\d{1,9})(?![\w.,])")
_SETTING = re.compile(r"--[a-z][\w-]*|[a-z]\w*(?:\.[a-z_]\w*)*")
_VALUE = re.compile(r"[\w.+:-]+|<[\w .,<>=()\[\]+-]+>")
_WORDS = re.compile(r"_|^--|\.|=")  # in the name of a setting, and not in a plain word
_GIVEN_SO = re.compile(r"--?[\w-]+|\w+=['\"]?[\w.-]+['\"]?")
_ALONE = re.compile(
    r"(?:setting |passing )?(?P<name>[\w.=-]+)(?: (?:to be )?(?:set|enabled|given))?"
)
_A_VALUE = re.compile(r"None\b|[\d<(\[{]")  # at the begin of a sentence, in place of a setting
_STATED = re.compile(r"\b(?:is|are|was|were|has|have|does)\b")  # of a sentence, not of a list
_ABBREVIATED = ("e.g", "i.e")
_THINGS = re.compile(
    r"install|GPU|NPU|npu|CUDA|driver|\bversion|module|\bsm_"
)  # that no setting gives
# What a sentence must have told for its form to count.
_PARTS = {
    "needs": ("subject", "wanted"),
    "bound": ("subject", "wanted"),
    "type": ("wanted",),
    "missing": ("subject",),
    "either": ("subject",),
    "unsupported": ("subject",),
    "divides": ("subject", "wanted"),
    "excludes": ("other",),
}


def requirement(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The parts of what a program asks for, beside what is known of any error.

    `name` and `other` are settings, `subject` and `wanted` the phrases that they stand in;
    `change` is a setting as it would be accepted, where the message tells.
    """
    known = unknown_error(hits)
    message = message_of(hits[0])
    found = requirement_in(message)
    if found is None:
        return known
    names, others = _names(found.left), _names(found.right)
    if found.form == "excludes" and not found.right:  # both stand on one side
        names, others = names[:1], names[1:]
    if found.form == "beyond":
        found = found._replace(form="bound", right=f"not {found.right}")
    name = (names or [""])[0]
    other = next((one for one in others if one not in names), "")
    subject, wanted = _phrase(found.left), _phrase(found.right)
    told = {"subject": subject, "wanted": wanted, "other": other or wanted}
    if _is_prose(found) or not all(told[part] for part in _PARTS.get(found.form, ())):
        return known
    offers, _ = offers_in(message)
    return {
        **known,
        "form": found.form,
        "subject": subject,
        "wanted": wanted,
        "name": name if found.form == "excludes" or _WORDS.search(name) else "",
        "other": told["other"],
        "given": found.given,
        "accepted": ", ".join(offers[:SHOWN])
        or (wanted.strip("[](){}") if found.form == "choice" else ""),
        "change": _change(found, name, wanted, offers),
        "other_change": _other_change(found, wanted),
    }


def _is_prose(found: Requirement) -> bool:
    """Whether a sentence looks like a requirement and speaks of a value, or of what happened."""
    stated = found.form == "either" and _STATED.search(found.left)
    return bool(stated or _A_VALUE.match(found.left))


def _change(found: Requirement, name: str, wanted: str, offers: list[str]) -> str:
    """The setting that the message speaks of, as it would be accepted."""
    if found.form == "choice":
        # Numbers and releases are no misspellings.
        meant = "" if any(map(str.isdigit, found.given)) else nearest_of(found.given, offers)
        return _setting(name, meant or f"<one of {', '.join(offers[:SHOWN]) or wanted}>")
    if found.form == "divides":
        return _setting(name, _divisors(found))
    if found.form in ("bound", "type") and wanted:
        return _setting(name, f"<value {wanted}>" if wanted[0] in "<>" else f"<{wanted}>")
    return _setting(name, "<value>") if found.form == "missing" and _is_named(name, found) else ""


def _other_change(found: Requirement, wanted: str) -> str:
    """The other setting that the message speaks of, as it would be accepted."""
    if found.form != "needs":
        return ""
    if _GIVEN_SO.fullmatch(wanted):
        return wanted
    alone = _ALONE.fullmatch(wanted)
    name = alone["name"] if alone else ""
    return _setting(name, "<value>") if _is_named(name, found) else ""


def _is_named(name: str, found: Requirement) -> bool:
    """Whether a name is that of a setting, not of a package, a device, a class or a file."""
    known = distribution_of(name.partition(".")[0])
    thing = _THINGS.search(f"{found.left} {found.right}")
    called = f"{name}(" in found.left
    return bool(_WORDS.search(name)) and not known and not thing and not called


def _names(phrase: str) -> list[str]:
    """The settings that a phrase names, each once."""
    return [name for name in dict.fromkeys(names_in(phrase)) if name not in _ABBREVIATED]


def _divisors(found: Requirement) -> str:
    """The two divisors around a number; empty where a message does not give both numbers."""
    step, number = _number(found.left), _number(found.right)
    if not number or not step or not 1 < step < number <= LARGEST:
        return ""
    fitting = divisors_of(number, number - 1)[1:]
    below = [size for size in fitting if size < step][-1:]
    above = [size for size in fitting if size > step][:1]
    return f"<{' or '.join(map(str, below + above))}>" if below + above else ""


def _number(phrase: str) -> int | None:
    """The number that a phrase names: in parentheses, or by itself."""
    found = _NUMBER.search(phrase)
    return int(found[1] or found[2]) if found else None


def _setting(name: str, value: str) -> str:
    """A setting as it is written: of a command, or of a call; empty where it is no plain one."""
    if not _SETTING.fullmatch(name) or not _VALUE.fullmatch(value):
        return ""
    return f"{name} {value}" if name.startswith("--") else f"{name}={value}"


def _phrase(text: str) -> str:
    """What stands on one side of a check, without article and without what was given instead."""
    part = _REST.split(_ARTICLE.sub("", text.replace("`", "")))[0]
    part = _TRAILING.sub("", part.strip(" ,:;."))
    if part.count("'") == 1 or part[:1] == part[-1:] == "'":
        part = part.strip("'")
    open_ended = any(part.count(a) != part.count(b) for a, b in ("()", "[]"))
    return "" if open_ended or _ODD.search(part) or len(part) > _LONGEST else part
