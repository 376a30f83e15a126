"""The commands that a script would start, with what is known of their words.

The script is followed from its first line to its last as it would run without arguments: nothing is
started or opened. A branch whose condition nobody knows is followed too, and variables about which
branches disagree are not known after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from dsforge.importing.shell.answers import answered
from dsforge.importing.shell.conditions import arithmetic_holds, holds, is_test
from dsforge.importing.shell.expansion import (
    JOIN,
    Held,
    Piece,
    Variables,
    is_unknown,
    unknown,
    without_unset,
)
from dsforge.importing.shell.syntax import (
    Case,
    For,
    Function,
    If,
    Line,
    Lines,
    Parser,
    Simple,
)
from dsforge.importing.shell.tokens import Token, tokens

MOST_STEPS = 5_000  # commands and blocks that are followed, calls and sourced files included
PRICE_OF_A_SCRIPT = 50  # steps, for reading another script
MOST_WORDS = 200_000  # of all commands together
DEEPEST = 12  # calls and sourced files
LONGEST_RAW = 100_000  # characters of one word that is expanded
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^\]=]*\])?(\+?)=", re.DOTALL)
MOST_BEFORE = 60  # words before the text that a shell is given
_FLAG_LINE = re.compile(r"\n(?=[ \t]*--)")  # which nobody means to be a command
_COMMAND = re.compile(r"-[a-z]*c")
DECLARING = ("export", "local", "declare", "readonly", "typeset")
QUIET = frozenset(
    "echo printf cd mkdir rm cp mv ls cat touch module conda pip which date sleep set unset "
    "ulimit exit return shift trap wait kill hostname chmod ln tee sed awk grep head tail".split()
)


class Command(NamedTuple):
    """One command: its words, variables that stand before it, and those of its script."""

    words: tuple[Piece, ...]
    variables: dict[str, str]


class Script(NamedTuple):
    """What a script does: its commands in order, and files that it writes."""

    commands: tuple[Command, ...]
    documents: dict[str, Piece]
    variables: dict[str, Held]


Sourced = Callable[[str], str | None]  # the text of another script, where it was given


def followed(
    text: str, known: dict[str, str] | None = None, sourced: Sourced | None = None
) -> Script:
    """What a script would start; `known` are variables of its environment."""
    runner = _Runner(sourced or (lambda _name: None))
    for name, value in (known or {}).items():
        runner.variables.keep(name, value, 0)
    runner.follow(Parser(tokens(text)).script())
    return Script(tuple(runner.commands), runner.documents, runner.variables.values)


class _Runner:
    """Follows lines, and notes commands."""

    def __init__(self, sourced: Sourced) -> None:
        self.variables = Variables(answers=answered)
        self.commands: list[Command] = []
        self.documents: dict[str, Piece] = {}
        self._functions: dict[str, Lines] = {}
        self._sourced = sourced
        self._depth = self._words = self._steps = 0

    def follow(self, lines: Lines) -> None:
        """Follow lines; `&&` and `||` decide where their left side is known."""
        before: bool | None = True
        for line in lines:
            if line.joined == "&&" and before is False:
                continue
            if line.joined == "||" and before is True:
                continue
            if line.joined and before is None:
                self._maybe((line.node,))
                continue
            before = self._node(line.node)

    def _node(self, node: object) -> bool | None:
        """Follow one node; whether it succeeds, for a condition."""
        self._steps += 1
        if self._steps > MOST_STEPS or self._words > MOST_WORDS:
            return None
        if isinstance(node, Simple):
            return self._simple(node)
        if isinstance(node, If):
            self._if(node)
        elif isinstance(node, For):
            self._loop(node)
        elif isinstance(node, Case):
            self._case(node)
        elif isinstance(node, Function):
            self._functions[node.name] = node.body
        elif isinstance(node, tuple):
            arithmetic = _arithmetic(node)
            if arithmetic is not None:
                return arithmetic_holds(
                    self.variables.with_values(self.variables.string(arithmetic))
                )
            self.follow(node)
        return True

    def _holds(self, condition: Lines) -> bool | None:
        """Whether a condition holds: several lines by their joints."""
        found: bool | None = True
        for line in condition:
            one = self._condition(line)
            if line.joined == "&&":
                found = False if False in (found, one) else None if None in (found, one) else True
            elif line.joined == "||":
                found = True if True in (found, one) else None if None in (found, one) else False
            else:
                found = one
        return found

    def _condition(self, line: Line) -> bool | None:
        node = line.node
        if not isinstance(node, Simple):
            return self._node(node)
        words = [self.variables.whole(word.text) for word in node.words]
        turned = words[:1] == ["!"]
        words = words[1:] if turned else words
        if not is_test(words):
            return None
        found = holds(words)
        return found if found is None or not turned else not found

    def _if(self, node: If) -> None:
        open_arms: list[Lines] = []
        for condition, body in node.arms:
            found = self._holds(condition) if condition else True
            if found is False:
                continue
            open_arms.append(body)
            if found:
                break
        else:
            open_arms.append(())
        if len(open_arms) == 1:
            self.follow(open_arms[0])
        else:
            self._merge(open_arms)

    def _case(self, node: Case) -> None:
        word = without_unset(self.variables.whole(node.word.text))
        arms = node.arms
        if not is_unknown(word):
            plain = (
                (self.variables.whole(pattern), body)
                for patterns, body in arms
                for pattern in " ".join(patterns).split("|")
            )
            for pattern, body in plain:
                if pattern.strip() in (word, "*"):
                    self.follow(body)
                    return
            return
        self._merge([*(body for _, body in arms), ()])

    def _loop(self, node: For) -> None:
        if node.condition:
            if self._holds(node.condition) is not False:
                self._merge([node.body, ()])
            return
        items = [piece for word in node.words for piece in self.variables.fields(word.text, 0)]
        if node.name:
            one = items[0].text if len(items) == 1 else unknown(node.name)
            self.variables.keep(node.name, one, 0)
        self.follow(node.body)

    def _maybe(self, nodes: tuple[object, ...]) -> None:
        """Follow what may or may not run."""
        before = self.variables.copy()
        for node in nodes:
            self._node(node)
        self.variables = _agreed([before, self.variables], before)

    def _merge(self, bodies: list[Lines]) -> None:
        """Follow each body from the same variables; those that differ afterwards are unknown."""
        before, after = self.variables, []
        for body in bodies:
            self.variables = before.copy()
            self.follow(body)
            after.append(self.variables)
        self.variables = _agreed(after, before)

    def _simple(self, node: Simple) -> bool | None:
        words = list(node.words)
        prefix: dict[str, str] = {}
        declares = bool(words) and words[0].text in DECLARING
        words = words[1:] if declares else words
        while words and (match := _ASSIGNED.match(words[0].text)):
            token = words.pop(0)
            self._assign(match, token)
            prefix[match[1]] = self.variables.text(match[1])
        if not words or declares:
            for token in words:
                if declares and (match := _ASSIGNED.match(token.text)):
                    self._assign(match, token)
            return True
        pieces = [p for word in words for p in self._fields(word)]
        if not pieces:
            return True
        texts = [piece.text for piece in pieces]
        if is_test(texts):
            return holds([self.variables.whole(word.text) for word in words])
        self._document(node)
        if texts[0] in ("read", "mapfile") and (node.document or node.given):
            self._read(texts, node, prefix.get("IFS", " "))
            return True
        return self._started(pieces, prefix)

    def _fields(self, word: Token) -> list[Piece]:
        if len(word.text) > LONGEST_RAW:
            return []
        found = self.variables.fields(word.text, word.line)
        self._words += len(found)
        return found

    def _started(self, pieces: list[Piece], prefix: dict[str, str]) -> bool | None:
        """Note a command, or follow the function or the script that it calls."""
        name = pieces[0].text
        inner = self._functions.get(name)
        if inner is None:
            inner, pieces = self._script_of(pieces)
        if inner is not None:
            if self._depth < DEEPEST:
                self._depth += 1
                for number, piece in enumerate(pieces[1:10], start=1):
                    self.variables.keep(str(number), piece.text, piece.line)
                self.follow(inner)
                self._depth -= 1
            return True
        if self._inner(pieces):
            return True
        if name not in QUIET:
            known = {key: held.text for key, held in self.variables.values.items()}
            self.commands.append(Command(tuple(pieces), {**known, **prefix}))
        return True

    def _inner(self, pieces: list[Piece]) -> bool:
        """Follow the text that a shell is given (`bash -c TEXT`); false where it starts nothing."""
        texts = [piece.text for piece in pieces[:MOST_BEFORE]]
        for at, text in enumerate(texts[:-2]):
            if text.rpartition("/")[2] in ("bash", "sh") and _COMMAND.fullmatch(texts[at + 1]):
                found = pieces[at + 2]
                break
        else:
            return False
        text = _FLAG_LINE.sub(JOIN, found.text)
        if self._depth >= DEEPEST or "\n" not in text.replace(JOIN, "").strip():
            return False
        count, before = len(self.commands), self.variables.copy()
        self._depth += 1
        inner = [t._replace(line=t.line + found.line - 1) for t in tokens(text)]
        self.follow(Parser(inner).script())
        self._depth -= 1
        self.variables = before
        return len(self.commands) > count

    def _script_of(self, pieces: list[Piece]) -> tuple[Lines | None, list[Piece]]:
        """Another script that a command runs, where it was given, and the words from its name."""
        texts = [piece.text for piece in pieces[:12]]
        at = next(
            (n for n, text in enumerate(texts) if text in ("source", ".", "bash", "sh")), None
        )
        if at is None or at + 1 >= len(texts) or texts[at + 1].startswith("-"):
            return None, pieces
        self._steps += PRICE_OF_A_SCRIPT
        text = self._sourced(texts[at + 1]) if self._steps < MOST_STEPS else None
        return (None if text is None else Parser(tokens(text)).script()), pieces[at + 1 :]

    def _assign(self, match: re.Match[str], token: Token) -> None:
        """Give a variable the text or the items behind its `=`."""
        name, index, added = match[1], match[2], match[3]
        raw = token.text[match.end() :]
        if len(raw) > LONGEST_RAW:
            return
        old = self.variables.values.get(name)
        before: Iterable[Piece] = old.items if old is not None and added else ()
        if raw.startswith("("):
            inner = tokens(raw[1:-1])
            items = [
                piece
                for word in inner
                if word.is_word
                for piece in self._fields(word._replace(line=word.line + token.line - 1))
            ]
            self.variables.values[name] = Held((*before, *items), is_array=True)
            return
        if index:
            return
        text = self.variables.whole(raw)
        self._words += 1 + len(text) // 100
        if added:
            text = "".join(piece.text for piece in before) + text
        line = token.line if not added or old is None else old.items[0].line if old.items else 0
        self.variables.keep(name, text, line)

    def _read(self, words: list[str], node: Simple, separator: str) -> None:
        """`read NAME ...` gives variables the words of a text or the lines of a document."""
        names = [word for word in words[1:] if word.isidentifier()]
        if node.given is not None and names:
            text = self.variables.whole(node.given.text)
            known = separator and not is_unknown(separator) and not is_unknown(text)
            parts = text.split(separator.strip() or None) if known else []
            for number, name in enumerate(names):
                part = parts[number] if number < len(parts) else unknown(name)
                self.variables.keep(name, part, node.given.line)
        elif node.document is not None and node.document.document is not None and names:
            document = node.document
            raw = document.document or ""
            text = raw if document.is_literal else self.variables.string(raw)
            self.variables.keep(names[-1], text, document.line + 1)

    def _document(self, node: Simple) -> None:
        """Note a file that a command writes from a here-document."""
        if node.document is None or node.document.document is None or node.target is None:
            return
        content = node.document.document
        text = content if node.document.is_literal else self.variables.string(content)
        name = self.variables.whole(node.target.text)
        self.documents[name] = Piece(text.replace("\x03", ""), node.document.line + 1)


def _arithmetic(node: tuple[object, ...]) -> str | None:
    """The text of `(( text ))`; none where a block is anything else."""
    if len(node) != 1 or not isinstance(node[0], Line) or not isinstance(node[0].node, tuple):
        return None
    inner = node[0].node
    if len(inner) != 1 or not isinstance(inner[0].node, Simple):
        return None
    return " ".join(word.text for word in inner[0].node.words)


def _agreed(after: list[Variables], before: Variables) -> Variables:
    """Variables about which all agree; a value that was known stays where the others do not know.

    Options of a script are such: `while` loops over arguments that nobody gives.
    """
    names = {name for each in after for name in each.values}
    made = Variables(answers=before.answers)
    for name in names:
        found = {each.values.get(name) for each in after}
        known = {held for held in found if held is not None and not is_unknown(held.text)}
        old = before.values.get(name)
        if len(found) == 1:
            held = next(iter(found))
        elif len(known) == 1 and (old in known or old is None):
            held = next(iter(known))
        else:
            held = Held((Piece(unknown(name), 0),))
        if held is not None:
            made.values[name] = held
    return made
