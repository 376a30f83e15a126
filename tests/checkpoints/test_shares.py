"""Parameters divided over tensor ranks and put together again, on real files of tensors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsforge.checkpoints.torch_files.archive import Archive, tensors_in
from dsforge.checkpoints.zero import atoms
from dsforge.checkpoints.zero.atoms import WEIGHTS, Atom, Joined, Part, Piece, flat
from dsforge.checkpoints.zero.shares import Share, read_shares, written_shares
from dsforge.checkpoints.zero.split_ranks import Held, _whole
from dsforge.errors import DsforgeError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine


def atom(folder: Path, name: str, values: Any) -> Atom:
    """A parameter in a torch file of its own."""
    path = folder / f"{name}.pt"
    torch.save({"flat": torch.from_numpy(values.copy()).reshape(-1)}, path)
    archive = Archive(path)
    ((_, tensor),) = tensors_in(archive.value)
    return Atom(values.shape, {WEIGHTS: (Piece(archive, tensor, 0, tensor.elements),)})


@st.composite
def divided(draw: st.DrawFn) -> tuple[tuple[int, ...], int, list[int]]:
    """A shape, the dimension that is divided, and the sizes of the parts."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    dim = draw(st.integers(0, len(shape) - 1))
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any))
    shape[dim] = sum(sizes)
    return tuple(shape), dim, sizes


def shares(shape: tuple[int, ...], dim: int, sizes: list[int]) -> list[Share]:
    """The shares of such a parameter."""
    begins = np.cumsum([0, *sizes[:-1]])
    return [Share("w", shape, dim, int(b), n) for b, n in zip(begins, sizes, strict=True)]


@settings(max_examples=60, deadline=None)
@given(case=divided(), others=divided(), data=st.data())
def test_parts_of_any_ranks_give_parts_of_any_other(
    case: tuple[tuple[int, ...], int, list[int]],
    others: tuple[tuple[int, ...], int, list[int]],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Any range of any part of the whole is what numpy cuts from it, blocks of few rows or many."""
    shape, dim, sizes = case
    folder = tmp_path_factory.mktemp("shares")
    values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    held = []
    for share in shares(shape, dim, sizes):
        cut = values.take(range(share.begin, share.begin + share.size), axis=dim)
        if share.size:
            held.append(Held(share, atom(folder, str(share.begin), cut)))
    whole = _whole("w", held[::-1])
    axis = min(others[1], len(shape) - 1)
    begin = data.draw(st.integers(0, shape[axis] - 1))
    wanted = Share("w", shape, axis, begin, data.draw(st.integers(1, shape[axis] - begin)))
    expected = values.take(range(begin, begin + wanted.size), axis=axis).reshape(-1)
    first = data.draw(st.integers(0, expected.size - 1))
    last = data.draw(st.integers(first + 1, expected.size))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(atoms, "BLOCK_ELEMENTS", data.draw(st.integers(1, 40)))
        found = flat(Part(whole, wanted), WEIGHTS, first, last).view(np.float32)
        everything = flat(whole, WEIGHTS, 0, whole.elements).view(np.float32)

    assert (whole.shape, whole.dtype()) == (shape, "float32")
    assert np.array_equal(everything, values.reshape(-1))
    assert np.array_equal(found, expected[first:last])
    assert Part(whole, wanted).elements == expected.size


def test_along_the_first_dimension_no_rows_are_interleaved(tmp_path: Path) -> None:
    """Then the pieces of the parts are the pieces of the whole; else rows are put together."""
    values = np.ones((2, 3), np.float32)
    for dim, kind in ((0, Atom), (1, Joined)):
        shape = (4, 3) if dim == 0 else (2, 6)
        held = [
            Held(Share("w", shape, dim, begin, values.shape[dim]), atom(tmp_path, "a", values))
            for begin in (0, values.shape[dim])
        ]
        assert type(_whole("w", held)) is kind


@pytest.mark.parametrize("kept", [[0, 2], [1, 2], [0, 1]])
def test_a_part_that_lacks_is_found(kept: list[int], tmp_path: Path) -> None:
    """In the middle, at the beginning, at the end."""
    every = shares((6, 2), 0, [2, 2, 2])
    held = [Held(every[i], atom(tmp_path, str(i), np.ones((2, 2), np.float32))) for i in kept]

    with pytest.raises(DsforgeError, match=r"the parts of `w` hold \d of 6 along 0"):
        _whole("w", held)


def test_shares_are_read_as_written() -> None:
    """Plain values there, the same shares back."""
    every = {"a": Share("x", (4, 2), 1, 1, 1), "b": Share("y", ()), "c": Share("z", (3,))}

    assert read_shares(written_shares(every), "file") == every


@pytest.mark.parametrize(
    "stated",
    [
        None,
        [],
        {"a": None},
        {"a": ["x", [4], 0, 0]},
        {"a": ["x", [4], 1, 0, 1]},
        {"a": ["x", [4], 0, 3, 2]},
        {"a": ["x", [4], 0, -1, 2]},
        {"a": ["x", [-4], None, 0, 0]},
        {"a": ["x", [4], 0.0, 0, 1]},
        {"a": ["x", [2] * 99, None, 0, 0]},
        {"a": ["x", "4", 0, 0, 1]},
        {"a": ["x", [2**80], None, 0, 0]},
    ],
    ids=str,
)
def test_what_is_no_share_is_one_line(stated: Any) -> None:
    """Whatever stands in a file."""
    with pytest.raises(DsforgeError, match="does not state parts of parameters"):
        read_shares(stated, "mp_rank_00_model_states.pt")
