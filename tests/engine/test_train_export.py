"""The check of final weights: what is on the disk must be what the model holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsforge.errors import DsforgeError
from dsforge.train.checkpoints.final_weights import Companions, _replacing, _write, check_files

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

    with pytest.raises(DsforgeError, match=r"`embed.weight` differs from the model"):
        check_files(tmp_path, weights)


def test_a_missing_tensor_is_named(weights: dict[str, Any], tmp_path: Path) -> None:
    """Fewer values than the model has: the message names what lacks."""
    stored(tmp_path, {"embed.weight": weights["embed.weight"]})

    with pytest.raises(
        DsforgeError, match=r"contain 12 values, the model has 15; missing: norm.weight"
    ):
        check_files(tmp_path, weights)


def test_a_folder_without_files_is_refused(weights: dict[str, Any], tmp_path: Path) -> None:
    """Nothing written is not a success."""
    with pytest.raises(DsforgeError, match="contain 0 values"):
        check_files(tmp_path, weights)


def test_a_bit_less_than_zero_is_not_zero(weights: dict[str, Any], tmp_path: Path) -> None:
    """-0.0 equals 0.0, but its bits are others: the file is not what was written."""
    zeros = {**weights, "embed.weight": torch.zeros(4, 3)}
    stored(tmp_path, {**zeros, "embed.weight": -torch.zeros(4, 3)})

    with pytest.raises(DsforgeError, match="differs from the model"):
        check_files(tmp_path, zeros)


def test_tensors_that_were_renamed_are_compared_by_their_values(tmp_path: Path) -> None:
    """Transformers may split, join and rename on the way to the disk."""
    whole = torch.randn(6, 4).to(torch.bfloat16)
    halves = {"new.0": whole[:3].clone(), "new.1": whole[3:].T.contiguous()}
    check_files(stored(tmp_path, halves), {"old": whole})

    changed = whole.clone()
    changed.view(torch.int16)[5, 3] ^= 1
    with pytest.raises(DsforgeError, match="values differ from those of the model: old"):
        check_files(tmp_path, {"old": changed})


@pytest.fixture
def trained(tiny_llama: Path) -> tuple[Any, dict[str, Any], Any]:
    """A tiny model, its weights and what goes along with them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_llama)
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return model, weights, Companions(tokenizer)


def test_final_weights_take_the_place_of_earlier_ones(trained: Any, tmp_path: Path) -> None:
    """Whole, and a folder of the user beside them stays."""
    mine = tmp_path / ".model.part"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    mine.mkdir()
    (mine / "notes").write_text("mine")
    _write(*trained, tmp_path / "model")

    assert {path.name for path in tmp_path.iterdir()} == {"model", ".model.part"}
    assert (mine / "notes").read_text() == "mine"
    assert (tmp_path / "model" / "config.json").stat().st_size > 2
    check_files(tmp_path / "model", trained[1])


@pytest.mark.parametrize("failure", ["disk", "values", "link"])
def test_earlier_weights_stay_where_new_ones_cannot_be_written(
    failure: str, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message with the way out, and nothing half-written is left."""
    model, weights, tokenizer = trained
    earlier = tmp_path / "model"
    earlier.mkdir()
    (earlier / "config.json").write_text("{}")
    if failure == "disk":
        monkeypatch.setattr("dsforge.checkpoints.output.new_folder.MARGIN_BYTES", 2**60)
    elif failure == "values":
        weights["model.norm.weight"] = weights["model.norm.weight"] + 1
        monkeypatch.setattr(
            model, "save_pretrained", lambda f, **_: type(model).save_pretrained(model, f)
        )
    else:
        earlier.rename(tmp_path / "base")
        earlier.symlink_to("base")

    with pytest.raises(DsforgeError) as raised:
        _write(model, weights, tokenizer, earlier)
    assert "start again to write the weights" in raised.value.hint
    assert (earlier / "config.json").read_text() == "{}"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_safetensors_cannot_write_is_said(tmp_path: Path) -> None:
    """Its writer has an error of its own, which is no OSError."""
    from safetensors import SafetensorError

    def fail() -> None:
        with _replacing(tmp_path / "model", {}):
            raise SafetensorError("Error while serializing: I/O error: No space left on device")

    with pytest.raises(DsforgeError, match="No space left on device") as raised:
        fail()
    assert "the last checkpoint is complete" in raised.value.hint
    assert [*tmp_path.iterdir()] == []
