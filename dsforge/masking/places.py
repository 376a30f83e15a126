"""Places: where a secret stands in code, tables, documents and sentences, beyond `NAME=value`.

Each pattern is bounded in every repeat, and is tried only on texts that hold one of its words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from dsforge.masking.names import SET, is_secret

_VARIABLE = r"[A-Z][A-Z0-9_]{2,80}"
_NAME = r"[A-Za-z_][\w.-]{0,80}"
_QUOTED = r"""(?:"[^"\n]{1,4096}"|'[^'\n]{1,4096}')"""
_PLACEHOLDER = re.compile(  # names of variables are none, nor are plain words
    r"[A-Z]{1,20}|[A-Z][A-Z0-9]*_[A-Z0-9_]*|[a-z]{1,12}|\(set\).*|\*+|\.{3,}|<[^>]*>|\[[A-Z]+\]"
    r"|\$\{?\w+\}?",
    re.DOTALL,
)


class Place(NamedTuple):
    """A pattern, the words one of which its texts hold, and what stands for a match."""

    words: tuple[str, ...]
    pattern: re.Pattern[str]
    instead: Callable[[re.Match[str]], str] | str


def _named(found: re.Match[str]) -> str:
    """The match with its `value` masked, where its `name` is that of a secret."""
    value = found["value"]
    quote = value[0] if value[0] in "\"'" else ""
    bare = value.strip("\"'")
    if not is_secret(found["name"]) or _PLACEHOLDER.fullmatch(bare):
        return found[0]
    begin = found.start("value") - found.start()
    return f"{found[0][:begin]}{quote}{SET}{quote}{found[0][begin + len(value) :]}"


PLACES = (
    Place(  # ["NAME"] = "value", ("NAME", "value"), setdefault("NAME", "value")
        ('",', "',", '"]', "']", '" ', "' "),
        re.compile(
            rf"""(["'])(?P<name>{_VARIABLE})\1\s{{0,3}}(?:\]\s{{0,3}}=|,)\s{{0,3}}[bru]?"""
            rf"""(?P<value>{_QUOTED})"""
        ),
        _named,
    ),
    Place(
        ("env",),
        re.compile(
            rf"(?:\bsetenv|\bSetEnv|\bENV)[ \t]{{1,3}}(?P<name>{_VARIABLE})[ \t]{{1,3}}"
            r"""(?P<value>[^\s"']+)"""
        ),
        _named,
    ),
    Place(  # a column of a table, an arrow
        ("->", "|", "\t", "\u2192", "\u2502"),
        re.compile(
            rf"""(?<![\w-])(?P<name>{_VARIABLE})["']?(?:[ \t]{{0,40}}(?:->|\||\u2192|\u2502)"""
            r"""[ \t]{0,40}|\t{1,3})(?P<value>["']?(?=[^\s|]{0,99}[0-9])[^\s|"'(]{8,})"""
        ),
        _named,
    ),
    Place(  # {"name": "NAME", "value": "value"}, in YAML and attributes of XML as well
        ("value",),
        re.compile(
            rf"""(?:name|key)["']?\s{{0,3}}[:=]\s{{0,3}}["']?(?P<name>{_NAME})["']?\s{{0,3}},?"""
            r"""\s{0,40}["']?value["']?\s{0,3}[:=]\s{0,3}(?P<value>"[^"\n]+"|'[^'\n]+'|[^\s"',}]+)"""
        ),
        _named,
    ),
    Place(("</",), re.compile(rf"<(?P<name>{_NAME})>(?P<value>[^<>\n]{{1,4096}})(?=</)"), _named),
    Place(  # a block of YAML, and a value below its name in JSON
        ("|", ">"),
        re.compile(
            rf"(?<![\w.-])(?P<name>{_NAME}):[ \t]{{0,9}}[|>][-+0-9]{{0,2}}[ \t]{{0,9}}\n"
            r"[ \t]{1,80}(?P<value>[^\s]+)"
        ),
        _named,
    ),
    Place(
        ('"',),
        re.compile(
            rf"""(?<=")(?P<name>{_NAME})"[ \t]{{0,9}}:[ \t]{{0,9}}\n[ \t]{{0,80}}"""
            r"""(?P<value>"[^"\n]+")"""
        ),
        _named,
    ),
    Place(  # docker's and kaggle's own files
        ('"auth"', "'auth'"),
        re.compile(r"""(["']auth["']\s{0,3}:\s{0,3}["'])[A-Za-z0-9+/=]{8,}"""),
        rf"\1{SET}",
    ),
    Place(
        ("username",),
        re.compile(
            r"""(["']username["']\s{0,3}:\s{0,3}["'][^"'\n]{0,80}["']\s{0,3},\s{0,9}["']key["']"""
            r"""\s{0,3}:\s{0,3}["'])[^"'\n]+"""
        ),
        rf"\1{SET}",
    ),
    Place(  # login("value"), save_token("value"), login(key="value")
        ("login(", "_token(", "_key("),
        re.compile(
            r"""(\b(?:login|(?:save|set)_(?:token|api_key|access_token))\(\s{0,3}(?:\w{1,20}"""
            r"""\s{0,3}=\s{0,3})?["'])(?=[^"'\n]{0,99}[0-9])[^"'\s]{12,}"""
        ),
        rf"\1{SET}",
    ),
    Place(
        ("password-stdin",),
        re.compile(r"(\becho\s{1,3})[^\s|]+(?=[^\n]{0,200}--password-stdin)"),
        rf"\1{SET}",
    ),
    Place(  # "Incorrect API key provided: value"; a word of letters alone is none
        ("api key", "token", "password", "secret", "credential"),
        re.compile(
            r"""(?i)(\b(?:api key|token|password|secret|credentials?)(?:[ ](?:provided|is|was"""
            r"""|given|value|rejected)){0,2}[ ]?:?[ ]["'`]?)(?-i:(?=[^\s"'`]{0,60}[a-z])"""
            r"""(?=[^\s"'`]{0,60}[A-Z])(?=[^\s"'`]{0,60}[0-9][^\s"'`]{0,60}[0-9]))"""
            r"""[A-Za-z0-9_+/=-]{12,}"""
        ),
        rf"\1{SET}",
    ),
    Place(  # addresses that are secrets themselves
        ("hooks.slack", "/webhooks/", "api.telegram"),
        re.compile(
            r"(//hooks\.slack\.com/(?:services|workflows|triggers)/|/api/webhooks/[0-9]{1,30}/"
            r"|//api\.telegram\.org/bot)[^\s\"'<>]+"
        ),
        rf"\1{SET}",
    ),
)


def in_places(text: str, small: str) -> str:
    """The text without the secrets of all places; `small` is the text in small letters."""
    for place in PLACES:
        if any(word in small for word in place.words):
            text = place.pattern.sub(place.instead, text)
    return text
