"""Whole parameters as places in files: nothing is read until elements are asked for.

A parameter is put together from pieces of flat tensors (`Atom`) or from the parts of tensor ranks
(`Joined`), and divided again for a tensor rank of another run (`Part`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dsforge.checkpoints.pickles.values import StoredTensor
from dsforge.checkpoints.zero.shares import Share
from dsforge.errors import DsforgeError

WEIGHTS = "fp32"  # the name of the master weights among the states of a parameter
BLOCK_ELEMENTS = 4 * 1024 * 1024  # that are in memory at a time


class Source(Protocol):
    """Where the bits of tensors are read from."""

    def elements(self, tensor: StoredTensor, begin: int, end: int) -> NDArray[Any]:
        """The bits of elements `begin` to `end` of a tensor."""


class Piece(NamedTuple):
    """`elements` of a flat tensor in a file, from `start`."""

    archive: Source
    tensor: StoredTensor
    start: int
    elements: int


class Atom(NamedTuple):
    """A whole parameter: its shape, and for each state the pieces that make it up, in order."""

    shape: tuple[int, ...]
    states: Mapping[str, tuple[Piece, ...]]

    @property
    def elements(self) -> int:
        """Elements of the parameter."""
        return math.prod(self.shape)

    def dtype(self, state: str = WEIGHTS) -> str:
        """Type of a state, by torch's name. Raises DsforgeError where its pieces do not agree."""
        kinds = {piece.tensor.storage.dtype for piece in self.states[state]}
        if not kinds:
            raise DsforgeError(f"a parameter of shape {self.shape} has no elements")
        if len(kinds) > 1:
            found = " and ".join(sorted(kinds))
            raise DsforgeError(f"ranks store a parameter of shape {self.shape} in {found}")
        return kinds.pop()

    def read(self, state: str, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """The bits of elements `begin` to `end` of a state, piece by piece."""
        at = 0
        for piece in self.states[state]:
            first, last = max(begin, at), min(end, at + piece.elements)
            if first < last:
                skipped = piece.start - at
                yield piece.archive.elements(piece.tensor, skipped + first, skipped + last)
            at += piece.elements


class Parameter(Protocol):
    """What readers of a checkpoint ask of a parameter, however it lies in the files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameter."""

    @property
    def states(self) -> Mapping[str, tuple[Piece, ...]]:
        """All pieces of each state."""

    @property
    def elements(self) -> int:
        """Elements of the parameter."""

    def dtype(self, state: str = WEIGHTS) -> str:
        """Type of a state, by torch's name."""

    def read(self, state: str, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """The bits of elements `begin` to `end` of a state, piece by piece."""


class Joined(NamedTuple):
    """A parameter of `shape` whose `parts` lie one behind the other along `dim`."""

    shape: tuple[int, ...]
    dim: int
    parts: tuple[Parameter, ...]

    @property
    def states(self) -> Mapping[str, tuple[Piece, ...]]:
        """All pieces of each state."""
        names = self.parts[0].states
        return {n: tuple(piece for part in self.parts for piece in part.states[n]) for n in names}

    @property
    def elements(self) -> int:
        """Elements of the parameter."""
        return math.prod(self.shape)

    def dtype(self, state: str = WEIGHTS) -> str:
        """Type of a state, by torch's name. Raises DsforgeError where parts do not agree."""
        return Atom(self.shape, self.states).dtype(state)

    def read(self, state: str, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """The bits of elements `begin` to `end` of a state, a block of rows at a time."""
        width = math.prod(self.shape[self.dim :])
        widths = [math.prod(part.shape[self.dim :]) for part in self.parts]
        for first, last in blocks(begin, end, width):
            rows = [
                flat(part, state, first * own, last * own).reshape(-1, own)
                for part, own in zip(self.parts, widths, strict=True)
            ]
            joined = np.concatenate(rows, axis=1).reshape(-1)
            yield joined[max(begin, first * width) - first * width : end - first * width]


class Part(NamedTuple):
    """The share that a tensor rank holds of a whole parameter."""

    whole: Parameter
    share: Share

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        return self.share.local_shape

    @property
    def states(self) -> Mapping[str, tuple[Piece, ...]]:
        """All pieces of each state of the whole parameter."""
        return self.whole.states

    @property
    def elements(self) -> int:
        """Elements of the part."""
        return self.share.elements

    def dtype(self, state: str = WEIGHTS) -> str:
        """Type of a state, by torch's name."""
        return self.whole.dtype(state)

    def read(self, state: str, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """The bits of elements `begin` to `end` of the part, a block of rows at a time."""
        share, dim = self.share, self.share.dim
        if dim is None:
            yield from self.whole.read(state, begin, end)
            return
        inner = math.prod(share.shape[dim + 1 :])
        width, own, skipped = share.shape[dim] * inner, share.size * inner, share.begin * inner
        if math.prod(share.shape[:dim]) == 1:  # one behind the other in the whole, too
            yield from self.whole.read(state, skipped + begin, skipped + end)
            return
        for first, last in blocks(begin, end, own, width):
            rows = flat(self.whole, state, first * width, last * width).reshape(-1, width)
            mine = rows[:, skipped : skipped + own].reshape(-1)
            yield mine[max(begin, first * own) - first * own : end - first * own]


def flat(parameter: Parameter, state: str, begin: int, end: int) -> NDArray[Any]:
    """The bits of elements `begin` to `end` of a state in one array."""
    return np.concatenate([np.asarray(part) for part in parameter.read(state, begin, end)])


def blocks(begin: int, end: int, width: int, read: int = 0) -> Iterator[tuple[int, int]]:
    """Rows of `width` elements that hold elements `begin` to `end`, some at a time.

    `read` is the width of the rows in memory, where it is more.
    """
    step = max(1, BLOCK_ELEMENTS // max(1, width, read))
    for first in range(begin // width if width else 0, -(-end // width) if width else 0, step):
        yield first, min(first + step, -(-end // width))
