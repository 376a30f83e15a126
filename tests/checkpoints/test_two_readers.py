"""What our reader and torch would understand differently, and what numpy believes: all refused."""

from __future__ import annotations

import collections
import datetime as dt
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import before, beside, call, glob, tensor, text, torch_file
from odd_archives import records_of

from dsforge.checkpoints.folder import find_checkpoint
from dsforge.checkpoints.torch_files.archive import Archive
from dsforge.checkpoints.verify.checkpoint import verify
from dsforge.errors import DsforgeError
from dsforge.train.checkpoints.rebuilt_objects import UnknownTypeError, revived

SAMPLES = Path(__file__).parent / "samples"
MODEL = SAMPLES / "zero1/global_step3/mp_rank_00_model_states.pt"
SCALER = glob("deepspeed.runtime.fp16.loss_scaler", "LossScaler")
ORDERED = call(glob("collections", "OrderedDict"))
NDARRAY = glob("numpy", "ndarray")
FROM_BUFFER = glob("numpy._core.numeric", "_frombuffer")


def dtype(code: str, state: bytes = b"") -> bytes:
    """A type of numpy, with a state."""
    made = call(glob("numpy", "dtype"), text(code), b"\x89", b"\x88")
    return made + (b"(K\3" + text("|") + state + b"tb" if state else b"")


def forged() -> dict[str, bytes]:
    """Types of numpy that lie about objects, and arrays of them: plain bytes become addresses."""
    lying = b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0"
    field = b"N" + text("a") + b"\x85}" + text("a") + dtype("O8") + b"K\0\x86sK\x08K\1K\0"
    core = "numpy._core.multiarray"
    empty = call(glob(core, "_reconstruct"), NDARRAY, b"K\0\x85", b"C\1b")
    eight = b"C\x08AAAAAAAA"
    return {
        "buffer": call(NDARRAY, b"K\1\x85", text("O"), eight),
        "buffer-lying": call(NDARRAY, b"K\1\x85", dtype("O8", lying), eight),
        "buffer-field": call(NDARRAY, b"K\1\x85", dtype("V8", field), eight),
        "state": empty + b"(K\1K\1\x85" + dtype("V8", field) + b"\x89" + eight + b"tb",
        "state-lying": empty + b"(K\1K\1\x85" + dtype("O8", lying) + b"\x89" + eight + b"tb",
        "objects-of-bytes": empty + b"(K\1K\1\x85" + dtype("O8") + b"\x89" + eight + b"tb",
        "scalar": call(glob(core, "scalar"), dtype("V8", field), eight),
        "scalar-object": call(glob(core, "scalar"), dtype("O8"), eight),
        "old-scalar": call(glob("numpy.core.multiarray", "scalar"), dtype("O8", lying), eight),
        "text": dtype("U2", b"NNNK\1K\1K\x08"),
        "numbers-as-objects": dtype("f8", b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3f"),
        "new-object": glob("numpy", "dtype") + text("O8") + b"\x85\x81",
        "object": b"(" + glob("numpy", "dtype") + text("f8,O") + b"o",
        "subarray": call(glob("numpy", "dtype"), dtype("V8") + b"K\x7f\x86"),
        "fields": call(glob("numpy", "dtype"), text("f8,O")),
        "buffer-of-objects": call(FROM_BUFFER, eight, dtype("O8"), b"K\1\x85", text("C")),
        "buffer-lying-about-objects": call(
            FROM_BUFFER, eight, dtype("V8", field), b"K\1\x85", text("C")
        ),
        "buffer-of-a-text": call(FROM_BUFFER, text("a"), dtype("f8"), b"K\1\x85", text("C")),
        "buffer-of-no-shape": call(
            FROM_BUFFER, eight, dtype("f8"), b"J\xff\xff\xff\xff\x85", text("C")
        ),
        "huge": call(NDARRAY, b"J\xff\xff\xff\x7f\x85", text("f8")),
    }


def different() -> dict[str, bytes]:
    """Programs that give torch other contents than a reader who takes each step by itself."""
    parameter = glob("torch._utils", "_rebuild_parameter_with_state")
    kind = glob("torch.nn.parameter", "Parameter")
    typed = glob("torch._tensor", "_rebuild_from_type_v2")
    rebuild = glob("torch._utils", "_rebuild_tensor_v2")
    storage = b"(" + text("storage") + glob("torch", "FloatStorage") + text("0")
    storage += text("cpu") + b"K\1tQ"
    arguments = b"(" + storage + b"K\0K\1\x85K\1\x85\x89" + ORDERED + b"t"
    one = tensor(b"K\1\x85")
    found = {
        f"contents-{name}": call(
            parameter, one, b"\x88", ORDERED, b"}" + text(name) + tensor(b"K\1\x85", key="1") + b"s"
        )
        for name in ("data", "real", "grad", "__class__", "__dict__", "_backward_hooks")
    }
    slots = b"N}" + text("data") + one + b"s\x86"
    found["contents-of-a-slot"] = call(parameter, one, b"\x88", ORDERED, slots)
    found["contents-by-type"] = call(
        typed, rebuild, kind, arguments, b"}" + text("data") + one + b"s"
    )
    whole = storage.replace(b"FloatStorage", b"IntStorage")
    found["storage-of-two-types"] = whole + storage + b"\x86"
    found["storage-of-two-sizes"] = storage + storage.replace(b"K\1t", b"K\2t") + b"\x86"
    found["ordered-by-a-dict"] = call(
        glob("collections", "OrderedDict"), b"}" + text("ab") + b"K\1s"
    )
    return found


def handed_and_taken_back() -> dict[str, bytes]:
    """Names that are handed to an object in a dict, and are no longer in it at the end."""
    system = glob("os", "system")
    state = b"}q\x20" + text("update_scale") + system + b"s"
    hooks = ORDERED + b"q\x21"
    rebuild = glob("torch._utils", "_rebuild_tensor_v2")
    storage = b"(" + text("storage") + glob("torch", "FloatStorage") + text("0")
    held = storage + text("cpu") + b"K\1tQ"
    return {
        "state": SCALER + b")\x81" + state + b"bh\x20" + text("update_scale") + b"Ns\x86",
        "states": SCALER + b")\x81" + state + b"bh\x20(" + text("update_scale") + b"Nu\x86",
        "hooks": hooks
        + call(rebuild, held, b"K\0", b"K\1\x85", b"K\1\x85", b"\x88", b"h\x21")
        # into the hooks of a tensor that was built before
        + b"h\x21K\0"
        + system
        + b"s\x87",
    }


def findings(folder: Path, program: bytes) -> list[Any]:
    """What `verify` says of a model file with a program beside its contents."""
    records = records_of(MODEL)
    file = torch_file(
        folder / "a.bin", {**records, "data.pkl": beside(program, records["data.pkl"])}
    )
    return [finding for finding in verify(file) if finding.severity == "error"]


@pytest.mark.parametrize("name", forged())
def test_numpy_is_believed_in_its_own_forms_alone(name: str, tmp_path: Path) -> None:
    """A state that numpy would turn into addresses is refused; several crash the loader."""
    assert findings(tmp_path, forged()[name])


def test_a_forged_type_ends_torch_load(tmp_path: Path) -> None:
    """The reason: what the reader must refuse makes Python itself crash."""
    records = records_of(MODEL)
    content = beside(forged()["buffer-field"], records["data.pkl"])
    file = torch_file(tmp_path / "a.bin", {**records, "data.pkl": content})
    program = f"import torch; repr(torch.load({str(file)!r}, weights_only=False))"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, timeout=120
    )

    assert done.returncode < 0


@pytest.mark.parametrize("name", different())
def test_contents_are_what_torch_loads(name: str, tmp_path: Path) -> None:
    """A tensor, a storage, a dict cannot be one thing here and another in torch."""
    assert findings(tmp_path, different()[name])


@pytest.mark.parametrize("name", handed_and_taken_back())
def test_what_was_handed_over_counts(name: str, tmp_path: Path) -> None:
    """An object keeps what its state held, whatever becomes of the dict after."""
    found = findings(tmp_path, handed_and_taken_back()[name])

    assert [finding.rule for finding in found] == ["runs-code"]


def healthy() -> dict[str, Any]:
    """What people keep in the `client_state` of a checkpoint."""
    when = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    chance = np.random.default_rng(3)
    return {
        "arrays": [chance.random(3), np.arange(6).reshape(2, 3), np.array(["a", "bcd"])],
        "orders": [np.asfortranarray(chance.random((2, 3))), np.arange(3, dtype=">i4")],
        "objects": np.array([1, "a", None], dtype=object),
        "dates": [np.datetime64("2026-01-02"), np.arange("2026-01", "2026-03", dtype="M8[D]")],
        "bytes": np.array([b"ab", b"c"]),
        "empty": [np.array([]), b"", np.str_(""), frozenset()],
        "keys": {np.int64(3): 1, np.str_("a"): 2, frozenset({1}): 3, b"": 4},
        "halves": np.array([1, 2], dtype=np.float16),
        "truths": np.array([True, False]),
        "numbers": [np.float64(1.5), np.int64(3), np.float32(2), np.bool_(True), np.str_("a")],
        "random": np.random.RandomState(3).get_state(),
        "times": [when, when.date(), when.timetz(), dt.timedelta(3)],
        "counts": collections.Counter("abca"),
        "defaults": [collections.defaultdict(int, a=2), collections.defaultdict(list, a=[2])],
        "others": [collections.deque([1]), 1 + 2j, slice(1, 2), range(3), torch.float16],
    }


@pytest.mark.parametrize("name", healthy())
def test_what_people_save_is_not_refused(name: str, tmp_path: Path) -> None:
    """Those are numpy's own forms of arrays, dates, counters: all without a word."""
    file = tmp_path / "state.pt"
    torch.save({"weight": torch.ones(2), "client": healthy()[name]}, file)

    assert verify(file) == []


def test_a_pointer_inside_does_not_lead_the_judge_away(tmp_path: Path) -> None:
    """The folder that is exported is the one that is judged, `latest` in it or not."""
    from dsforge.checkpoints.export import export
    from dsforge.train.checkpoints.universal_conversion import convert

    run = tmp_path / "run"
    folder = shutil.copytree(SAMPLES / "zero1/global_step3", run / "global_step9")  # renamed
    (run / "latest").write_text("global_step9")
    shutil.copytree(SAMPLES / "zero1/global_step3", folder / "global_step3")
    (folder / "latest").write_text("global_step3")

    with pytest.raises(DsforgeError, match="nothing was written"):
        export(find_checkpoint(run), tmp_path / "out")
    with pytest.raises(DsforgeError, match="nothing was written"):
        convert(find_checkpoint(run), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_with_other_endings_are_looked_at(tmp_path: Path) -> None:
    """Accelerate's random states end in `.pkl`, and torch loads them."""
    run = shutil.copytree(SAMPLES / "zero1", tmp_path / "run")
    records = records_of(MODEL)
    evil = before(call(glob("os", "system"), text("true")), records["data.pkl"])
    torch_file(run / "global_step3/random_states_0.pkl", records)
    assert verify(run) == []

    torch_file(run / "global_step3/random_states_0.pkl", {**records, "data.pkl": evil})
    (run / "global_step3/tokens.pickle").write_bytes(b"\x80\4K\1.")
    found = {(f.file, f.severity, f.rule) for f in verify(run)}

    assert found == {
        ("random_states_0.pkl", "error", "runs-code"),
        ("tokens.pickle", "warning", "foreign-names"),
    }


@pytest.mark.parametrize("bit", range(48))
def test_a_record_is_no_folder(bit: int, tmp_path: Path) -> None:
    """Torch leaves memory as it was where the directory says that a record is a folder."""
    content = bytearray(MODEL.read_bytes())
    entry = content.index(b"PK\1\2")
    content[entry + 36 + bit // 8] ^= 1 << bit % 8  # both fields of attributes
    file = tmp_path / "a.bin"
    file.write_bytes(content)

    assert [f.rule for f in verify(file)] == ["file-unreadable"]


def test_digits_of_other_scripts_are_no_numbers(tmp_path: Path) -> None:
    """No reader but Python takes them for the number of a rank or a record."""
    run = shutil.copytree(SAMPLES / "zero1", tmp_path / "run")
    file = run / "global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt"
    file.rename(file.with_name(file.name.replace("rank_1", "rank_\uff11")))
    assert "rank-missing" in [f.rule for f in verify(run)]

    other = torch_file(tmp_path / "a.bin", {**records_of(MODEL), "data/\u0660": b"0"})
    assert [f.rule for f in verify(other)] == ["file-unreadable"]


SPACE = glob("argparse", "Namespace") + b")\x81}"
UNBUILT = {
    "self": SPACE + text("self") + b"K\1sb",  # argparse itself cannot be given it
    "member": b"\x8f(" + SPACE + b"b\x90",  # what cannot be the member of a set
    "key": b"}" + SPACE + b"bNs",
    "empty": tensor(b"(" + b"J\xff\xff\xff\x7f" * 3 + b"K\0t", b"(" + b"K\1" * 4 + b"t"),
}


@pytest.mark.parametrize("name", UNBUILT)
def test_values_that_cannot_be_built_are_left_out(name: str, tmp_path: Path) -> None:
    """`convert` carries settings along where they can be built, and says what it leaves out."""
    records = records_of(MODEL)
    content = b"\x80\4" + UNBUILT[name] + b"."
    archive = Archive(torch_file(tmp_path / "a.bin", {**records, "data.pkl": content}))

    with pytest.raises(UnknownTypeError, match="cannot be built"):
        revived(archive.value, archive)
