"""`latest_universal` beside a universal checkpoint, and what a conversion carries along."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from samples_copied import SAMPLES, content, copied, ended

from dsforge.checkpoints.output.universal_pointer import POINTER, check_pointer, point
from dsforge.errors import DsforgeError

SAMPLE = SAMPLES / "zero2-bf16"


def linked(pointer: Path) -> None:
    """A link to a text of the user."""
    pointer.with_name("text").write_text("mine")
    pointer.symlink_to("text")


IN_THE_WAY: dict[str, Callable[[Path], object]] = {
    "another": lambda pointer: pointer.write_text("universal_step100"),
    "empty": lambda pointer: pointer.write_text(""),
    "binary": lambda pointer: pointer.write_bytes(b"\xff\xfe\0" * 100),
    "link": linked,
    "dangling-link": lambda pointer: pointer.symlink_to("nothing"),
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
}


@pytest.mark.engine
@pytest.mark.parametrize("kind", IN_THE_WAY)
def test_a_pointer_in_the_way_is_refused_before_any_work(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names another checkpoint, or is no file: it stays, and the message says how to go on."""
    pytest.importorskip("deepspeed")
    IN_THE_WAY[kind](tmp_path / POINTER)
    before = sorted(str(path) for path in tmp_path.rglob("*"))

    assert ended("convert", SAMPLE, tmp_path / "out") == 1
    said = capsys.readouterr().err
    assert POINTER in said
    assert "remove" in said
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    if kind == "link":
        assert (tmp_path / "text").read_text() == "mine"


def test_a_pointer_that_names_it_already_is_kept(tmp_path: Path) -> None:
    """As after the folder was removed, or with a line end by hand."""
    (tmp_path / POINTER).write_text("out\n")
    check_pointer(tmp_path / "out")
    point(tmp_path / "out", print)

    assert (tmp_path / POINTER).read_text() == "out\n"


def test_a_pointer_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    """The checkpoint is whole; the message says that it is, and how to go on."""
    (tmp_path / "out").mkdir()
    (tmp_path / POINTER).write_text("other")

    with pytest.raises(DsforgeError, match=r"already written, but .* names another") as raised:
        point(tmp_path / "out", print)
    assert "write `out` into it" in raised.value.hint
    assert (tmp_path / POINTER).read_text() == "other"


@pytest.mark.engine
def test_a_model_without_optimizer_states_is_not_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says what is missing, and that `export` needs none."""
    torch = pytest.importorskip("torch")
    copy = copied("zero0", tmp_path)
    (file,) = copy.glob("*/*.pt")
    value = torch.load(file, weights_only=False)
    torch.save({**value, "optimizer": None}, file)

    assert ended("convert", copy, tmp_path / "out") == 1
    said = capsys.readouterr().err
    assert "contains no optimizer states" in said
    assert "dsforge ckpt export" in said
    assert ended("export", copy, tmp_path / "weights") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"zero0", "weights"}


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["universal", "weights"])
def test_other_kinds_are_not_converted(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is universal already, or has no states."""
    pytest.importorskip("deepspeed")
    ended("convert" if kind == "universal" else "export", SAMPLE, tmp_path / kind)
    before = content(tmp_path)

    assert ended("convert", tmp_path / kind, tmp_path / "out") == 1
    assert "not a checkpoint of DeepSpeed's ranks" in capsys.readouterr().err
    assert content(tmp_path) == before


@pytest.mark.engine
def test_settings_go_along_without_unpickling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of a script's own are carried, what cannot be is named, and torch loads nothing."""
    torch = pytest.importorskip("torch")
    import numpy as np

    copy = copied("zero1", tmp_path)
    file = next(copy.glob("*/*model_states.pt"))
    value: dict[str, Any] = torch.load(file, weights_only=False)
    own = {"epoch": 3, "seen": {1, 2}, "scale": torch.arange(6.0).reshape(2, 3)}
    scaler = {"type": torch.float16, "size": torch.Size([2])}
    torch.save({**value, "own": own, "kinds": scaler, "noise": np.arange(3)}, file)

    def load(*_: object, **__: object) -> None:
        raise AssertionError("torch.load was called")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "load", load)
        assert ended("convert", copy, tmp_path / "out") == 0
    found = torch.load(tmp_path / "out/mp_rank_00_model_states.pt", weights_only=False)
    assert "`noise` of" in capsys.readouterr().err
    assert found["own"]["seen"] == {1, 2}
    assert torch.equal(found["own"]["scale"], own["scale"])
    assert found["kinds"]["type"] is torch.float16
    assert "noise" not in found
    assert isinstance(found["param_shapes"][0]["model.embed_tokens.weight"], torch.Size)


@pytest.mark.engine
def test_a_disk_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that has two names is written twice."""
    pytest.importorskip("deepspeed")

    def link(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "link", link)
    assert ended("convert", SAMPLE, tmp_path / "a" / "out") == 0
    monkeypatch.undo()
    assert ended("convert", SAMPLE, tmp_path / "b" / "out") == 0
    assert content(tmp_path / "a") == content(tmp_path / "b")
    shutil.rmtree(tmp_path)
