"""Patterns: what a secret looks like, and what stands for it. Compiled where one is hinted at."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsforge.masking.hints import COMMANDS, LONG_WORD, OF_NAMES, SMALL, may_be_shaped
from dsforge.masking.names import SET, WORD, is_secret
from dsforge.masking.places import in_places

_LONGEST_NAME = 90  # letters that `_NAME` and its dashes take
_LEAST_SIGNATURE = 12  # characters of what is taken for one, not for a sentence

_NAME = r"[A-Za-z_][\w.-]{0,80}+"
# NAME=value, NAME: value, "NAME": "value", --name value, '--name', 'value': up to the value. Before
# a quote may stand the letter of a kind of string: b'NAME'.
_GIVEN = re.compile(
    rf"""(?:(?P<quote>["'])|(?<![\w.-]))(?P<dashes>--?)?(?P<name>{_NAME})(?(quote)(?P=quote))
        (?P<sep>\s{{0,3}}(?:=>|:=|=|:(?!//))\s{{0,3}}|\s{{1,3}}|,\s?)""",
    re.VERBOSE,
)
# And the value: quoted, as a whole; else up to a blank or the next `,name=`.
# No group is repeated possessively: Python before 3.11.5 matches such groups wrongly.
_VALUE = re.compile(
    r"""(?:[A-Za-z_][\w.]{0,40}\()?[bruf$]?(?:
        \\?"[^"\\]*+(?:\\.[^"\\]*+)*(?:"|\Z)|\\?'[^'\\]*+(?:\\.[^'\\]*+)*(?:'|\Z))
        |(?:(?![,;&]\s?["']?[\w.-]{1,80}["']?\s?[=:])[^\s"'<>])+""",
    re.VERBOSE,
)
_QUOTE = re.compile(r"""(?:[A-Za-z_][\w.]{0,40}\()?[bruf$]?(\\?["'])""")
_ENV_LINE = re.compile(r"(?m)^([ \t+|>-]*(?:export\s+|set\s+|env\s+)?([A-Z][A-Z0-9_]{1,80})=)(.+)$")
_HEADER = re.compile(
    r"""(?im)((?<![\w-])(?:proxy-)?authorization["']?\s*[:=]\s*["']?)"""
    r"""(?:(basic|bearer|token|digest|negotiate)\s+)?([^\s"'][^"'\r\n]*)"""
)
_COOKIE = re.compile(r"""(?im)((?<![\w-])(?:set-)?cookie["']?\s*:\s*["']?)([^"'\r\n]+)""")
_BEARER = re.compile(r"(?i)\b(bearer\s+)(?=[a-z._~+/=-]*[0-9])([A-Za-z0-9._~+/=-]{8,})")
_USER = re.compile(r"(?<=://)([^\s/@:'\"]*):([^\s/'\"]+)@")
_LONE_USER = re.compile(r"(?<=://)(?=[^@\s/]*[0-9])([^\s/@:'\"]{20,})@")
_PEM = re.compile(
    r"(-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----).*?(?:(-----END[^-]*-----)|\Z)", re.DOTALL
)
_PEM_LINE = re.compile(
    r"(?m)^\s*(?=[^\n]*[A-Z])(?=[^\n]*[a-z])(?=[^\n]*[0-9])[A-Za-z0-9+/]{60,76}={0,2}\s*$"
)
_OPTIONS = re.compile(
    r"(\b(?:sshpass|mysql|mysqldump|docker\s+login|redis-cli)\b[^\n|;&]{0,200}?"
    r"\s(?:-p|-a)[ =]?)([^\s-]\S*)"
)
_USERS = re.compile(r"(\b(?:curl|wget)\b[^\n|;&]{0,200}?\s(?:-u|--user)[ =]?)([^\s:-]\S*)")
_LOGIN = re.compile(r"(?i)(\b(?:wandb|comet|neptune)\b[^\n]{0,80}?\b)([0-9a-f]{40})\b")
_NETRC = re.compile(r"(?i)(\b(?:login\s+\S+\s+)(?:password|passwd)\s+)(\S+)")
# Long ones are known behind other letters as well: `fp16hf_...`.
_SHAPES = re.compile(
    r"""(?P<glued>hf_|github_pat_|gh[opsur]_|nvapi-|wandb_v1_|GOCSPX-)
      (?=[a-z]{0,40}[0-9A-Z])[A-Za-z0-9]{30,}
    | (?<![A-Za-z0-9])(?:
      (?P<hub>hf_|api_org_)(?:[A-Za-z0-9]{20,}|(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,})(?![A-Za-z0-9_])
    | (?P<sk>[sr]k-(?:proj-|ant-|or-|live-|test-)?|[sr]k_(?:live|test)_)(?=[\w-]*[0-9A-Z])[\w-]{12,}
    | (?P<aws>AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}(?![a-z])
    | (?P<git>gh[opsur]_|github_pat_|gl[a-z]{2,5}-)(?=[\w-]*[0-9A-Z])[\w-]{10,}
    | (?P<slack>xox[a-z]-|xapp-)[\w-]{8,}
    | (?P<jwt>eyJ)[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?
    | (?P<age>AGE-SECRET-KEY-)[A-Z0-9]{20,}
    | (?P<dapi>dapi)[0-9a-f]{32}
    | (?P<served>r8_|gsk_|xai-|pplx-|wandb_v1_|rpa_|hv[bs]\.|lin_api_|GOCSPX-|ATATT3|tgp_v1_)
      (?=[\w-]*[0-9A-Z])[\w-]{20,}
    | (?P<other>nvapi-|npm_|pypi-|dop_v1_|AIza|ya29\.|whsec_|SG\.)(?=[\w.-]*[0-9A-Z])[\w.-]{16,}
    )""",
    re.VERBOSE,
)
HARMLESS = re.compile(
    r"""(?:\w+\s)?\(set\).*|\*+|\.{3,}|<[^>]*>|\[[A-Z]+\]|\$\{?\w+\}?|true|false|none|null|yes|no"""
    r"""|required|missing|invalid|basic|bearer|digest|negotiate|""",
    re.IGNORECASE,
)
_FILE = re.compile(r"\.(?:py|json|ya?ml|txt|md|cc?|cpp|cu|h|sh|log)$")  # `secrets.py:3`
_NUMBER = re.compile(r"[-+]?[0-9][0-9,_.]*(?:[eE][-+]?[0-9]+)?[kKmMbB%]?")


def replaced(text: str) -> str:
    """The text after every pattern that may match in it."""
    small = text.translate(SMALL)
    if "-----begin" in small:
        text = _PEM.sub(rf"\1{SET}\2", text)
    if any(len(word) >= LONG_WORD for word in text.split()):
        text = _PEM_LINE.sub(SET, text)
    if "@" in small:
        text = _USER.sub(rf"\1:{SET}@", text)
        text = _LONE_USER.sub(f"{SET}@", text)
    for word, pattern, instead in _BY_WORD:
        if word in small:
            text = pattern.sub(instead, text)
    text = _given(_ENV_LINE.sub(_line, in_places(text, small)))
    if any(command in small for command in COMMANDS):
        text = _of_commands(text)
    if "passw" in small:
        text = _NETRC.sub(rf"\1{SET}", text)
    if may_be_shaped(small):
        text = _SHAPES.sub(lambda found: f"{found[str(found.lastgroup)]}{SET}", text)
    return text


def _of_commands(text: str) -> str:
    for pattern in (_OPTIONS, _USERS, _LOGIN):
        text = pattern.sub(rf"\1{SET}", text)
    return text


def _line(found: re.Match[str]) -> str:
    """A whole line `NAME=value`: the value may hold blanks."""
    head, name, value = found.groups()
    return head + SET if is_secret(name) and not HARMLESS.fullmatch(value.strip()) else found[0]


def _header(found: re.Match[str]) -> str:
    head, scheme, _ = found.groups()
    return f"{head}{scheme} {SET}" if scheme else head + SET


_BY_WORD = (
    ("authorization", _HEADER, _header),
    ("cookie", _COOKIE, rf"\1{SET}"),
    ("bearer", _BEARER, rf"\1{SET}"),
)


def _given(text: str) -> str:
    """The text with the values of secret names masked."""
    parts, at, looked = [], 0, 0
    for where, fragment in sorted(_fragments(text.translate(SMALL))):
        if where < looked:
            continue
        head = _head(text, where, at)
        looked = where + len(fragment) if head is None else head.end()
        value = _VALUE.match(text, looked) if head and _is_given(head) else None
        if head and value is not None and _could_be(head, value[0]):
            parts += [text[at:looked], _hidden(value[0])]
            at = looked = value.end()
    return "".join((*parts, text[at:]))


def _fragments(small: str) -> Iterator[tuple[int, str]]:
    """Where in a text in small letters names of secrets may stand."""
    for fragment in OF_NAMES:
        where = small.find(fragment)
        while where >= 0:
            yield where, fragment
            where = small.find(fragment, where + 1)


def _head(text: str, where: int, least: int) -> re.Match[str] | None:
    """The name around a place, with its separator; none where nothing can be given to it."""
    least = max(least, where - _LONGEST_NAME)
    while where > least and (text[where - 1].isalnum() or text[where - 1] in "_.-"):
        where -= 1
    quoted = where > least and text[where - 1] in "\"'"
    return (_GIVEN.match(text, where - 1) if quoted else None) or _GIVEN.match(text, where)


def _hidden(value: str) -> str:
    """What stands for a secret: its quotes and the punctuation behind it stay."""
    found = _QUOTE.match(value)
    if found:
        begin, quote = found[0], found[1]
        closed = value.endswith(quote) and len(value) > len(begin)
        return begin + SET + (quote if closed else "")
    tail = re.search(r"[,;.)\]}]*$", value)
    return SET + (tail[0] if tail else "")


def _begin(value: str) -> int:
    """Where the content of a quoted value begins."""
    found = _QUOTE.match(value)
    return found.end() if found else 0


def _is_given(head: re.Match[str]) -> bool:
    """Whether a secret's name is given a value, rather than standing before a word or a comma."""
    given = bool(head["sep"].strip().strip(",")) or head["dashes"] == "--"
    given = given and not _FILE.search(head["name"])
    return given and (is_secret(head["name"]) or _is_signature(head["name"]))


def _is_signature(name: str) -> bool:
    words = WORD.findall(name)
    return bool(words) and words[-1].lower() in ("sig", "signature")


def _could_be(head: re.Match[str], value: str) -> bool:
    """Whether the value of a secret's name is one, rather than a number or a place holder."""
    bare, separator = value[_begin(value) :].strip("\\\"'"), head["sep"].strip()
    words = {word.lower() for word in WORD.findall(head["name"])}
    if not is_secret(head["name"]):  # a signature
        return len(bare) >= _LEAST_SIGNATURE and "(" not in bare and separator != ":"
    if HARMLESS.fullmatch(bare):
        return False
    if not {"token", "key", "keys", "auth"} & words:
        return True
    if _NUMBER.fullmatch(bare) or bare.startswith(("/", "./", "~")):
        return False
    # "invalid token: unexpected character" is a sentence; "token: abc" at a line's begin is not.
    spoken = re.search(r"[A-Za-z]\s+$", head.string[max(0, head.start() - 40) : head.start()])
    quoted = head["quote"] or value[:1] in "\\\"'"
    return not (spoken and separator == ":" and not quoted and bare.strip(".,;").isalpha())
