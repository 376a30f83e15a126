"""Files for other trainers start from the weights that the plan is for, on the data it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

import dsforge
from dsforge.programs import PROGRAMS

NODE = {"gpu": "h100-80gb", "gpus_per_node": 8}
FOREIGN = [program.name for program in PROGRAMS if not program.is_own]
FROM_RANDOM = ("gpt-neox", "megatron-deepspeed")  # they load their own checkpoints only
SAID = "trained weights"


def written(program: str, out: Path, **work: object) -> dict[str, str]:
    """The files of a program by name, for a model whose weights are published."""
    asked = {"sequence_length": 2048, "global_batch_size": 64, **work}
    dsforge.gen("llama-3.1-8b", NODE, asked, out=out, strategy={"program": program})
    folder = out / "for" / program
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


@pytest.mark.parametrize("program", FOREIGN)
def test_no_fine_tuning_begins_anew_in_silence(program: str, tmp_path: Path) -> None:
    """Without a token budget: trained weights, or a word that they must be converted; no C4."""
    files = written(program, tmp_path)
    code = "\n".join(files.values())

    assert "c4" not in code.lower()
    assert "from_config(" not in files.get("train.py", "") or program == "transformers"
    if program == "torchtitan":
        assert "initial_load_in_hf = True" in files["planned.py"]
        assert "initial_load_in_hf = true" in files["job.toml"]
    elif program in FROM_RANDOM:
        assert SAID in files["run.sh"]
        assert "warning: nothing in output" in files["run.sh"]
    elif program == "megatron-bridge":
        assert "load_weights=True" in files["train.py"]


def test_torchtitan_reads_rows_and_checks_its_folder(tmp_path: Path) -> None:
    """Rows of a file are a data set of its own: it refuses names that it does not know."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "one"}\n' * 50, encoding="utf-8")
    files = written("torchtitan", tmp_path / "run", data={"train": str(rows)})

    assert 'DATASETS["planned"]' in files["planned.py"]
    assert 'Config(dataset="planned")' in files["planned.py"]
    assert "rows.jsonl" in files["planned.py"]
    assert "Put the path" not in files["planned.py"]
    assert '[ -d "$HF_ASSETS" ] || fail' in files["run.sh"]


def test_a_token_budget_is_training_from_scratch(tmp_path: Path) -> None:
    """Random weights and torchtitan's own data, and both are said."""
    titan = written("torchtitan", tmp_path / "titan", tokens=10**9)
    neox = written("gpt-neox", tmp_path / "neox", tokens=10**9)

    assert "initial_load_in_hf" not in titan["planned.py"] + titan["job.toml"]
    assert "Starts from random weights" in titan["planned.py"]
    assert "torchtitan reads C4" in titan["planned.py"]
    assert SAID not in neox["run.sh"]
