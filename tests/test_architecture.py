"""The first path of docs/architecture.md is the one that a config really takes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import FrameType

import pytest

import dsforge
from dsforge.cli.main import main

PACKAGE = Path(dsforge.__file__).parent
PAGE = PACKAGE.parent / "docs/architecture.md"
MOST_FILES = 12
CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def listed() -> list[str]:
    """The module that each step of the page begins with."""
    steps = PAGE.read_text(encoding="utf-8").partition("## Six paths")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", steps, flags=re.MULTILINE)


def test_each_step_of_the_first_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gen` enters every file of the list, and the list is short."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    words = ("--model", str(tmp_path), "--gpu", "a100-80gb", "--gpus-per-node", "8")
    monkeypatch.setattr(sys, "argv", ["dsforge", "gen", *words, "--out", str(tmp_path / "run")])
    calls: list[str] = []

    def note(frame: FrameType, event: str, _given: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            calls.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        sys.setprofile(before)
    assert not end.value.code
    steps = [str(PACKAGE / step) for step in listed()]
    entered = set(calls)

    assert 0 < len(steps) <= MOST_FILES
    assert [step for step in steps if step not in entered] == []
