"""What a rule says of a stated requirement: the settings, and what would be accepted."""

from __future__ import annotations

import re
from difflib import get_close_matches

from dsforge.diagnose.requirement_forms import Requirement, names_in, requirement_in
from dsforge.diagnose.rule import MatchedLine
from dsforge.diagnose.unknown_errors import message_of, unknown_error

CHOICES = 12  # of a list that are shown
LONGEST = 70  # characters of a phrase that is shown
_REST = re.compile(r",? ?\(?(?:but |and |instead )?\b(?:got|received|found|instead)\b|[,;] |\. |: ")
_ARTICLE = re.compile(r"^(?:[Tt]he|[Aa]n?|[Yy]our|[Ee]xpected?|[Pp]arameter|[Aa]rgument) ")
_WHOLE = re.compile(r"(?<![\w.])\d{1,9}(?![\w.])")
LARGEST = 10**6  # number of which multiples are shown
_TRAILING = re.compile(r"(?:(?:^| )(?:is|are|currently|yet|now|also|only|argument|parameter))+$")
_ODD = re.compile(r"[/\\{}]|^\W*$")  # of paths and dumps: no phrase that a sentence could take up
# What a sentence must have told for its form to count; the choices of a list may be elsewhere.
_PARTS = {
    "needs": ("subject", "wanted"),
    "same": ("subject", "wanted"),
    "bound": ("subject", "wanted"),
    "type": ("wanted",),
    "order": ("subject", "wanted"),
    "missing": ("subject",),
    "either": ("subject",),
    "unsupported": ("subject",),
    "unknown": ("subject",),
    "multiple": ("subject", "wanted"),
    "excludes": ("other",),
}
_SEVERAL = ("excludes", "either")  # forms that name all settings on one side


def requirement(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The parts of what a program asks for, beside what is known of any error.

    `name` and `other` are settings, `subject` and `wanted` the phrases that they stand in;
    `change` is the setting as it would be accepted.
    """
    known = unknown_error(hits)
    found = requirement_in(message_of(hits[0]))
    if found is None:
        return known
    names, others = names_in(found.left), names_in(found.right)
    if found.form in _SEVERAL:
        names, others = (names + others)[:1], (names + others)[1:]
    name, other = (names or [""])[0], (others or [""])[0]
    subject, wanted = _phrase(found.left), _phrase(found.right)
    told = {"subject": subject, "wanted": wanted, "other": other}
    if not all(told[part] for part in _PARTS.get(found.form, ())):
        return known
    nearest = (get_close_matches(found.given, found.choices, 1, 0.5) or [""])[0]
    return {
        **known,
        "form": found.form,
        "subject": subject,
        "wanted": wanted,
        "name": name,
        "other": other,
        "given": found.given,
        "accepted": ", ".join(found.choices[:CHOICES]) or wanted,
        "change": _setting(name, _value(found, nearest, wanted)),
        "other_change": _setting(other, _divisors(found) or "<value>"),
    }


def _value(found: Requirement, nearest: str, wanted: str) -> str:
    """The value that would be accepted, or in angle brackets what it must be."""
    if found.form == "multiple":
        return _multiples(found)
    if found.form in ("choice", "unknown"):
        listed = ", ".join(found.choices[:CHOICES])
        return nearest or (f"<one of {listed}>" if listed else "")
    return f"<{wanted}>" if wanted and found.form in ("bound", "type", "only") else "<value>"


def _multiples(found: Requirement) -> str:
    """The two multiples around a number; empty where a message does not give both numbers."""
    number, step = _number(found.left), _number(found.right)
    if number is None or step is None or not 1 < step <= LARGEST or number > LARGEST:
        return ""
    below = number // step * step
    return f"{below + step}" + (f" (or {below})" if below else "")


def _divisors(found: Requirement) -> str:
    """The two divisors around a number; empty where a message does not give both numbers."""
    number, step = _number(found.left), _number(found.right)
    if found.form != "multiple" or not number or not step or step > min(number, LARGEST):
        return ""
    below = next(size for size in range(step, 0, -1) if number % size == 0)
    above = next(size for size in range(step, number + 1) if number % size == 0)
    return f"{below} (or {above})"


def _number(phrase: str) -> int | None:
    """The last whole number of a phrase, which is the value of what the phrase names."""
    found = _WHOLE.findall(phrase)
    return int(found[-1]) if found else None


def _setting(name: str, value: str) -> str:
    """A setting as it is written: an argument of a command, or of a call."""
    if not name or not value:
        return ""
    if "=" in name:
        return name
    return f"{name} {value}" if name.startswith("--") else f"{name}={value}"


def _phrase(text: str) -> str:
    """What stands on one side of a check, without article and without what was given instead."""
    part = _REST.split(_ARTICLE.sub("", text))[0]
    part = _TRAILING.sub("", part.strip(" ,:;.`'\""))
    odd = _ODD.search(part) or part.count("(") != part.count(")") or len(part) > LONGEST
    return "" if odd else part
