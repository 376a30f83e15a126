"""What goes along with exported weights: configuration, tokenizer, settings of adapters."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from samples_copied import SAMPLES, content, ended

from dsforge.checkpoints.export import export
from dsforge.checkpoints.folder import find_checkpoint
from dsforge.checkpoints.output import base_model_files as beside
from dsforge.errors import DsforgeError

SAMPLE = SAMPLES / "zero2-bf16"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder, with a secret outside of it."""
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "torch_dtype": "float16"}')
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "model.safetensors").write_text("not to be copied")
    (tmp_path / "secret.txt").write_text("secret")
    return folder


def test_configuration_and_tokenizer_go_along(model: Path, tmp_path: Path) -> None:
    """With the type of the weights; the base model stays as it was."""
    before = content(model)

    assert ended("export", SAMPLE, tmp_path / "out", "--model", model) == 0
    assert sorted(content(tmp_path / "out")) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config == {"model_type": "llama", "dtype": "bfloat16"}
    assert content(model) == before


def test_what_must_not_go_along_is_left_out_and_named(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Links that lead out, pipes, folders, dangling links, files of any size."""
    monkeypatch.setattr(beside, "MAX_BYTES", 1000)
    (model / "stolen.txt").symlink_to("../secret.txt")
    (model / "passwd.json").symlink_to("/etc/passwd")
    (model / "gone.json").symlink_to("nothing.json")
    (model / "folder.json").mkdir()
    (model / "large.txt").write_text("x" * 1001)
    os.mkfifo(model / "pipe.json")
    (model / "own.txt").symlink_to("tokenizer.json")

    assert ended("export", SAMPLE, tmp_path / "out", "--model", model) == 0
    said = capsys.readouterr().err
    assert set(content(tmp_path / "out")) == {
        *("README.md", "config.json", "tokenizer.json", "model.safetensors", "own.txt")
    }
    for name in ("stolen.txt", "passwd.json", "gone.json", "folder.json", "large.txt", "pipe.json"):
        assert f"{name} is left out: " in said


def test_the_cache_of_hugging_face_consists_of_links(tmp_path: Path) -> None:
    """They lead to the folder of blobs beside it, and are followed."""
    blobs, snapshot = tmp_path / "models--x/blobs", tmp_path / "models--x/snapshots/1f"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (blobs / f"sha-{name}").write_text("{}")
        (snapshot / name).symlink_to(f"../../blobs/sha-{name}")

    written = export(find_checkpoint(SAMPLE), tmp_path / "out", model=snapshot)
    assert (written.folder / "tokenizer.json").read_text() == "{}"
    assert not (written.folder / "tokenizer.json").is_symlink()


CONFIGS = [b"", b"[1]", b"{", b"\xff", b'"text"', b"[" * 100_000, b'{"a": 1e999999}{']


@pytest.mark.parametrize("text", CONFIGS, ids=range(len(CONFIGS)))
def test_a_configuration_that_is_none_is_refused(text: bytes, model: Path, tmp_path: Path) -> None:
    """One message, and nothing is written."""
    (model / "config.json").write_bytes(text)

    assert ended("export", SAMPLE, tmp_path / "out", "--model", model) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["missing", "pipe", "link-out", "no-folder"])
def test_a_folder_without_configuration_is_refused(kind: str, model: Path, tmp_path: Path) -> None:
    """As above."""
    (model / "config.json").unlink()
    if kind == "pipe":
        os.mkfifo(model / "config.json")
    elif kind == "link-out":
        (model / "config.json").symlink_to("../secret.txt")
    named = model / "tokenizer.json" if kind == "no-folder" else model

    assert ended("export", SAMPLE, tmp_path / "out", "--model", named) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("alpha", ["nan", "inf", "-inf", "0", "-1", "1e999", "-0.0"])
def test_a_scale_that_is_none_is_refused(
    alpha: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Peft would multiply every adapter with it."""
    checkpoint = SAMPLES / "zero2-lora"

    assert ended("export", checkpoint, tmp_path / "out", f"--lora-alpha={alpha}") == 2
    assert "Invalid value for '--lora-alpha'" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def adapters(tmp_path: Path, renamed: dict[str, str]) -> dict[str, Any]:
    """Names of the tensors of an export of adapters, some renamed before, and its settings."""
    import dsforge.checkpoints.export as module

    real = module.read_checkpoint

    def read_ranks(*arguments: Any) -> Any:
        saved = real(*arguments)
        trained = dict(saved.trained)
        for number, (name, new) in enumerate(renamed.items()):
            key = [n for n in trained if name in n][number]
            trained[key.replace(name, new)] = trained.pop(key)
        return type(saved)(
            **{**{f: getattr(saved, f) for f in saved.__slots__}, "trained": trained}
        )

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "read_checkpoint", read_ranks)
        folder = find_checkpoint(SAMPLES / "zero2-lora")
        written = export(folder, tmp_path / "out", lora_alpha=math.pi)
    header = (written.folder / "adapter_model.safetensors").read_bytes()
    length = int.from_bytes(header[:8], "little")
    return dict(json.loads(header[8 : 8 + length]))


def test_only_the_name_of_the_adapter_is_left_out(tmp_path: Path) -> None:
    """A module that is called `default` keeps its name."""
    names = adapters(tmp_path, {"layers.0.mlp": "default.mlp"})

    assert any("default.mlp" in name for name in names)
    assert not any(name.endswith("default.weight") for name in names)
    settings = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (3, math.pi)


def test_two_adapters_are_not_mixed(tmp_path: Path) -> None:
    """They would have one name in peft's file."""
    with pytest.raises(DsforgeError, match=r"several adapters \(default, other\)"):
        adapters(tmp_path, {"A.default": "A.other"})
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["", "__metadata__", "a\nb", "\udc80", "x\0"])
def test_names_that_no_file_of_weights_can_hold_are_refused(name: str) -> None:
    """Safetensors would refuse the file, or take the tensor for something else."""
    from dsforge.checkpoints.export import _checked_names

    with pytest.raises(DsforgeError, match="cannot be the name of a tensor"):
        _checked_names({name: None})  # type: ignore[dict-item]
