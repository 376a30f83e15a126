"""Keys that are no plain values: every reader sees the same entries, or the file is refused."""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import call, glob, tensor, text, torch_file
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_archives import records_of

from dsforge.checkpoints.pickles.reader import PickleError, read_pickle
from dsforge.checkpoints.pickles.values import Name
from dsforge.checkpoints.verify.checkpoint import verify

MODEL = Path(__file__).parent / "samples/zero1/global_step3/mp_rank_00_model_states.pt"
STAGE = glob("deepspeed.runtime.zero.config", "ZeroStageEnum")
SMALL = st.integers(-4, 4)
TEXTS = st.text("ab\0", max_size=3)
PLAIN = SMALL | TEXTS | TEXTS.map(str.encode) | st.booleans() | st.floats(-4, 4).map(round)
OF_NUMPY = (
    SMALL.map(np.int64)
    | SMALL.map(np.int16)
    | SMALL.map(np.float32)
    | st.floats(-2, 2, width=16).map(np.float16)
    | SMALL.map(np.complex128)
    | st.booleans().map(np.bool_)
    | TEXTS.map(np.str_)
    | TEXTS.map(lambda value: np.bytes_(value.encode()))
)
ONE = PLAIN | OF_NUMPY | SMALL.map(complex) | st.none()
KEYS = ONE | st.tuples(ONE, ONE) | st.frozensets(ONE, max_size=2) | st.tuples(st.tuples(ONE))


def loads(stream: bytes) -> Any:
    """What Python's own reader gives for a program of this file."""
    return pickle.loads(stream)  # noqa: S301 - made here, and nothing in it acts


def as_plain(key: Any) -> Any:
    """A key as the plain value that it equals."""
    if isinstance(key, tuple | frozenset):
        return type(key)(map(as_plain, key))
    return key.item() if isinstance(key, np.generic) else key


def program(entries: list[tuple[Any, int]], protocol: int) -> bytes:
    """A pickle that sets each entry of a dict, also those whose keys are equal."""
    parts = []
    for key, value in entries:
        parts.append(pickle.dumps(key, protocol)[2:-1] + struct.pack("<cB", b"K", value) + b"s")
    return b"\x80" + bytes([protocol]) + b"}" + b"".join(parts) + b"."


@settings(max_examples=300)
@given(st.lists(st.tuples(KEYS, st.integers(0, 255)), max_size=8), st.sampled_from([2, 3]))
def test_entries_are_those_of_python(entries: list[tuple[Any, int]], protocol: int) -> None:
    """A later key takes the place of an equal one, whatever types the two are of."""
    stream = program(entries, protocol)
    loaded = loads(stream)

    assert read_pickle(stream).value == {as_plain(key): value for key, value in loaded.items()}


def number(code: str, data: bytes, order: str = "<", sizes: bytes = b"K\4K\4K\x08") -> bytes:
    """A scalar of numpy, with a byte order in the state of its type."""
    kind = call(glob("numpy", "dtype"), text(code), b"\x89", b"\x88")
    state = b"(K\3" + text(order) + b"NNN" + sizes + b"tb"
    core = glob("numpy._core.multiarray", "scalar")
    return call(core, kind + state, b"C" + bytes([len(data)]) + data)


MINUS = b"J\xff\xff\xff\xff"


def wide(value: str, order: str = "<") -> bytes:
    """A text of numpy."""
    data = value.encode("utf-32-le" if order == "<" else "utf-32-be")
    size = b"K" + bytes([len(data)])
    return number(f"U{len(value)}", data, order, size + b"K\4K\x08")


def long(value: int) -> bytes:
    """A 64-bit number of numpy."""
    return number("i8", value.to_bytes(8, "little"), sizes=MINUS * 2 + b"K\0")


HIDDEN = {  # what takes the place of the key before it
    "text": (text("module"), wide("module")),
    "text-of-other-order": (text("module"), wide("module", ">")),
    "text-with-zeros": (text("module"), wide("module\0\0")),
    "text-before": (wide("module"), text("module")),
    "number": (b"K\2", long(2)),
    "number-before": (long(2), b"K\2"),
    "truth": (b"\x88", long(1)),
    "two-of-numpy": (
        long(2),
        number("f4", struct.pack("<f", 2), sizes=MINUS * 2 + b"K\0"),
    ),
    "in-a-tuple": (text("a") + b"K\1\x86", wide("a") + long(1) + b"\x86"),
    "deep-in-a-tuple": (text("a") + b"\x85\x85", wide("a") + b"\x85\x85"),
    "complex": (b"K\2", call(glob("builtins", "complex"), b"K\2", b"K\0")),
    "stage": (b"K\3", call(STAGE, b"K\3")),
    "stage-by-name": (b"K\3", call(glob("builtins", "getattr"), STAGE, text("weights"))),
    "type": (glob("torch", "float"), glob("torch", "float32")),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_an_equal_key_takes_the_place(name: str) -> None:
    """Both Python and this reader are left with one entry, and that is the later one."""
    first, then = HIDDEN[name]
    stream = b"\x80\4}" + first + b"K\1s" + then + b"K\2s."

    assert [*loads(stream).values()] == [2]
    assert [*read_pickle(stream).value.values()] == [2]


@pytest.mark.parametrize("name", HIDDEN)
def test_members_and_pairs_are_keys_too(name: str) -> None:
    """Sets, frozen sets and ordered dicts are compared alike."""
    first, then = HIDDEN[name]
    ordered = glob("collections", "OrderedDict")
    pair = b"]" + first + b"K\1\x86a" + then + b"K\2\x86a"

    assert len(read_pickle(b"\x80\4\x8f(" + first + then + b"\x90.").value) == 1
    assert len(read_pickle(b"\x80\4(" + first + then + b"\x91.").value) == 1
    assert [*read_pickle(b"\x80\4" + ordered + pair + b"\x85R.").value.values()] == [2]


REFUSED = {
    "no-character": number("U1", b"\xff\xff\xff\xff"),
    "too-few-bytes": number("U1", b"a"),
    "date": np.datetime64(5, "s"),
    "span": np.timedelta64(5, "s"),
    "wider-than-python": np.longdouble("1.5"),
    "stage-of-none": call(STAGE, b"N"),
    "complex-of-text": call(glob("builtins", "complex"), text("2")),
    "tensor": tensor(b"K\1\x85"),
    "storage": tensor(b"K\1\x85")[: tensor(b"K\1\x85").index(b"Q") + 1].partition(b"_v2\n(")[2],
    "constant": glob("deepspeed.checkpoint.constants", "OPTIMIZER_STATE_DICT"),
    "constant-of-python": glob("string", "digits"),
    "truth-of-python": glob("builtins", "__debug__"),
    "version": glob("torch", "__version__"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("nested", [False, True])
def test_what_could_be_any_key_is_refused(name: str, *, nested: bool) -> None:
    """A name, a tensor, a date: what it equals depends on who loads it."""
    key = REFUSED[name]
    if isinstance(key, np.generic):
        stream = pickle.dumps(key, 2)[2:-1]
        key = stream
    stream = b"\x80\4}" + (key + b"\x85" if nested else key) + b"K\1s."

    with pytest.raises(PickleError):
        read_pickle(stream)


def test_a_constant_of_deepspeed_is_the_key_that_it_says() -> None:
    """The reason: this name is the text of a key, and the second entry would hide the first."""
    pytest.importorskip("deepspeed")
    hidden = text("optimizer_state_dict") + b"K\1s" + REFUSED["constant"] + b"K\2s."

    assert loads(b"\x80\4}" + hidden) == {"optimizer_state_dict": 2}


@pytest.mark.parametrize("name", ["items", "keys", "get", "values", "__class__", "__iter__"])
def test_no_attribute_takes_the_place_of_a_method(name: str, tmp_path: Path) -> None:
    """An ordered dict whose `items` is another thing is empty for one reader, full for another."""
    ordered = call(glob("collections", "OrderedDict")) + text("a") + b"K\1s"
    spoilt = ordered + b"}" + text(name) + glob("builtins", "dict") + b"sb"
    slots = ordered + b"N}" + text(name) + glob("builtins", "dict") + b"s\x86b"
    records = records_of(MODEL)

    for value in (spoilt, slots):
        stream = b"\x80\4" + value + b"."
        file = torch_file(tmp_path / "a.bin", {**records, "data.pkl": stream})
        assert [found.rule for found in verify(file)] == ["file-unreadable"]


def test_what_people_save_is_not_refused(tmp_path: Path) -> None:
    """Counts by class, types as keys, callbacks by class, metadata of modules."""
    module = torch.nn.Linear(2, 2).state_dict()
    value = {
        "counts": {np.int64(3): 1, np.str_("a"): 2},
        "types": {torch.float32: 1, torch.bfloat16: 2, int: 3},
        "places": {("a", 1): 1, frozenset({1, 2}): 2, None: 3},
        "callbacks": {OrderedDict: {}},
        "module": module,
    }
    torch.save(value, tmp_path / "state.pt")
    found = read_pickle(records_of(tmp_path / "state.pt")["data.pkl"]).value

    assert found["counts"] == {3: 1, "a": 2}
    assert found["types"] == {
        Name("torch.float32"): 1,
        Name("torch.bfloat16"): 2,
        Name("builtins.int"): 3,
    }
    assert found["places"] == value["places"]
    assert found["callbacks"] == {Name("collections.OrderedDict"): {}}
    assert found["module"].keys() == module.keys()


@pytest.mark.parametrize(("count", "good"), [(900, True), (3_000, False)])
def test_large_numbers_as_keys_are_few(count: int, good: bool) -> None:
    """They can be chosen to collide: a few are healthy, many make every reader slow."""
    keys = (b"\x8a\x10" + (n * (2**61 - 1)).to_bytes(16, "little") for n in range(1, count + 1))
    stream = b"\x80\4}(" + b"N".join(keys) + b"Nu."

    if good:
        assert read_pickle(stream).value == loads(stream)
    else:
        with pytest.raises(PickleError, match="too many keys"):
            read_pickle(stream)
