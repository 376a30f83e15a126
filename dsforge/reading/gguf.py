"""The header of a GGUF file as a transformers config: sizes, names of tensors, no weights.

The format is that of ggml's `docs/gguf.md`, versions 2 and 3, little-endian. A file is hostile: its
counts and lengths are bounded before anything is read by them, and only the header is read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from dsforge.outside import opened

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_KEYS, MOST_TENSORS = 10_000, 200_000
LONGEST_KEY = 1 << 16
MOST_HEADER_BYTES = 256 << 20  # vocabularies of 256,000 words and their merges are 20 MiB
PIECE = 1 << 20
STRING, ARRAY = 8, 9
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
OUTPUT_HEAD = "output.weight"  # absent where the embedding is the head

# Architectures that llama.cpp's converter writes without changing the model, and their config's
# model_type (transformers integrations/ggml.py, GGUF_CONFIG_MAPPING).
MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "mistral": "mistral",
    "starcoder2": "starcoder2",
    "gemma2": "gemma2",
}
SIZES = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
    "sliding_window": "attention.sliding_window",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}


class GgufError(ValueError):
    """A file that is not a GGUF file of a known architecture, in words that follow its name."""


class Header(NamedTuple):
    """What a file has before its weights: values by key, lengths of arrays, names of tensors."""

    values: Mapping[str, Any]
    lengths: Mapping[str, int]
    tensors: frozenset[str]


def gguf_config(path: Path) -> dict[str, Any]:
    """The config of the model in a GGUF file. Raises GgufError, and UnreadableError."""
    header = read_header(path)
    architecture = header.values.get("general.architecture")
    if architecture not in MODEL_TYPES:
        known = ", ".join(sorted(MODEL_TYPES))
        raise GgufError(f"holds the architecture {architecture!a:.40}; known from GGUF: {known}")
    keys = {name: f"{architecture}.{key}" for name, key in SIZES.items()}
    uneven = [key for key in keys.values() if key in header.lengths]
    if uneven:
        raise GgufError(f"has a value for each layer of `{uneven[0]}`, which is not modelled")
    found = {name: header.values[key] for name, key in keys.items() if key in header.values}
    found.setdefault("vocab_size", header.lengths.get("tokenizer.ggml.tokens"))
    return {
        **{
            name: float(f"{value:.6g}") if isinstance(value, float) else value
            for name, value in found.items()
        },
        "model_type": MODEL_TYPES[architecture],
        "tie_word_embeddings": OUTPUT_HEAD not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
    }


def read_header(path: Path) -> Header:
    """Keys and names of tensors of a GGUF file. Raises GgufError, and UnreadableError."""
    with opened(path, pipes=False) as stream:
        cursor = _Cursor(cast("BinaryIO", stream))
        if cursor.take(4) != MAGIC:
            raise GgufError("is not a GGUF file")
        version = cursor.number("I")
        if version not in VERSIONS:
            raise GgufError(f"has GGUF version {version}; known: 2 and 3")
        tensors, keys = cursor.number("Q"), cursor.number("Q")
        if tensors > MOST_TENSORS or keys > MOST_KEYS:
            raise GgufError(f"claims {tensors:,} tensors and {keys:,} keys")
        values: dict[str, Any] = {}
        lengths: dict[str, int] = {}
        for _ in range(keys):
            key, kind = cursor.text(), cursor.number("I")
            if kind == ARRAY:
                lengths[key] = _skipped_array(cursor)
            else:
                values[key] = _value(cursor, kind)
        return Header(values, lengths, frozenset(_tensor(cursor) for _ in range(tensors)))


class _Cursor:
    """The next values of a stream, as many bytes as a header may have."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._left = MOST_HEADER_BYTES
        self._buffer = b""
        self._at = 0

    def take(self, size: int) -> bytes:
        """So many bytes. Raises GgufError where the file or the patience ends."""
        if size > self._left:
            raise GgufError("has a header that is longer than any model needs")
        self._left -= size
        while len(self._buffer) - self._at < size:
            piece = self._stream.read(PIECE)
            if not piece:
                raise GgufError("ends within its header")
            self._buffer = self._buffer[self._at :] + piece
            self._at = 0
        self._at += size
        return self._buffer[self._at - size : self._at]

    def number(self, kind: str) -> Any:
        """A number of a kind that `struct` names."""
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(kind)))[0]

    def text(self) -> str:
        """A key or name. Raises GgufError where it is longer than one is."""
        size = self.number("Q")
        if size > LONGEST_KEY:
            raise GgufError("has a name that is longer than any")
        return self.take(size).decode("utf-8", "replace")

    def skip_text(self) -> None:
        """Pass over a text of any length."""
        self.take(self.number("Q"))


def _value(cursor: _Cursor, kind: int) -> Any:
    """A value that is no array: a number, or the beginning of a text."""
    if kind in SCALARS:
        return cursor.number(SCALARS[kind])
    if kind == STRING:
        return cursor.take(cursor.number("Q"))[:LONGEST_KEY].decode("utf-8", "replace")
    raise GgufError(f"has a value of the unknown type {kind}")


def _skipped_array(cursor: _Cursor) -> int:
    """The length of an array that is passed over."""
    inner, count = cursor.number("I"), int(cursor.number("Q"))
    if inner in SCALARS:
        cursor.take(count * struct.calcsize(SCALARS[inner]))
    elif inner == STRING:
        for _ in range(count):
            cursor.skip_text()
    else:
        raise GgufError("has an array of arrays")
    return count


def _tensor(cursor: _Cursor) -> str:
    """The name of the next tensor."""
    name = cursor.text()
    dimensions = cursor.number("I")
    cursor.take(8 * min(dimensions, 8))  # its sizes
    if dimensions > 8:  # noqa: PLR2004 (ggml has 4)
        raise GgufError("has a tensor of too many dimensions")
    cursor.take(4 + 8)  # type and offset
    return name
