"""Whatever a path of the command line names, every command ends with an error of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dsforge.cli import paths
from dsforge.cli.main import COMMANDS, command_of, main

LONG = "a" * 300
KINDS = ("file", "file/inside", "long", "long/inside")
WORDS = {"integer": "1", "float": "1", "whole number": "1"}


def leaves(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The names of a command and of those below it."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*words, name))
    else:
        yield words


def found(words: tuple[str, ...]) -> click.Command:
    """The command of some names."""
    command = command_of(words[0])
    for word in words[1:]:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    return command


def is_path(parameter: click.Parameter) -> bool:
    """Whether a parameter is a path, or a text that may name one."""
    named = parameter.name in ("model", "source", "checkpoint", "tokenizer")
    return isinstance(parameter.type, click.Path) or named


ALL = [words for name in COMMANDS for words in leaves(command_of(name), (name,))]
PATHS = [
    (words, str(parameter.name))
    for words in ALL
    for parameter in found(words).params
    if is_path(parameter)
]


def line(words: tuple[str, ...], wrong: str, value: str, folder: Path) -> list[str]:
    """A command line with a value for one parameter, and for those that are required."""
    given: list[str] = []
    last: list[str] = []
    for parameter in found(words).params:
        is_wrong = parameter.name == wrong
        if not (is_wrong or parameter.required):
            continue
        kind = parameter.type
        other = kind.choices[0] if isinstance(kind, click.Choice) else WORDS.get(kind.name, "x")
        text = value if is_wrong else str(folder) if is_path(parameter) else str(other)
        if isinstance(parameter, click.Option):
            given += [max(parameter.opts, key=len), text]
        else:
            last.append(text)
    return [*words, *given, "--", *last]


def test_every_command_is_there() -> None:
    """Those with paths are most of them."""
    assert len({words[0] for words, _ in PATHS}) >= 15


def test_one_type_reads_every_path() -> None:
    """A command that took click's own would be without the check."""
    own = Path(str(paths.__file__))
    texts = {p.name: p.read_text() for p in own.parent.glob("*.py") if p != own}

    assert [name for name, text in texts.items() if "click.Path(" in text] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("words", "wrong"), PATHS, ids=[f"{'-'.join(w)}-{n}" for w, n in PATHS])
def test_a_path_that_cannot_be_one_ends_with_an_error(
    *,
    words: tuple[str, ...],
    wrong: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file where a folder is meant, something in a file, and names that no file system has."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "file.json").write_bytes(b"\x00\x01")
    value = kind.replace("file", "file.json").replace("long", LONG)
    with pytest.raises(SystemExit) as caught:
        main(line(words, wrong, value, folder))

    said = capsys.readouterr()
    assert "Traceback" not in said.err
    if kind != "file":  # which is what some mean
        assert caught.value.code in (1, 2, 3), said
        assert "rror" in said.err + said.out
