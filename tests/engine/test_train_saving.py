"""The one door for checkpoints: what is on the disk is compared with what the engine held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsforge.errors import DsforgeError
from dsforge.train.checkpoints.deepspeed_files import CheckedFiles, compare

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.engine


def state() -> dict[str, Any]:
    """A state dict as DeepSpeed has them: nested, shared storages, several types."""
    flat = torch.arange(12, dtype=torch.float32)
    return {
        "module": {"a": flat[:6].view(2, 3), "b": flat[6:].to(torch.bfloat16)},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(4)}}},
        "groups": [torch.zeros(2), (torch.full((2,), float("nan")),)],
        "more": {"step": 3, "name": "x"},
    }


def test_what_was_written_passes(tmp_path: Path) -> None:
    """Names, shapes, types and values agree; NaN has the bits that it had."""
    torch.save(state(), tmp_path / "rank.pt")

    compare(state(), tmp_path / "rank.pt")


def changed(value: dict[str, Any], **tensors: Any) -> dict[str, Any]:
    """A state dict with other tensors in its module."""
    return {**value, "module": {**value["module"], **tensors}}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (lambda s: changed(s, a=torch.empty(0)), r"`module.a` is float32 \(0,\) on the disk"),
        (lambda s: changed(s, a=s["module"]["a"].double()), r"`module.a` is float64"),
        (lambda s: changed(s, a=s["module"]["a"] + 1), r"`module.a` has different values"),
        (
            lambda s: changed(s, c=torch.ones(1)),
            r"does not contain the tensors of the engine: module.c",
        ),
        (lambda s: {**s, "groups": []}, r"does not contain the tensors of the engine: groups\[0\]"),
    ],
    ids=["empty", "type", "values", "more", "fewer"],
)
def test_a_difference_is_found(
    written: Callable[[dict[str, Any]], dict[str, Any]], said: str, tmp_path: Path
) -> None:
    """The file holds something else than the engine."""
    torch.save(written(state()), tmp_path / "rank.pt")

    with pytest.raises(DsforgeError, match=said):
        compare(state(), tmp_path / "rank.pt")


class Torch:
    """The writer that DeepSpeed uses."""

    def save(self, state_dict: Any, path: str) -> None:
        """Write a file."""
        torch.save(state_dict, path)


def test_a_failure_is_kept_and_not_raised(tmp_path: Path) -> None:
    """The other ranks would wait in a barrier: a rank that fails says so when all are through."""
    checked = CheckedFiles(Torch())
    checked.save(state(), str(tmp_path / "rank.pt"))
    checked.save(state(), str(tmp_path / "gone" / "rank.pt"))

    assert checked.files["rank.pt"].bytes == (tmp_path / "rank.pt").stat().st_size
    (failure,) = checked.failures
    assert failure.startswith("rank.pt: ")
    assert "does not exist" in failure
