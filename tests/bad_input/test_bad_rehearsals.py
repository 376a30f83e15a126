"""Bad input of `dsforge rehearse`, through the real command line and before torch is imported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsforge.cli.main import main
from dsforge.errors import EXIT_USAGE, EXIT_USER

GOOD = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {}}}
MODEL = ("--model", "smollm2-135m")
OWN = (*MODEL, "--ds-config", "ds.json")
PLANNED = (*MODEL, "--gpu", "a100-80gb", "--nodes", "1", "--gpus-per-node", "8")

COMMANDS = {
    "negative world": ((*OWN, "--world-size", "-8"), "world-size"),
    "no world": (OWN, "--world-size"),
    "world as text": ((*OWN, "--world-size", "many"), "world-size"),
    "negative rank": ((*OWN, "--world-size", "8", "--rank", "-1"), "rank"),
    "rank outside": ((*OWN, "--world-size", "8", "--rank", "8"), "below the world size"),
    "no model": (("--ds-config", "ds.json", "--world-size", "8"), "model"),
    "unknown model": (("--model", "lama", "--ds-config", "ds.json", "--world-size", "8"), "lama"),
    "negative tokens": ((*OWN, "--world-size", "8", "--seq-len", "-1"), "seq-len"),
    "no config": ((*MODEL, "--ds-config", "nowhere.json", "--world-size", "8"), "nowhere.json"),
    "context parallel": ((*PLANNED, "--cp", "2"), "attention heads (9)"),
    "tensor and pipeline": ((*PLANNED, "--tp", "3", "--pp", "2"), "tensor"),
    "megatron": ((*PLANNED, "--for", "megatron"), "megatron"),
    "negative batch": ((*PLANNED, "--micro-batch", "-1"), "micro"),
}
CONFIGS = {
    "empty": (b"", "JSON"),
    "no JSON": (b"{", "JSON"),
    "not UTF-8": (b"\xff\xfe{}", "UTF-8"),
    "deep": (b"[" * 100_000, "nested"),
    "list": (b"[]", "JSON object"),
    "block as a list": (json.dumps({**GOOD, "zero_optimization": [2]}).encode(), "object"),
    "precision as text": (json.dumps({**GOOD, "bf16": "yes"}).encode(), "bf16"),
    "tensor parallel": (
        json.dumps({**GOOD, "tensor_parallel": {"autotp_size": 3}}).encode(),
        "must divide the number of accelerators (8)",
    ),
    "tensor parallel as text": (
        json.dumps({**GOOD, "tensor_parallel": {"autotp_size": "two"}}).encode(),
        "autotp_size",
    ),
    "pipeline as a list": (json.dumps({**GOOD, "pipeline": [2]}).encode(), "pipeline"),
    "tensor and sequence": (
        json.dumps(
            {**GOOD, "tensor_parallel": {"autotp_size": 2}, "sequence_parallel_size": 2}
        ).encode(),
        "DeepSpeed cannot combine tensor (2) parallelism with sequence parallelism (2)",
    ),
    "sequence parallel": (
        json.dumps({**GOOD, "sequence_parallel_size": 3}).encode(),
        "sequence (3) parallelism",
    ),
    "disk": (
        json.dumps(
            {**GOOD, "zero_optimization": {"offload_optimizer": {"device": "nvme"}}}
        ).encode(),
        "NVMe",
    ),
}


def refusal(arguments: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a command line that must fail with nothing written."""
    capsys.readouterr()
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as caught:
        main(["rehearse", *arguments, "--json", "--picture", str(folder / "picture.svg")])
    out, err = capsys.readouterr()
    assert caught.value.code in (EXIT_USER, EXIT_USAGE)
    assert sorted(folder.rglob("*")) == before
    assert not out
    assert "Traceback" not in err
    assert "importing torch" not in err
    return err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a config that is right."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "ds.json").write_text(json.dumps(GOOD))
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_command_line_is_explained(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names what is wrong."""
    arguments, word = COMMANDS[name]

    assert word in refusal(arguments, folder, capsys)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_wrong_config_is_explained(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is in the file, one message tells."""
    text, word = CONFIGS[name]
    (folder / "ds.json").write_bytes(text)

    assert word in refusal((*OWN, "--world-size", "8"), folder, capsys)
