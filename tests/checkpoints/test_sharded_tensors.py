"""Shards of tensors put together without torch: whole or refused, whatever the files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from dsforge.checkpoints.folder import find_checkpoint
from dsforge.checkpoints.inspect import inspect
from dsforge.checkpoints.saved import read_checkpoint
from dsforge.checkpoints.sharded_tensors import read_sharded
from dsforge.checkpoints.verify.checkpoint import verify
from dsforge.checkpoints.zero.parameters import WEIGHTS
from dsforge.errors import DsforgeError

NAME = "layers.0.up.weight"


def write(folder: Path, ranks: list[dict[str, tuple[Any, list[int]]]]) -> Path:
    """A folder with one file a rank; each tensor with the place where it begins."""
    folder.mkdir(exist_ok=True)
    for number, held in enumerate(ranks, start=1):
        places = {name: {"saved_offsets": at} for name, (_, at) in held.items()}
        save_file(
            {name: np.ascontiguousarray(part) for name, (part, _) in held.items()},
            folder / f"shard-{number:05d}-model-00001-of-00001.safetensors",
            {"DCP_SHARDING_INFO": json.dumps(places)},
        )
    return folder


def one(value: float) -> tuple[Any, list[int]]:
    """A number as it is stored."""
    return np.array([value]), [0]


def cut(whole: Any, rows: int, columns: int) -> list[dict[str, tuple[Any, list[int]]]]:
    """The parts of a matrix and of its moments on a grid of ranks, as torch.chunk cuts them."""
    high, wide = -(-whole.shape[0] // rows), -(-whole.shape[1] // columns)
    found: list[dict[str, tuple[Any, list[int]]]] = []
    for row in range(rows):
        for column in range(columns):
            at = [min(row * high, whole.shape[0]), min(column * wide, whole.shape[1])]
            part = whole[at[0] : at[0] + high, at[1] : at[1] + wide]
            found.append(
                {
                    f"model.{NAME}": (part, at),
                    f"optimizer.{NAME}.exp_avg": (part + 1, at),
                    f"optimizer.{NAME}.exp_avg_sq": (part + 2, at),
                }
            )
    numbers = {f"optimizer.{NAME}.step": one(3.0), "progress.schedule": one(3.0)}
    found[0] |= numbers
    return found


def whole_of(saved: Any, state: str) -> Any:
    """A state of the parameter, put together."""
    atom = saved.trained[NAME]
    parts = list(atom.read(state, 0, atom.elements))
    return np.concatenate(parts).view(np.float32).reshape(atom.shape)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
def test_any_grid_of_ranks_is_put_together(
    tmp_path_factory: pytest.TempPathFactory, high: int, wide: int, rows: int, columns: int
) -> None:
    """Weights, both moments, step and schedule, also where ranks have no elements."""
    whole = np.arange(high * wide, dtype=np.float32).reshape(high, wide)
    folder = write(tmp_path_factory.mktemp("grid"), cut(whole, rows, columns))
    saved = read_checkpoint(find_checkpoint(folder))

    assert np.array_equal(whole_of(saved, WEIGHTS), whole)
    assert np.array_equal(whole_of(saved, "exp_avg"), whole + 1)
    assert np.array_equal(whole_of(saved, "exp_avg_sq"), whole + 2)
    assert saved.scalars == {"step": 3.0}
    assert saved.progress["lr_scheduler"]["last_epoch"] == 3
    assert verify(folder, values=True) == []
    assert {t.name for t in inspect(folder).tensors} == {NAME}


def parts() -> list[dict[str, tuple[Any, list[int]]]]:
    """Two ranks with half of a matrix each."""
    return cut(np.ones((4, 2), dtype=np.float32), 2, 1)


def without_a_rank(held: list[dict[str, Any]]) -> None:
    """The second file is lost; the first half stays."""
    held[0][f"model.{NAME}"] = (np.ones((1, 2), np.float32), [3, 0])


def far(held: list[dict[str, Any]]) -> None:
    """A shard that begins beyond every other: a tensor of more elements than there are bytes."""
    held[1][f"model.{NAME}"] = (np.ones((2, 2), np.float32), [2**50, 0])


def negative(held: list[dict[str, Any]]) -> None:
    """A place before the first element."""
    held[1][f"model.{NAME}"] = (np.ones((2, 2), np.float32), [-2, 0])


def short(held: list[dict[str, Any]]) -> None:
    """A place with fewer dimensions."""
    held[1][f"model.{NAME}"] = (np.ones((2, 2), np.float32), [2])


def other_type(held: list[dict[str, Any]]) -> None:
    """Ranks that do not agree on the type."""
    held[1][f"model.{NAME}"] = (np.ones((2, 2), np.float64), [2, 0])


def no_number(held: list[dict[str, Any]]) -> None:
    """Steps that are no number."""
    held[0]["progress.schedule"] = one(float("nan"))


def below_zero(held: list[dict[str, Any]]) -> None:
    """Steps before the first."""
    held[0][f"optimizer.{NAME}.step"] = one(-1.0)


def states_alone(held: list[dict[str, Any]]) -> None:
    """Moments of a parameter that is not there."""
    for rank in held:
        del rank[f"model.{NAME}"]


def outside(held: list[dict[str, Any]]) -> None:
    """A name that leads out of a folder."""
    held[0]["model.../../x"] = (np.ones(1, np.float32), [0])


SPOILT = [
    (without_a_rank, "lacks elements"),
    (far, "lacks elements"),
    (negative, "nothing says where"),
    (short, "nothing says where"),
    (other_type, "do not fit together"),
    (no_number, "out of range"),
    (below_zero, "out of range"),
    (states_alone, "without weights"),
    (outside, "cannot be the name"),
]


@pytest.mark.parametrize(("spoil", "said"), SPOILT, ids=[row[0].__name__ for row in SPOILT])
def test_what_does_not_fit_together_is_refused(spoil: Any, said: str, tmp_path: Path) -> None:
    """One line, and an error of `ckpt verify`."""
    held = parts()
    spoil(held)
    folder = write(tmp_path / "checkpoint", held)

    with pytest.raises(DsforgeError, match=said):
        read_sharded(folder)
    assert {finding.severity for finding in verify(folder)} == {"error"}


def test_shards_that_overlap_are_refused(tmp_path: Path) -> None:
    """As many elements as there should be, and a hole beside them: nothing fills it."""
    held = parts()
    three = np.ones((3, 2), np.float32)
    held[0][f"model.{NAME}"] = (three, [0, 0])
    held[1][f"model.{NAME}"] = (np.ones((3, 2), np.float32), [1, 0])
    held.append({f"model.{NAME}": (np.ones((2, 2), np.float32), [6, 0])})
    saved = read_sharded(write(tmp_path / "checkpoint", held))

    with pytest.raises(DsforgeError, match="overlap"):
        whole_of(saved, WEIGHTS)


def test_a_file_without_places_is_refused(tmp_path: Path) -> None:
    """Plain safetensors under the name of a shard."""
    save_file(
        {f"model.{NAME}": np.ones(3, np.float32)},
        tmp_path / "shard-00001-model-00001-of-00001.safetensors",
    )
    with pytest.raises(DsforgeError, match="nothing says where"):
        read_sharded(tmp_path)
