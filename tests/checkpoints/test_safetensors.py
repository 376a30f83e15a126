"""safetensors files are refused where their own library refuses them, and healthy ones never."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import chance

from dsforge.checkpoints.verify.checkpoint import verify
from dsforge.checkpoints.weights.safetensors_header import read_entries
from dsforge.checkpoints.weights.weight_files import write_safetensors
from dsforge.errors import DsforgeError

safetensors = pytest.importorskip("safetensors")
SEED = int(os.environ.get("ATTACK_SEED", "7"))


def written(path: Path, header: bytes, size: int, *, length: int | None = None) -> Path:
    """A file with a header and some bytes behind it."""
    told = len(header) if length is None else length
    path.write_bytes(told.to_bytes(8, "little") + header + bytes(size))
    return path


def library_takes(path: Path) -> bool:
    """Whether the safetensors library opens a file."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return len([*file.keys()]) >= 0
    except Exception:  # whatever the library raises
        return False


def we_take(path: Path) -> bool:
    """Whether we do."""
    try:
        read_entries(path)
    except DsforgeError:
        return False
    return True


def one(**more: Any) -> dict[str, Any]:
    """A good entry of two numbers, with changes."""
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **more}


HEADERS: dict[str, Any] = {
    "good": {"a": one()},
    "good-with-metadata": {"__metadata__": {"format": "pt"}, "a": one()},
    "good-scalar": {
        "a": one(shape=[], data_offsets=[0, 4]),
        "b": one(shape=[1], data_offsets=[4, 8]),
    },
    "good-empty-tensor": {"a": one(), "b": one(shape=[0], data_offsets=[8, 8])},
    "good-other-order": {
        "b": one(shape=[1], data_offsets=[4, 8]),
        "a": one(shape=[1], data_offsets=[0, 4]),
    },
    "good-8-bit": {"a": one(dtype="F8_E4M3", shape=[8])},
    "no-tensors": {},
    "overlap": {"a": one(), "b": one()},
    "half-overlap": {"a": one(), "b": one(shape=[1], data_offsets=[4, 8])},
    "hole": {"a": one(shape=[1], data_offsets=[0, 4]), "b": one(shape=[0], data_offsets=[8, 8])},
    "begins-late": {"a": one(shape=[1], data_offsets=[4, 8])},
    "ends-early": {"a": one(shape=[1], data_offsets=[0, 4])},
    "ends-late": {"a": one(shape=[4], data_offsets=[0, 16])},
    "backwards": {"a": one(shape=[0], data_offsets=[8, 0])},
    "negative": {"a": one(data_offsets=[-8, 0])},
    "negative-shape": {"a": one(shape=[-2])},
    "two-negatives": {"a": one(shape=[-1, -2])},
    "fraction": {"a": one(data_offsets=[0.0, 8.0])},
    "fraction-of-a-shape": {"a": one(shape=[2.0])},
    "text": {"a": one(data_offsets="08")},
    "texts": {"a": one(data_offsets=["0", "8"])},
    "three-offsets": {"a": one(data_offsets=[0, 4, 8])},
    "bool": {"a": one(shape=[True, 2])},
    "null": {"a": one(shape=None)},
    "huge-shape": {"a": one(shape=[10**30])},
    "wrapping-shape": {"a": one(shape=[2**62, 2**62, 16])},
    "wrapping-to-the-right-size": {"a": one(shape=[2**63, 2, 2, 2])},
    "unknown-type": {"a": one(dtype="F128")},
    "type-in-small-letters": {"a": one(dtype="f32")},
    "type-is-a-number": {"a": one(dtype=4)},
    "other-size": {"a": one(shape=[3])},
    "metadata-of-numbers": {"__metadata__": {"a": 1}, "a": one()},
    "metadata-is-a-list": {"__metadata__": [], "a": one()},
    "lacks-a-type": {"a": {"shape": [2], "data_offsets": [0, 8]}},
    "lacks-a-shape": {"a": {"dtype": "F32", "data_offsets": [0, 8]}},
    "entry-is-a-list": {"a": [0, 8]},
    "a-list": [1],
    "a-text": "a",
}
RAW: dict[str, bytes] = {
    "twice": b'{"a":%b,"a":%b}' % ((json.dumps(one()).encode(),) * 2),
    "twice-inside": b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "infinity": b'{"a":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,8]}}',
    "not-a-number": b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}',
    "minus-zero": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[-0,8]}}',
    "exponent": b'{"a":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}',
    "leading-zero": b'{"a":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}',
    "half-a-pair": b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "half-a-pair-in-metadata": b'{"__metadata__":{"a":"\\udc00"},"a":%b}'
    % json.dumps(one()).encode(),
    "no-utf-8": b'{"\xff":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "control-character": b'{"a\n":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "comma": b'{"a":{"dtype":"F32","shape":[2,],"data_offsets":[0,8]}}',
    "comment": b'{/**/"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "byte-order-mark": b'\xef\xbb\xbf{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "blank-first": b' {"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "more-behind": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}{}',
    "NUL-behind": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}\0\0',
    "nested": b'{"a":' * 3000 + b"1" + b"}" * 3000,
    "many-digits": b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}',
    "nothing": b"",
}


@pytest.mark.parametrize("name", [*HEADERS, *RAW])
def test_what_the_library_refuses_we_refuse(name: str, tmp_path: Path) -> None:
    """Each odd header; and each good one passes both."""
    header = RAW[name] if name in RAW else json.dumps(HEADERS[name]).encode()
    path = written(tmp_path / "model.safetensors", header, 8)

    assert we_take(path) <= library_takes(path)
    if name.startswith("good"):
        assert we_take(path)


@pytest.mark.parametrize("length", [0, 7, 9, 10**9, 2**63, 2**64 - 1])
def test_lengths_of_headers_that_lie(length: int, tmp_path: Path) -> None:
    """A length beyond the file, beyond the limit, or within the header."""
    path = written(tmp_path / "x.safetensors", json.dumps({"a": one()}).encode(), 8, length=length)

    assert we_take(path) is library_takes(path) is False


def changed(draw: Any, header: dict[str, Any]) -> dict[str, Any]:
    """A good header with one thing changed, or none."""
    name = draw.choice(sorted(header))
    entry = dict(header[name])
    key = draw.choice(("dtype", "shape", "data_offsets", "nothing"))
    if key == "dtype":
        entry[key] = draw.choice(("F16", "F32", "I64", "BOOL", "F8_E5M2", "U16", "C64", "F4", "X"))
    elif key != "nothing":
        at = draw.randrange(len(entry[key]) or 1)
        numbers = [*entry[key]] or [1]
        numbers[at] = draw.choice((0, 1, 2, 3, 4, 8, -1, 2**64, 2**63, numbers[at] + 4, 1.5))
        entry[key] = numbers
    return {**header, name: entry}


def good_header(draw: Any) -> tuple[dict[str, Any], int]:
    """A few tensors one behind the other, and their bytes."""
    header, at = {}, 0
    for number in range(draw.randrange(1, 5)):
        dtype, each = draw.choice((("F32", 4), ("BF16", 2), ("U8", 1), ("F64", 8), ("F8_E4M3", 1)))
        shape = [draw.randrange(4) for _ in range(draw.randrange(3))]
        size = each * int(np.prod(shape, dtype=np.int64))
        header[f"t{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    items = [*header.items()]
    draw.shuffle(items)
    return dict(items), at


@pytest.mark.parametrize("count", [400, pytest.param(20_000, marks=pytest.mark.slow)])
def test_generated_headers_are_judged_alike(count: int, tmp_path: Path) -> None:
    """Good headers pass both; of changed ones none passes here that the library refuses."""
    taken = 0
    for number in range(count):
        draw = chance(f"{SEED}-{number}")
        header, size = good_header(draw)
        good = written(tmp_path / "x.safetensors", json.dumps(header).encode(), size)
        assert we_take(good), header
        assert library_takes(good), header
        odd = changed(draw, header)
        path = written(tmp_path / "y.safetensors", json.dumps(odd).encode(), size)
        assert we_take(path) <= library_takes(path), odd
        taken += we_take(path)

    assert 0 < taken < count


def fill(path: Path, dtype: str, spoil: Callable[[Any], None]) -> Path:
    """A safetensors file with one tensor of numbers, spoilt in its bits."""
    bits = {"float32": "<f4", "float16": "<f2", "float64": "<f8", "bfloat16": "<u2"}[dtype]
    numbers = np.zeros(1000, bits)
    spoil(numbers)
    write_safetensors(path, {"w": (dtype, (1000,))}, [iter([numbers])])
    return path


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
def test_nan_and_infinity_are_counted(dtype: str, tmp_path: Path) -> None:
    """`verify --values` counts both in each tensor; without it nobody looks."""

    def spoil(numbers: Any) -> None:
        nan, infinite = (0x7FC0, 0xFF80) if dtype == "bfloat16" else (np.nan, -np.inf)
        numbers[3], numbers[700:702] = nan, infinite

    path = fill(tmp_path / "model.safetensors", dtype, spoil)
    found = {f.rule: f.message for f in verify(path, values=True)}

    assert verify(path) == []
    assert found == {
        "values-nan": "1 values are NaN, in 1 tensors: w (1)",
        "values-infinite": "2 values are infinite, in 1 tensors: w (2)",
    }


@pytest.mark.engine
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]
)
def test_nan_in_torch_files_is_counted_as_torch_counts(dtype: str, tmp_path: Path) -> None:
    """All bit patterns of the small types; parts of a storage only."""
    torch = pytest.importorskip("torch")
    own = getattr(torch, dtype)
    size = torch.empty(0, dtype=own).element_size()
    patterns = torch.arange(65536 if size > 1 else 256, dtype=torch.int32)
    bits = patterns.to(torch.uint8) if size == 1 else (patterns - 32768).to(torch.int16)
    whole = bits.view(own) if size < 4 else (bits.to(torch.int32) << 16).view(own)
    torch.save({"w": whole, "part": whole[:100]}, tmp_path / "weights.pt")
    wide = whole.double()
    found = {f.rule: f.message for f in verify(tmp_path / "weights.pt", values=True)}

    assert f"w ({int(wide.isnan().sum()):,})" in found["values-nan"]
    if wide.isinf().any():
        assert f"w ({int(wide.isinf().sum()):,})" in found["values-infinite"]
