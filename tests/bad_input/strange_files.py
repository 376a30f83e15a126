"""Things that a path may name instead of a good file, each made by one function."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

Make = Callable[[Path], None]
NUMBERS = (
    "9" * 5000,
    "1e999",
    "NaN",
    "-1",
    "Infinity",
    "\uff11\uff12",
    "0x10",
    "1_000",
    "-0",
    "1e-400",
)
HUGE = 3 << 30


def _written(content: bytes) -> Make:
    return lambda path: path.write_bytes(content) and None


def _linked(target: str) -> Make:
    return lambda path: path.symlink_to(target)


def _sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(HUGE)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _tree(path: Path) -> None:
    deep = path
    for _ in range(60):
        deep /= "d"
    deep.mkdir(parents=True)
    (path / "loop").symlink_to(path)


PLACES: dict[str, Make] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "tree": _tree,
    "socket": _socket,
    "zero": _linked("/dev/zero"),
    "random": _linked("/dev/urandom"),
    "terminal": _linked("/dev/tty"),
    "null": _linked("/dev/null"),
    "kernel log": _linked("/proc/kmsg"),
    "memory": _linked("/proc/self/mem"),
    "dangling": _linked("nowhere"),
    "loop": _loop,
    "huge": _sparse,
}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "NUL": b"a\0b",
    "NULs": bytes(100_000),
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "UTF-32": '{"a": 1}'.encode("utf-32"),
    "latin": "Grüße: 1".encode("latin-1"),
    "byte-order mark": b"\xef\xbb\xbf{}",
    "half a character": b'{"a": "\\ud800"}',
    "half a character in YAML": b'a: "\\ud800"',
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "deep YAML": b"a: " + b"[" * 5000,
    "deep blocks": b"\n".join(b" " * n + b"a:" for n in range(600)),
    "dashes": b"- " * 100_000,
    "one line": b"x" * 500_000,
    "one key": b"k" * 400_000 + b": 1",
    "many keys": b"".join(b"k%d: 1\n" % n for n in range(40_000)),
    "many JSON keys": _json({f"k{n}": n for n in range(30_000)}),
    "same keys": b"a: 1\n" * 60_000,
    "same JSON keys": b'{"a": 1, "a": 2}',
    "merge": b"<<: {a: 1}\nb: 1",
    "merge of an alias": b"a: &a {b: 1}\nc: {<<: *a}",
    "merge in a mapping": b"cluster: {<<: {nodes: 1}}\nmodel: {<<: x}",
    "merge of a list": b"{<<: [1, 2]}",
    "lone merge": b"{<<: }",
    "aliases": b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
    "keys that are lists": b"? [a, b]\n: 1",
    "keys that are mappings": b"{{a: b}: c}",
    "documents": b"---\na: 1\n---\nb: 2\n",
    "tag": b"!!python/object/apply:os.system ['touch owned']",
    "directive": b"%YAML 9.9\n---\na: 1",
    "anchors": b"&a " * 1000,
    "tabs": b"\ta: 1",
    "carriage returns": b"a: 1\rb: 2\r",
    "line separators": "a: 1\u2028b: 2\x85".encode(),
    "escapes": b"\x1b[2J\x1b]0;x\x07: 1",
    "scalar": b"3",
    "list": b"[1, 2]",
    "nothing": b"null",
    "open quote": b'a: "',
    "block scalar": b"a: |\n" + b" x\n" * 100_000,
    "plain scalar": b"a: b\n" + b"  c\n" * 60_000,
    "comments": b"# x\n" * 100_000,
    "commas": b"," * 300_000,
    "quotes": b'"' * 300_000,
    "CSV of one field": b"id,layers\n" + b'"' + b"x" * 400_000,
    **{f"number {n[:6]}": f'{{"hidden_size": {n}, "nodes": {n}}}'.encode() for n in NUMBERS},
    **{f"YAML number {n[:6]}": f"nodes: {n}\ntrain_batch_size: {n}".encode() for n in NUMBERS},
    **{f"host with {n[:6]} slots": f"10.0.0.1 slots={n}".encode() for n in NUMBERS},
}  # fmt: skip


def mangled(seed: int, good: bytes) -> bytes:
    """A good file with a few bytes changed, doubled, cut or moved."""
    dice = random.Random(seed)  # noqa: S311 (nothing here is secret)
    data = bytearray(good)
    for _ in range(dice.randint(1, 6)):
        at, end = sorted((dice.randrange(len(data) + 1), dice.randrange(len(data) + 1)))
        action = dice.randrange(5)
        if action == 0:
            data[at:at] = bytes(dice.choices(range(256), k=3))
        elif action == 1:
            del data[at : min(end, at + 20)]
        elif action == 2:
            data[at:at] = data[at : min(end, at + 50)]
        elif action == 3:
            data[at:at] = dice.choice([*(n.encode() for n in NUMBERS), b"{", b"[", b'"', b"<<: "])
        else:
            del data[end:]
    return bytes(data)


STRANGE: dict[str, Make] = {
    **PLACES,
    **{name: _written(content) for name, content in CONTENTS.items()},
}
