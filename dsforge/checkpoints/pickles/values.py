"""What a pickle of torch describes: tensors, names that it would import, objects it would build."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Storage(NamedTuple):
    """A block of numbers in an archive: its key there, its type by torch's name, its length."""

    key: str
    dtype: str
    elements: int


class StoredTensor(NamedTuple):
    """A tensor as a window onto a storage; `offset` and `stride` count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Elements of the tensor."""
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after the other, the last dimension fastest."""
        expected = 1
        for size, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and step != expected:
                return self.elements == 0
            expected *= size
        return True

    @property
    def end(self) -> int:
        """The element of the storage behind the last one of the tensor."""
        if not self.elements:
            return 0
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return self.offset + last + 1


@dataclass(frozen=True, slots=True)
class Name:
    """Something that the pickle would import: `module.name`."""

    path: str


@dataclass(slots=True, eq=False, repr=False)
class Foreign:
    """An object that the pickle would build: what by, from which arguments and state."""

    path: str
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Foreign({self.path})"
