"""Tokens of a shell script: words with their quotes, operators, and here-documents.

Words stay as they are written; `expansion.py` takes the quotes off once the variables are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

LARGEST = 60_000  # tokens
MOST_DOCUMENTS = 200  # here-documents
OPERATOR = re.compile(r"&&|\|\||;;|<<<|<<-?|>>|>&|<&|&>>?|\|&|[;|&()<>]")
_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n|\x03\n?)+")
_PLAIN = re.compile(r"[^\s\x03\\'\"$`;|&()<>]+")
_TAG = re.compile(r"[ \t]*\\?['\"]?([\w.-]{1,60})['\"]?")


class Token(NamedTuple):
    r"""A word or an operator; a newline is the operator `\\n`."""

    text: str
    line: int
    is_word: bool = False
    document: str | None = None  # text of the here-document that an operator `<<` reads
    is_literal: bool = False  # its tag is quoted: variables stay as they are


class _Lexer:
    """Goes through the text once; no part is read twice."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1
        self.documents = 0

    def tokens(self) -> Iterator[Token]:
        """Every token up to the limit."""
        for _ in range(LARGEST):
            blank = _BLANK.match(self.text, self.at)
            if blank:
                self._pass(blank.end())
            if self.at >= len(self.text):
                return
            token = self._next()
            if token is not None:
                yield token

    def _next(self) -> Token | None:
        mark = self.text[self.at]
        if mark == "#":
            end = self.text.find("\n", self.at)
            self._pass(len(self.text) if end < 0 else end)
            return None
        if mark == "\n":
            token = Token("\n", self.line)
            self._pass(self.at + 1)
            return token
        operator = OPERATOR.match(self.text, self.at)
        if operator and not self.text.startswith(("<(", ">("), self.at):
            return self._operator(operator[0])
        start, line = self.at, self.line
        self._pass(word_end(self.text, self.at))
        return Token(self.text[start : self.at], line, is_word=True)

    def _operator(self, text: str) -> Token:
        line = self.line
        self._pass(self.at + len(text))
        self.documents += text in ("<<", "<<-")
        if text not in ("<<", "<<-") or self.documents > MOST_DOCUMENTS:
            return Token(text, line)
        tag = _TAG.match(self.text, self.at)
        if tag is None:
            return Token(text, line)
        quoted = any(mark in tag[0] for mark in "'\"\\")
        self._pass(tag.end())
        return Token(text, line, document=self._document(tag[1]), is_literal=quoted)

    def _document(self, tag: str) -> str:
        """The lines up to the tag, taken out of the text."""
        begin = self.text.find("\n", self.at)
        if begin < 0:
            return ""
        end = re.compile(rf"^[ \t]*{re.escape(tag)}[ \t]*\r?$", re.MULTILINE)
        match = end.search(self.text, begin + 1)
        stop = match.start() if match else len(self.text)
        content = self.text[begin + 1 : stop]
        rest = self.text[match.end() :] if match else ""
        kept = "\n" * content.count("\n") + rest  # so that lines keep their numbers
        self.text = self.text[: begin + 1] + kept
        return content

    def _pass(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to


def tokens(text: str) -> list[Token]:
    """The tokens of a script."""
    return list(_Lexer(text.replace("\r\n", "\n")).tokens())


def word_end(text: str, at: int) -> int:
    """Where the word ends that begins there, with its quotes and substitutions."""
    while at < len(text):
        plain = _PLAIN.match(text, at)
        if plain:
            at = plain.end()
            if plain[0].endswith("=") and text[at : at + 1] == "(":
                at = closing(text, at, "()")
            continue
        after = piece_end(text, at)
        if after == at:
            return at
        at = after
    return len(text)


def piece_end(text: str, at: int) -> int:  # noqa: PLR0911 - one for each form
    """Where a quoted part, an escape or a substitution ends; `at` where none begins there."""
    mark = text[at]
    if mark == "\\":
        return min(len(text), at + 2)
    if mark in "'`":
        end = text.find(mark, at + 1)
        return len(text) if end < 0 else end + 1
    if mark == '"':
        return string_end(text, at)
    if mark == "$":
        follows = text[at + 1 : at + 2]
        if follows in ("(", "{"):
            return closing(text, at + 1, "()" if follows == "(" else "{}")
        return at + 1
    if mark in "<>" and text[at + 1 : at + 2] == "(":
        return closing(text, at + 1, "()")
    return at


def string_end(text: str, at: int) -> int:
    """Behind the closing double quote of a string."""
    at += 1
    while at < len(text):
        if text[at] == '"':
            return at + 1
        if text[at] == "\\":
            at += 2
        elif text.startswith("$(", at):
            at = closing(text, at + 1, "()")
        else:
            at += 1
    return len(text)


def closing(text: str, at: int, pair: str) -> int:
    """Behind the bracket that closes the one at `at`; quotes inside are passed over."""
    depth = 0
    while at < len(text):
        mark = text[at]
        if mark in pair:
            depth += 1 if mark == pair[0] else -1
            if not depth:
                return at + 1
            at += 1
        elif mark == "\\":
            at += 2
        elif mark == "'":
            end = text.find("'", at + 1)
            at = len(text) if end < 0 else end + 1
        elif mark == '"':
            end = text.find('"', at + 1)
            while end > 0 and text[end - 1] == "\\":
                end = text.find('"', end + 1)
            at = len(text) if end < 0 else end + 1
        elif mark == "#" and text[at - 1] in " \t\n" and pair == "()":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        else:
            at += 1
    return len(text)
