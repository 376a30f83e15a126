"""The check of final weights: what is on the disk must be what the model holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsforge.errors import DsforgeError
from dsforge.train.export import check_files

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.engine


@pytest.fixture
def weights() -> dict[str, Any]:
    """Two tensors of a model."""
    return {"embed.weight": torch.ones(4, 3), "norm.weight": torch.full((3,), float("nan"))}


def stored(folder: Path, tensors: dict[str, Any]) -> Path:
    """A folder of two safetensors files."""
    from safetensors.torch import save_file

    names = sorted(tensors)
    for number, part in enumerate((names[:1], names[1:])):
        save_file({name: tensors[name] for name in part}, folder / f"{number}.safetensors")
    return folder


def test_equal_files_pass(weights: dict[str, Any], tmp_path: Path) -> None:
    """Names, shapes, types and values agree; NaN equals itself."""
    check_files(stored(tmp_path, weights), weights)


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(0, 3),
        torch.ones(3, 4),
        torch.ones(4, 3, dtype=torch.bfloat16),
        torch.full((4, 3), 2.0),
    ],
    ids=["empty", "shape", "type", "values"],
)
def test_a_different_tensor_is_refused(wrong: Any, weights: dict[str, Any], tmp_path: Path) -> None:
    """People lost runs to files of empty tensors."""
    stored(tmp_path, {**weights, "embed.weight": wrong})

    with pytest.raises(DsforgeError, match=r"`embed.weight` is not what the model holds"):
        check_files(tmp_path, weights)


def test_a_missing_tensor_is_named(weights: dict[str, Any], tmp_path: Path) -> None:
    """Fewer values than the model has: the message names what lacks."""
    stored(tmp_path, {"embed.weight": weights["embed.weight"]})

    with pytest.raises(DsforgeError, match=r"hold 12 values, the model 15; missing: norm.weight"):
        check_files(tmp_path, weights)


def test_a_folder_without_files_is_refused(weights: dict[str, Any], tmp_path: Path) -> None:
    """Nothing written is not a success."""
    with pytest.raises(DsforgeError, match="hold 0 values"):
        check_files(tmp_path, weights)
