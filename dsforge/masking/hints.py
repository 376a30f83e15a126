"""Hints: the lines of a text in which a secret may stand, found before any pattern is tried."""

from __future__ import annotations

import re
from collections.abc import Iterator

# What the name of a secret holds, and what a secret that is known by its shape does, in small
# letters: looked for first, since most words of most texts have none of it.
OF_NAMES = (
    *("token", "secret", "pass", "pw", "cred", "key", "auth", "cookie", "sas", "bearer", "jwt"),
    "sig",
)
_OF_SHAPES = (
    *(
        "hf_",
        "api_org_",
        "sk-",
        "rk-",
        "sk_",
        "rk_",
        "akia",
        "asia",
        "abia",
        "acca",
        "ghp_",
        "gho_",
    ),
    *("ghs_", "ghu_", "ghr_", "github_", "xox", "xapp-", "eyj", "nvapi-", "npm_", "pypi-"),
    *("dop_v1_", "aiza", "ya29.", "whsec_", "sg.", "r8_", "gsk_", "xai-", "pplx-", "dapi"),
    *("wandb_v1_", "rpa_", "hvs.", "hvb.", "lin_api_", "gocspx-", "age-secret", "atatt3"),
    *("tgp_v1_", "hooks.slack.com", "/api/webhooks/", "api.telegram.org"),
)
_GITLAB = re.compile(r"gl[a-z]{2,5}-")
COMMANDS = (
    "login",
    "mysql",
    "docker",
    "redis-cli",
    "curl",
    "wget",
    "wandb",
    "comet",
    "neptune",
    "sshpass",
)
SMALL = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
LONG_WORD = 60  # letters that may be a line of a private key
# A longer text is looked at in blocks of lines, and then by the lines of a block.
LONG_TEXT, _BLOCK_LINES = 1 << 15, 4096
_BEFORE, _AFTER = 2, 4  # lines beside a line with a hint that a pattern may reach into
_OPEN_QUOTE = re.compile(r"""[=:,\s]\s*\\?(["'])[^"']*\Z""")
_LONGEST_QUOTE = 4096


def is_hinted(text: str) -> bool:
    """Whether any pattern may match in a text."""
    words = set(text.split())  # no hint has a blank in it, and logs say the same words over again
    small = " ".join(words).translate(SMALL)
    if "@" in small or any(hint in small for hint in OF_NAMES) or may_be_shaped(small):
        return True
    return any(hint in small for hint in COMMANDS) or any(len(w) >= LONG_WORD for w in words)


def may_be_shaped(small: str) -> bool:
    """Whether a text in small letters may hold a secret that is known by its shape."""
    if any(hint in small for hint in _OF_SHAPES):
        return True
    return "gl" in small and _GITLAB.search(small) is not None


def groups(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Ranges of lines in which secrets may stand, in order, with the lines that belong to them."""
    begin = end = 0
    for number in _hinted(lines):
        if number - _BEFORE > end and begin < end:
            yield begin, end
            begin = end
        if begin == end:
            begin = max(end, number - _BEFORE)
        if number >= end - _AFTER:
            end = max(end, _end(lines, number))
    if begin < end:
        yield begin, end


def _hinted(lines: list[str]) -> Iterator[int]:
    """Numbers of the lines that hold a hint."""
    for begin in range(0, len(lines), _BLOCK_LINES):
        block = lines[begin : begin + _BLOCK_LINES]
        words = set("\n".join(block).split())
        if is_hinted(" ".join(words)):
            hinted = {word for word in words if is_hinted(word)}
            yield from (
                begin + at for at, line in enumerate(block) if not hinted.isdisjoint(line.split())
            )


def _end(lines: list[str], number: int) -> int:
    """The number after the last line that a secret in a line can reach into."""
    line = lines[number]
    if "-----BEGIN" in line:
        mark, number = "-----END", number - 1
    elif found := _OPEN_QUOTE.search(line[-_LONGEST_QUOTE:]):
        mark = found[1]
    else:
        return min(len(lines), number + 1 + _AFTER)
    closed = next((n for n in range(number + 1, len(lines)) if mark in lines[n]), len(lines))
    return min(len(lines), closed + 1 + _AFTER)
