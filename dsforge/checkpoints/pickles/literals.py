"""Opcodes of a pickle that push a value which stands in the stream: numbers, texts, bytes."""

from __future__ import annotations

import codecs
import struct
from typing import Any

from dsforge.checkpoints.pickles.machine import MAX_NUMBER_BYTES, Machine, Operation

MAX_DIGITS = 400


def constant(value: Any) -> Operation:
    """Push a value."""
    return lambda machine: machine.stack.append(value)


def _byte(machine: Machine) -> None:
    machine.stack.append(machine.stream[machine.at])
    machine.at += 1


def _unpacked(form: str) -> Operation:
    layout = struct.Struct(f"<{form}")
    size = layout.size

    def push(machine: Machine) -> None:
        (value,) = layout.unpack_from(machine.stream, machine.at)
        machine.at += size
        machine.stack.append(value)

    return push


def _float(machine: Machine) -> None:
    (value,) = struct.unpack(">d", machine.take(8))
    machine.stack.append(value)


def length(machine: Machine, size: int) -> int:
    """A whole number of some bytes, without a sign."""
    return int.from_bytes(machine.take(size), "little")


def _long(size: int) -> Operation:
    def push(machine: Machine) -> None:
        count = length(machine, size)
        if count > MAX_NUMBER_BYTES:
            raise ValueError(f"a number of {count:,} bytes")
        machine.stack.append(int.from_bytes(machine.take(count), "little", signed=True))

    return push


def _text(size: int) -> Operation:
    def push(machine: Machine) -> None:
        stream, at = machine.stream, machine.at + size
        end = at + int.from_bytes(stream[machine.at : at], "little")
        if end > len(stream):
            raise ValueError("it ends too early")
        machine.at = end
        machine.stack.append(str(stream[at:end], "utf-8", "surrogatepass"))

    return push


def _bytes(size: int) -> Operation:
    return lambda machine: machine.stack.append(machine.take(length(machine, size)))


def _old_text(size: int) -> Operation:
    """Text of Python 2."""
    return lambda machine: machine.stack.append(machine.take(length(machine, size)).decode())


def digits(machine: Machine) -> str:
    """The digits up to the end of the line. Raises ValueError where they are very many."""
    line = machine.line()
    if len(line) > MAX_DIGITS:
        raise ValueError(f"a number of {len(line):,} digits")
    return line.decode("ascii")


def _int_line(machine: Machine) -> None:
    text = digits(machine)
    machine.stack.append(text == "01" if text in ("00", "01") else int(text, 0))


def _quoted(machine: Machine) -> None:
    line = machine.line()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b'"', b"'"):  # noqa: PLR2004
        raise ValueError("a text without quotes")
    raw, _ = codecs.escape_decode(line[1:-1])
    machine.stack.append(raw.decode())


LITERALS: dict[bytes, Operation] = {
    b"N": constant(None),
    b"\x88": constant(True),
    b"\x89": constant(False),
    b"J": _unpacked("i"),
    b"K": _byte,
    b"M": _unpacked("H"),
    b"I": _int_line,
    b"L": lambda machine: machine.stack.append(int(digits(machine).removesuffix("L"), 0)),
    b"\x8a": _long(1),
    b"\x8b": _long(4),
    b"F": lambda machine: machine.stack.append(float(digits(machine))),
    b"G": _float,
    b"V": lambda machine: machine.stack.append(machine.line().decode("raw-unicode-escape")),
    b"X": _text(4),
    b"\x8c": _text(1),
    b"\x8d": _text(8),
    b"S": _quoted,
    b"T": _old_text(4),
    b"U": _old_text(1),
    b"B": _bytes(4),
    b"C": _bytes(1),
    b"\x8e": _bytes(8),
    b"\x96": _bytes(8),  # a byte array
}
