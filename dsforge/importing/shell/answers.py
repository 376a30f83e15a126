"""What `$(command)` gives, for commands that only echo, test, or name the folder of the script."""

from __future__ import annotations

import re
from itertools import takewhile

from dsforge.importing.shell.conditions import holds, is_test
from dsforge.importing.shell.expansion import UNSET, Variables, is_unknown, unknown
from dsforge.importing.shell.syntax import Parser, Simple
from dsforge.importing.shell.tokens import tokens

LONGEST = 500  # characters: such commands are short
HERE = "."  # the folder of the script, where the files beside it are looked up
SCRIPTS = frozenset(unknown(UNSET + name) for name in ("0", "BASH_SOURCE"))  # as `$0` expands
COUNTING = re.compile(
    r"\|\s*tr\s+(['\"]?),\1\s+['\"]\\n['\"]\s*\|\s*wc\s+-l\s*$"
    r"|\|\s*awk\s+-F\s*['\"]?,['\"]?\s+'\{\s*print NF;?\s*\}'\s*$"
)
OPTION = re.compile(r"-[neE]+")  # of `echo`
RESOLVING = ("realpath", "readlink")


def answered(command: str, variables: Variables) -> str | None:
    """What a command prints; none for one that nobody knows without running it."""
    if len(command) > LONGEST:
        return None
    words = tokens(command)
    pipes = [at for at, token in enumerate(words) if token.text == "|"]
    if pipes:
        shown = [variables.whole(token.text) for token in words[: pipes[0]]]
        return _counted(shown[1:], command) if shown[:1] == ["echo"] else None
    lines = Parser(words).script()
    nodes = [line.node for line in lines]
    simple = [node for node in nodes if isinstance(node, Simple)]
    if not simple or len(simple) < len(nodes):
        return None
    said = [[variables.whole(word.text) for word in node.words] for node in simple]
    if "echo" in command:
        return _echoed([line.joined for line in lines], said)
    return _folder(said)


def _counted(said: list[str], command: str) -> str | None:
    r"""How many parts of a list are counted: `echo $CUDA_VISIBLE_DEVICES | tr ',' '\n' | wc -l`.

    `wc` counts ends of lines: after `echo -n` the last part has none.
    """
    options = list(takewhile(OPTION.fullmatch, said))
    listed = " ".join(said[len(options) :])
    counting = COUNTING.search(command)
    if is_unknown(listed) or counting is None:
        return None
    is_unended = "wc" in counting[0] and any("n" in option for option in options)
    return str(len(listed.split(",")) - is_unended)


def _echoed(joints: list[str], said: list[list[str]]) -> str | None:
    """What `test && echo A || echo B` prints."""
    before: bool | None = True
    for joined, words in zip(joints, said, strict=True):
        if (joined == "&&" and not before) or (joined == "||" and before):
            continue
        if before is None:
            return None
        if words[:1] == ["echo"]:
            return " ".join(word for word in words[1:] if word not in ("-n", "-e"))
        if not is_test(words):
            return None
        before = holds(words)
    return None


def _folder(said: list[list[str]]) -> str | None:
    """What `pwd`, `dirname`, `realpath` and `cd FOLDER && pwd` print; the script is here."""
    *before, last = said
    if any(words[:1] not in (["cd"], ["pushd"]) for words in before) or not last:
        return None
    program, arguments = last[0], [word for word in last[1:] if not word.startswith("-")]
    if program == "pwd":
        way = before[-1][-1] if before and len(before[-1]) > 1 else HERE
        return None if is_unknown(way) else way
    if before or len(arguments) != 1:
        return None
    path = arguments[0]
    if program in RESOLVING:
        return path
    if program == "dirname":
        return _parent(path)
    return None


def _parent(path: str) -> str | None:
    """The folder that a path is in: of the script itself the one here."""
    if path in SCRIPTS:
        return HERE
    if is_unknown(path):
        return None
    folder, slash, _ = path.rstrip("/").rpartition("/")
    if path.strip("./") == "":
        return f"{path}/.."
    return folder if slash and folder else HERE
