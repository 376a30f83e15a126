"""Which part of which parameter a tensor or pipeline rank holds, as `dsforge train` writes it.

Neither the files of DeepSpeed's pipeline nor those of AutoTP name a parameter as the model does, so
each rank writes beside its states what they are parts of. With that, a checkpoint of any ranks is
put together and divided again without the engine that wrote it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dsforge.checkpoints.zero.stated_values import MISFITS, shape_of, whole_number
from dsforge.errors import DsforgeError

SHARES = "dsforge_shares"  # key in the files of model states


class Share(NamedTuple):
    """The part of a parameter that a rank holds: `size` along `dim` from `begin`; none: all."""

    name: str
    shape: tuple[int, ...]
    dim: int | None = None
    begin: int = 0
    size: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the rank holds the whole parameter."""
        return self.dim is None

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        if self.dim is None:
            return self.shape
        return (*self.shape[: self.dim], self.size, *self.shape[self.dim + 1 :])

    @property
    def elements(self) -> int:
        """Elements of the part."""
        return math.prod(self.local_shape)


def written_shares(shares: dict[str, Share]) -> dict[str, list[Any]]:
    """Shares as plain values, by the names in the files of the rank."""
    return {name: [s.name, list(s.shape), s.dim, s.begin, s.size] for name, s in shares.items()}


def read_shares(value: Any, place: str) -> dict[str, Share]:
    """Shares as a file states them. Raises DsforgeError where they are not shares."""
    try:
        return {local: _share(stated) for local, stated in value.items()}
    except MISFITS as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
        message = f"{place}: `{SHARES}` does not state parts of parameters ({why})"
        raise DsforgeError(message, "use another checkpoint") from error


def _share(stated: Any) -> Share:
    """One share. Raises ValueError where it is outside its parameter."""
    name, shape, dim, begin, size = stated
    whole = shape_of(shape)
    if dim is None:
        return Share(str(name), whole)
    axis = whole_number(dim, "dim", most=len(whole) - 1)
    part = Share(
        str(name),
        whole,
        axis,
        whole_number(begin, "begin", most=whole[axis]),
        whole_number(size, "size", most=whole[axis]),
    )
    if part.begin + part.size > whole[axis]:
        raise ValueError(f"a part of {str(name)[:80]!a} ends outside of it")
    return part
