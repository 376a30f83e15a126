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
_OF_PYTHON = {  # messages that titles and prose give without the exception that has them
    "ModuleNotFoundError": r"No module named (?:['\"`][\w.]{2,80}['\"`]|"
    r"[\w.]{2,80}(?=\s*(?:$|\[)))",
    "ImportError": r"cannot import name (?:['\"`]\w{2,80}['\"`](?: from ['\"`]?[\w.]{2,80}['\"`]?"
    r"(?: \([^)\n]{1,200}\))?)?|\w{2,80} from ['\"`]?\w[\w.]{1,80}['\"`]?)|"
    r"[\w./+-]{1,120}\.so[\w.]{0,20}: (?:cannot open shared object file"
    r"(?:: No such file or directory)?|undefined symbol: \w{1,200})",
    "NameError": r"name ['\"`]\w{1,80}['\"`] is not defined",
    "AttributeError": r"['\"`]?module['\"`]? ['\"`][\w.]{2,80}['\"`] has no attribute "
    r"['\"`]\w{1,80}['\"`]|"
    r"Can't (?:pickle|get) (?:local object|attribute) '[^'\n]{1,120}'(?: on <[^>\n]{1,120}>)?",
    "TypeError": r"cannot (?:pickle|serialize) '[^'\n]{1,80}' object|"
    r"'[\w.]{2,80}' object is not (?:callable|subscriptable|iterable)|"
    r"unhashable type: '\w{1,40}'|"
    r"unsupported operand type\(s\) for [^\s:]{1,12}: '[^'\n]{1,60}'(?: and '[^'\n]{1,60}')?|"
    r"Object of type \w{1,60} is not JSON serializable|"
    r"[A-Za-z_][\w.]{1,80}\(\) (?:takes [^\n]{1,60}? arguments? (?:but \d{1,3} (?:was|were) given|"
    r"\(\d{1,3} given\))|missing \d{1,2} required [^\n]{3,160}|"
    r"got (?:an unexpected keyword argument|multiple values for)[^\n]{3,160})",
    "FileNotFoundError": r"\[Errno 2\] No such file or directory: [^\s,]{2,200}",
    "PermissionError": r"\[Errno 13\] Permission denied: [^\s,]{2,200}",
    "OSError": r"\[(?:Errno|WinError) \d{1,5}\] [^\n]{3,200}",
    "RuntimeError": r"The size of tensor a \(\d{1,9}\) must match the size of tensor b \(\d{1,9}\)"
    r"(?: at non-singleton dimension \d{1,2})?|"
    r"The expanded size of the tensor \(\d{1,9}\) must match [^\n]{8,160}|"
    r"shape '\[[^\]\n]{1,80}\]' is invalid for input of size \d{1,12}|"
    r"Sizes of tensors must match except in dimension \d[^\n]{0,120}|"
    r"mat1 and mat2 shapes cannot be multiplied \([^)\n]{3,60}\)",
    "UnpicklingError": r"invalid load key, ['\"`][^'\"`\n]{1,4}['\"`]",
    "JSONDecodeError": r"Expecting (?:value|property name enclosed in double quotes|',' delimiter)"
    r": line \d{1,9} column \d{1,9} \(char \d{1,9}\)",
}
_WORDS = {kind: re.compile(rf"(?<![\w'.])(?:{words})") for kind, words in _OF_PYTHON.items()}
_ATTRIBUTE = re.compile(  # a title that left out the quotes
    r"(?<![\w'.])(?P<quote>['\"`]?)(?P<owner>[\w.]{2,80})(?P=quote) object has no attribute "
    r"[`'\"]?(?P<name>\w{1,80})"
)
_REST = re.compile(  # of a line that is a message, and says at most where it came
    r"[.!?\s]*(?:$|\[|\((?:#|v?\d)|(?:when|while|during|after|in|on|with|at|for|using|since)\b)"
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
        what = _unquoted(found["what"], line[: found.start()][-1:])
        marks = "*_~`" if what.count("`") % 2 else "*_~"
        return found.start(), f"{found['kind']}: {_closed(what.rstrip(marks))}"
    if found := _ATTRIBUTE.search(line):
        what = f"'{found['owner']}' object has no attribute '{found['name']}'"
        return found.start(), f"AttributeError: {what}"
    for kind, words in _WORDS.items():
        if found := words.search(line):
            return found.start(), f"{kind}: {found.group()}"
    return None


def _unquoted(what: str, before: str) -> str:
    """A message without the words behind its code quotes, which begin before its exception."""
    if before != "`":
        return what
    ends = [place for place, sign in enumerate(what) if sign == "`"]
    whole = ends[::2]  # quotes within the message stand in pairs, the first before a word
    return next((what[:end] for end in whole if not what[end + 1 : end + 2].isalnum()), what)


def whole_message(line: str) -> str:
    """A line that is a message of Python without its exception, with it; empty otherwise."""
    found = raised(line)
    if found is None or found[0] or EXCEPTION.match(line):
        return ""
    of_line = (found[1].partition(": ")[2], line)
    said, text = (re.sub(r"['\"`]", "", one) for one in of_line)
    return found[1] if _REST.match(text.removeprefix(said)) else ""


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
