"""The messages that a line of prose quotes: an exception by its name, or what stands in quotes."""

from __future__ import annotations

import re

EXCEPTION = re.compile(
    r"(?<![A-Za-z0-9_.])(?P<kind>(?:[a-z_]\w{0,40}\.){0,4}[A-Z]\w{0,60}(?:Error|Exception))"
    r"(?: ?[::]\s{0,3}|\()[\"“]?(?P<what>[^\n]{3,400})"
)
_QUOTES = re.compile(
    r"“([^”\n]{8,400})”|\"([^\"\n]{8,400})\"|`([^`\n]{8,400})`|(?<!\w)'([^\n]{8,400}?)'(?![\w:])"
)
_ATTRIBUTE = re.compile(  # a title that left out the quotes
    r"(?<![\w'])(?P<owner>\w{2,80}) object has no attribute [`'\"]?(?P<name>\w{1,80})"
)
_CALL = re.compile(
    r"(?<![A-Za-z0-9_.])(?P<call>[A-Za-z_]\w{1,60}\(\) "
    r"(?:takes \d|missing \d|got an unexpected|got multiple)[^\n]{3,160})"
)
_LABEL = re.compile(
    r"^\[[A-Za-z][\w /:-]{0,30}\]:?\s{0,2}|^(?i:bug|question|issue|problem|usage) ?: "
)
_FULL_COLON = "\N{FULLWIDTH COLON}"


def quoted(line: str) -> list[str]:
    """The messages that a line quotes."""
    return [one for _, one in messages(unlabelled(line))]


def messages(line: str) -> list[tuple[int, str]]:
    """The messages that a line quotes, each with the place where it begins."""
    if named := raised(line):
        return [named]
    in_quotes = [(m.start(), next(filter(None, m.groups()))) for m in _QUOTES.finditer(line)]
    return [(start, one) for start, one in in_quotes if " " in one]


def raised(line: str) -> tuple[int, str] | None:
    """The exception that a line tells of, as Python prints it, with the place where it begins."""
    if found := EXCEPTION.search(line):
        return found.start(), f"{found['kind']}: {_closed(found['what'].rstrip('*_~`'))}"
    if found := _ATTRIBUTE.search(line):
        what = f"'{found['owner']}' object has no attribute '{found['name']}'"
        return found.start(), f"AttributeError: {what}"
    if found := _CALL.search(line):
        return found.start(), f"TypeError: {found['call']}"
    return None


def unlabelled(line: str) -> str:
    """A line without the label of its tracker."""
    return _LABEL.sub("", line.strip()).replace(_FULL_COLON, ": ")


def _closed(what: str) -> str:
    """A message up to where the quotation or the bracket around it ends."""
    depth = 0
    for place, sign in enumerate(what):
        depth += (sign == "(") - (sign == ")")
        if depth < 0 or sign == "\N{RIGHT DOUBLE QUOTATION MARK}":
            return what[:place].rstrip("\"'")
    return what.rstrip('"').rstrip() if what.count('"') % 2 else what.rstrip()
