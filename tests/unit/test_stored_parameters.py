"""A config that contradicts the weights beside it is refused, with both figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsforge.checkpoints.weights.safetensors_header import read_entries
from dsforge.errors import DsforgeError, SpecError
from dsforge.estimate.params import parameters
from dsforge.huggingface import model_from_config
from dsforge.reading.model import read_model

CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
SIZE = parameters(model_from_config(CONFIG, "x"))


def folder(tmp_path: Path, config: dict[str, Any], metadata: object) -> str:
    """A folder with a config and the index of its weights."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    index = {"metadata": metadata, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(tmp_path)


def header(tmp_path: Path, tensors: dict[str, Any]) -> None:
    """A safetensors file that is a header only."""
    text = json.dumps(tensors).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)


@pytest.mark.parametrize("model_type", ["llama", "brandnew", "qwen2"])
@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 26.3])
def test_an_index_of_another_size_is_refused(
    tmp_path: Path, model_type: str, factor: float
) -> None:
    """Whatever the architecture; the message holds both figures."""
    config = CONFIG | {"model_type": model_type}
    with pytest.raises(SpecError) as error:
        read_model(folder(tmp_path, config, {"total_size": 2 * int(SIZE * factor)}))

    message = str(error.value.problems[0])
    assert f"{int(SIZE * factor):,}" in message
    assert f"{parameters(model_from_config(config, 'x')):,}" in message


@pytest.mark.parametrize(
    ("change", "metadata"),
    [
        ({}, {"total_size": 2 * SIZE}),
        ({}, {"total_size": int(2.03 * SIZE)}),
        ({"torch_dtype": "float32"}, {"total_size": 4 * SIZE}),
        ({"torch_dtype": None}, {"total_size": 4 * SIZE}),
        ({}, {"total_parameters": SIZE, "total_size": 7}),
        ({"tie_word_embeddings": True}, {"total_size": 2 * SIZE}),  # the head is stored, too
        ({"quantization_config": {"bits": 4}}, {"total_size": SIZE // 2}),
        ({}, {"total_size": "many"}),
        ({}, {"total_size": -1}),
        ({}, []),
        ({}, None),
    ],
)
def test_an_index_of_this_size_or_without_one_is_taken(
    tmp_path: Path, change: dict[str, Any], metadata: object
) -> None:
    """Two in a hundred are allowed; an index that says nothing proves nothing."""
    assert read_model(folder(tmp_path, CONFIG | change, metadata))[0].layers == 8


def test_a_single_file_says_it_in_its_header(tmp_path: Path) -> None:
    """Elements of its tensors, whatever their width."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    header(tmp_path, {"w": {"dtype": "F32", "shape": [SIZE], "data_offsets": [0, 4 * SIZE]}})

    assert read_model(str(tmp_path))[0].layers == 8
    header(tmp_path, {"w": {"dtype": "F32", "shape": [SIZE, 3], "data_offsets": [0, 12 * SIZE]}})
    with pytest.raises(SpecError, match="contains"):
        read_model(str(tmp_path))


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"\x09" + bytes(7) + b'{"a": {}}', bytes(100)],
)
def test_a_hostile_file_proves_nothing(tmp_path: Path, content: bytes) -> None:
    """It is never a traceback."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(content)
    (tmp_path / "model.safetensors.index.json").write_bytes(b"[" * 100_000)

    assert read_model(str(tmp_path))[0].layers == 8


def test_an_extra_layer_for_several_tokens_is_no_contradiction(tmp_path: Path) -> None:
    """DeepSeek-V3's checkpoint holds 684.5 B parameters, of which transformers builds 671.0 B."""
    config = {"model_type": "deepseek_v3", "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16"}
    model, _ = read_model(folder(tmp_path, config, {"total_size": 2 * 684_531_386_000}))

    assert parameters(model) == 671_026_404_352


def test_weights_that_also_hold_a_tower_are_warned_of() -> None:
    """The catalog's Gemma 3 4B is its language model; its checkpoint is loaded whole."""
    _, reasons = read_model("gemma-3-4b")

    assert reasons[0].rule == "warning-beside-model"


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": "F32", "shape": [3 * SIZE], "data_offsets": [0, 1]},
        {"dtype": "F32", "shape": [3 * SIZE]},
        {"dtype": "F32", "shape": [-3, -SIZE], "data_offsets": [0, 12 * SIZE]},
        {"dtype": "X", "shape": [3 * SIZE], "data_offsets": [0, 12 * SIZE]},
    ],
    ids=["bytes", "no-offsets", "negative", "type"],
)
def test_a_header_that_ckpt_verify_refuses_proves_nothing(
    tmp_path: Path, tensor: dict[str, Any]
) -> None:
    """There is one reader of headers: what it refuses is not counted either."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    header(tmp_path, {"w": tensor})

    assert read_model(str(tmp_path))[0].layers == 8
    with pytest.raises(DsforgeError):
        read_entries(tmp_path / "model.safetensors")
