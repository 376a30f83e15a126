"""Syntax of a shell script: tokens -> nodes. What is not understood ends its own line, no more."""

from __future__ import annotations

import re
from typing import NamedTuple

from dsforge.importing.shell.tokens import Token

DEEPEST = 30  # levels of blocks
ENDS = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}", ")"))
_NAME = re.compile(r"[A-Za-z_][\w:.-]*")


class Simple(NamedTuple):
    """One command: its words, and the documents and files that it is connected with."""

    words: tuple[Token, ...]
    document: Token | None = None
    target: Token | None = None  # the file that its output goes to
    given: Token | None = None  # the text behind `<<<`


class If(NamedTuple):
    """Conditions with what follows from each; an empty condition always holds."""

    arms: tuple[tuple[Lines, Lines], ...]


class For(NamedTuple):
    """A loop over words; `while` and `until` have a condition instead."""

    name: str
    words: tuple[Token, ...]
    body: Lines
    condition: Lines = ()


class Case(NamedTuple):
    """A word, and patterns with what follows from each."""

    word: Token
    arms: tuple[tuple[tuple[str, ...], Lines], ...]


class Function(NamedTuple):
    """A named block."""

    name: str
    body: Lines


class Line(NamedTuple):
    """A node, and how it is joined to the one before: `&&`, `||`, or neither."""

    joined: str
    node: Simple | If | For | Case | Function | tuple[Line, ...]


Lines = tuple[Line, ...]


class Parser:
    """Goes through the tokens once."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    def script(self) -> Lines:
        """All lines; a stray closing word is passed over."""
        lines: list[Line] = []
        while self._at < len(self._tokens):
            lines += self._lines(())
            self._at += 1
        return tuple(lines)

    def _here(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _is_at(self, *texts: str) -> bool:
        token = self._here()
        return token is not None and token.text in texts

    def _lines(self, ends: tuple[str, ...]) -> Lines:
        """Lines up to a word that ends them, which stays."""
        lines: list[Line] = []
        joined = ""
        while (token := self._here()) is not None:
            if token.text in ends or token.text in ENDS or token.text == ";;":
                break
            if not token.is_word and token.text != "(":
                joined = token.text if token.text in ("&&", "||") else ""
                if token.text == "\n" and lines and self._joins_before():
                    joined = self._tokens[self._at - 1].text
                self._at += 1
                continue
            before = self._at
            lines.append(Line(joined, self._node()))
            joined = ""
            self._at += self._at == before
        return tuple(lines)

    def _joins_before(self) -> bool:
        return self._tokens[self._at - 1].text in ("&&", "||")

    def _node(self) -> Simple | If | For | Case | Function | Lines:
        """One command or block."""
        token = self._tokens[self._at]
        self._depth += 1
        try:
            if self._depth > DEEPEST:
                return self._simple()
            if token.text == "if":
                return self._if()
            if token.text in ("for", "select", "while", "until"):
                return self._loop(token.text)
            if token.text == "case":
                return self._case()
            if token.text in ("{", "("):
                return self._block("}" if token.text == "{" else ")")
            return self._function() or self._simple()
        finally:
            self._depth -= 1

    def _block(self, end: str) -> Lines:
        self._at += 1
        lines = self._lines((end,))
        self._at += self._is_at(end)
        return lines

    def _if(self) -> If:
        arms: list[tuple[Lines, Lines]] = []
        while self._is_at("if", "elif"):
            self._at += 1
            condition = self._lines(("then",))
            self._at += self._is_at("then")
            arms.append((condition, self._lines(())))
        if self._is_at("else"):
            self._at += 1
            arms.append(((), self._lines(())))
        self._at += self._is_at("fi")
        return If(tuple(arms))

    def _loop(self, kind: str) -> For:
        self._at += 1
        name, words = "", []
        condition: Lines = ()
        if kind in ("for", "select"):
            while (token := self._here()) is not None and not self._is_at("do", ";", "\n"):
                words.append(token)
                self._at += 1
            name = words[0].text if words and words[0].is_word else ""
            while self._is_at(";", "\n"):
                self._at += 1
        else:
            condition = self._lines(("do",))
        self._at += self._is_at("do")
        body = self._lines(())
        self._at += self._is_at("done")
        items = tuple(word for word in words[2:] if word.is_word)
        return For(name, items, body, condition)

    def _case(self) -> Case:
        self._at += 1
        word = self._here() or Token("", 0, is_word=True)
        self._at += 1
        while self._is_at("in", "\n"):
            self._at += 1
        arms: list[tuple[tuple[str, ...], Lines]] = []
        while (token := self._here()) is not None and token.text != "esac":
            patterns: list[str] = []
            while (token := self._here()) is not None and token.text != ")":
                if token.text == "esac":
                    break
                patterns += [token.text] if token.is_word else []
                self._at += 1
            self._at += self._is_at(")")
            body = self._lines((";;",))
            arms.append((tuple(patterns), body))
            if not self._is_at(";;", "esac"):
                self._at += 1
            self._at += self._is_at(";;")
            while self._is_at("\n"):
                self._at += 1
        self._at += self._is_at("esac")
        return Case(word, tuple(arms))

    def _function(self) -> Function | None:
        """`name() { ... }` or `function name { ... }`; none where it is no function."""
        texts = [token.text for token in self._tokens[self._at : self._at + 4]]
        if texts[:1] == ["function"] and len(texts) > 1:
            name, self._at = texts[1], self._at + 2
            self._at += 2 * (texts[2:4] == ["(", ")"])
        elif texts[1:3] == ["(", ")"] and _NAME.fullmatch(texts[0]):
            name, self._at = texts[0], self._at + 3
        else:
            return None
        while self._is_at("\n"):
            self._at += 1
        return Function(name, self._block("}") if self._is_at("{") else ())

    def _simple(self) -> Simple:
        """Words up to an operator; redirections belong to it."""
        words: list[Token] = []
        document = target = given = None
        while (token := self._here()) is not None:
            if token.is_word:
                words.append(token)
                self._at += 1
            elif token.text in ("<<", "<<-"):
                document = token
                self._at += 1
            elif token.text[0] in "<>" or token.text.startswith("&>"):
                if words and words[-1].text.isdigit() and words[-1].line == token.line:
                    words.pop()  # the number of a stream
                self._at += 1
                follows = self._here()
                if follows is not None and follows.is_word:
                    given = follows if token.text == "<<<" else given
                    target = follows if token.text in (">", ">>") and target is None else target
                    self._at += 1
            else:
                break
        return Simple(tuple(words), document, target, given)
