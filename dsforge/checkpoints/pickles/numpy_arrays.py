"""Arrays and scalars of numpy in a pickle, accepted only in the form that numpy writes.

numpy believes the state that a pickle gives to a type: one that holds objects while it says that it
holds none turns plain bytes into addresses, and reading or freeing the array then jumps to them. So
each part is compared with what numpy writes for that type.
"""

from __future__ import annotations

import re
from typing import Any

from dsforge.checkpoints.pickles.values import Foreign, Name

DTYPE = "numpy.dtype"
ARRAYS = frozenset(f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core"))
SCALARS = frozenset(f"numpy.{core}.multiarray.scalar" for core in ("core", "_core"))
BUFFERS = frozenset(f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core"))
NUMPY = ARRAYS | SCALARS | BUFFERS | {DTYPE}
CODE = re.compile(r"[<>=|]?(?P<kind>[biufcmMSUO])(?P<size>[0-9]{0,6})")
OBJECT_FLAGS, TEXT_FLAGS = 63, 8
TEXT_BYTES = {"S": 1, "U": 4}  # of a character


def check_numpy(path: str, arguments: tuple[Any, ...]) -> None:
    """Raises ValueError where a call of numpy is none that numpy writes."""
    if path == DTYPE:
        sound = 1 <= len(arguments) <= 3 and _kind(arguments[0]) and _are_flags(arguments[1:])  # noqa: PLR2004
    elif path in ARRAYS:
        sound = len(arguments) == 3 and arguments[0] == Name("numpy.ndarray")  # noqa: PLR2004
        sound = sound and arguments[1] == (0,) and arguments[2] in (b"b", "b")
    elif path in BUFFERS:
        sound = len(arguments) == 4 and _is_buffer(*arguments)  # noqa: PLR2004
    else:
        sound = len(arguments) == 2 and _is_plain(arguments[0]) and isinstance(arguments[1], bytes)  # noqa: PLR2004
        if sound:
            scalar_of(arguments)
    if not sound:
        raise ValueError("a numpy value in a form that numpy does not write")


def scalar_of(arguments: tuple[Any, ...]) -> Any:
    """The plain value of a number or text of numpy, as numpy itself reads these bytes.

    None for dates and spans of time, which are no plain values. Raises ValueError.
    """
    dtype, data = arguments
    code = dtype.arguments[0]
    order = dtype.state[1] if dtype.state else code[0]
    import numpy as np  # which other pickles can be read without

    kind = np.dtype(code).newbyteorder(order if order in "<>" else "=")
    if kind.kind in "mM":
        return None
    try:
        value = np.frombuffer(data, kind, 1)[0] if kind.itemsize else kind.type()
        return value.item()
    except (SystemError, ValueError) as error:  # no such character, or too few bytes
        raise ValueError("an invalid numpy number or text") from error


def check_state(target: Foreign, state: Any) -> None:
    """Raises ValueError where the state of a type or an array is none that numpy writes."""
    if target.path not in NUMPY:
        return
    sound = isinstance(state, tuple) and target.state is None
    if target.path == DTYPE:
        sound = sound and _is_state(target.arguments[0], state)
    else:
        sound = sound and target.path in ARRAYS and _is_content(state)
    if not sound:
        raise ValueError("a numpy value in a form that numpy does not write")


def _kind(code: Any) -> str:
    """The letter of a kind of numbers; empty where it is none that checkpoints need."""
    match = CODE.fullmatch(code) if isinstance(code, str) else None
    return match["kind"] if match else ""


def _are_flags(values: tuple[Any, ...]) -> bool:
    return all(type(value) in (bool, int) for value in values)


def _is_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> bool:
    """Whether bytes are those of an array, as protocol 5 writes it; numpy compares the lengths."""
    counts = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
    return counts and isinstance(data, bytes) and _is_plain(dtype) and order in ("C", "F")


def _is_plain(dtype: Any) -> bool:
    """Whether something is a type without objects."""
    return isinstance(dtype, Foreign) and dtype.path == DTYPE and _kind(dtype.arguments[0]) != "O"


def _is_state(code: str, state: tuple[Any, ...]) -> bool:
    """Whether the state is that of the type: byte order, no fields, sizes, flags, unit of time."""
    match = CODE.fullmatch(code)
    if match is None or not 8 <= len(state) <= 9:  # noqa: PLR2004
        return False
    kind, size = match["kind"], int(match["size"] or 0)
    version, order, *fields, width, alignment, flags = state[:8]
    sizes, own = ((-1, -1),), {"O": OBJECT_FLAGS, "U": TEXT_FLAGS}.get(kind, 0)
    if kind in TEXT_BYTES:
        sizes = ((size * TEXT_BYTES[kind], TEXT_BYTES[kind]),)
    return (
        version in (3, 4)
        and order in ("<", ">", "=", "|")
        and fields == [None, None, None]
        and (width, alignment) in sizes
        and flags == own
        and (len(state) == 8 or (kind in "mM" and _is_unit(state[8])))  # noqa: PLR2004
    )


def _is_unit(value: Any) -> bool:
    """Whether something is the unit of a type of dates, as `({}, (b"D", 1, 1, 1))`."""
    if not isinstance(value, tuple) or len(value) != 2 or value[0] not in ({}, None):  # noqa: PLR2004
        return False
    unit = value[1]
    return isinstance(unit, tuple) and all(type(part) in (bytes, str, int) for part in unit)


def _is_content(state: tuple[Any, ...]) -> bool:
    """Whether the state is that of an array: objects in a list, everything else as bytes."""
    if len(state) != 5:  # noqa: PLR2004
        return False
    version, shape, dtype, fortran, data = state
    if type(version) is not int or not isinstance(shape, tuple) or type(fortran) not in (bool, int):
        return False
    if not isinstance(dtype, Foreign) or dtype.path != DTYPE:
        return False
    return isinstance(data, bytes if _is_plain(dtype) else list)
