"""Repairs and errors against DeepSpeed's own config class, in a process of its own."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from lint_texts import ds, offloaded

from dsforge.lint.files import Against, NotRepairedError, read_document, release_named, repaired
from dsforge.train.config_check import is_broken_by, verdicts

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")
AGAINST = Against(*release_named(None))
TEXTS = {
    ds({}): "accepted",
    ds({"train_batch_size": "auto", "zero.reduce_bucket_size": "auto"}): "accepted",
    "{train_batch_size: 8, // hjson\n}": "accepted",
    ds({"train_batch_size": 64}): "accepted",
    ds({"train_batch_size": 65}): "refused",
    ds({"zero.stage": 7}): "refused",
    ds({"zero.stages": 2}): "refused",
    ds({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 3}): "refused",
    ds({**offloaded(stage=2), "zero.cpu_offload": True}): "refused",
    '{"train_batch_size": 8, "train_batch_size": 8}': "refused",
    "[1]": "refused",
    "{" * 5000: "refused",
}


def test_the_engine_is_asked_itself() -> None:
    """What it reads and what it refuses, hostile texts included, in the order of the texts."""
    assert verdicts(tuple(TEXTS)) == tuple(TEXTS.values())


def test_a_repair_is_written_only_where_the_engine_still_reads_the_file(tmp_path: Path) -> None:
    """A misspelt name that holds what the engine refuses is left as it is; a good one is not."""
    good = {"train_micro_batch_size_per_gpu": 1, "zero_optimisation": {"stage": 2}}
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(good))
    repaired(path, read_document(path), AGAINST, is_broken_by)

    assert json.loads(path.read_text())["zero_optimization"] == {"stage": 2}


def test_a_repair_that_the_engine_refuses_is_named(tmp_path: Path) -> None:
    """The file keeps its bytes, and the message says why."""
    path = tmp_path / "ds_config.json"
    path.write_text(text := '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}')
    with pytest.raises(NotRepairedError, match="would refuse it"):
        repaired(path, read_document(path), AGAINST, lambda before, after: before != after)

    assert path.read_text() == text
