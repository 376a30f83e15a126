"""Repairs: textual, in place, all or nothing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lint_texts import BASE

from dsforge.errors import DsforgeError
from dsforge.findings import Edit
from dsforge.lint.files import (
    Against,
    NotRepairedError,
    checked,
    read_document,
    release_named,
    repaired,
)
from dsforge.lint.reading.document import applied
from dsforge.lint.reading.kind import document_of
from dsforge.lint.schemas.releases import frozen

AGAINST = Against(*release_named(None))
BAD = """{
  # the run of May
  "zero_optimisation": {"stage": 3, "stage3_prefetch_bucket_size": 0.9e3}, // sharded
  "bf16": {"enabled": True, "loss_scale": 0, "hysteresis": 2},
  "train_micro_batch_size_per_gpu": 2,
}
"""
GOOD = """{
  # the run of May
  "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 0.9e3}, // sharded
  "bf16": {"enabled": true},
  "train_micro_batch_size_per_gpu": 2
}
"""
ENV_BAD = "# network\nexport A=1\r\n\nB=2\n"
YAML_BAD = "# mine\nzero_optimisation:\n  stage: 3  # all\n  reduce_bucket_size: 1.5\n"
YAML_GOOD = "# mine\nzero_optimization:\n  stage: 3  # all\n  reduce_bucket_size: 1\n"


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("ds_config.json", BAD, GOOD),
        ("ds_config.yaml", YAML_BAD, YAML_GOOD),
        (".deepspeed_env", ENV_BAD, "A=1\nB=2\n"),
    ],
    ids=["json", "yaml", "env"],
)
def test_safe_repairs_keep_comments_and_order(
    name: str, bad: str, good: str, tmp_path: Path
) -> None:
    """The file holds the repaired text, and everything else of it is as it was."""
    path = tmp_path / name
    path.write_bytes(bad.encode())
    repaired(path, read_document(path), AGAINST)

    assert path.read_bytes().decode() == good


def test_a_second_repair_changes_nothing(tmp_path: Path) -> None:
    """Repairs come to an end."""
    path = tmp_path / "ds_config.json"
    path.write_text(BAD)
    first = repaired(path, read_document(path), AGAINST)
    second = repaired(path, read_document(path), AGAINST)

    assert first.text == second.text == GOOD


def test_nothing_is_written_where_nothing_is_safe(tmp_path: Path) -> None:
    """A file without safe repairs keeps its inode."""
    path = tmp_path / "ds_config.json"
    path.write_text('{"fp16": {"enabled": true}, "bf16": {"enabled": true}}')
    before = path.stat().st_ino
    repaired(path, read_document(path), AGAINST)

    assert path.stat().st_ino == before


def test_links_stay_and_are_not_written_through(tmp_path: Path) -> None:
    """The file that a link leads to may belong to anybody: it is named instead."""
    target, link = tmp_path / "real.json", tmp_path / "ds_config.json"
    target.write_text(BAD)
    link.symlink_to(target)
    with pytest.raises(NotRepairedError, match=r"symbolic link to .*real.json"):
        repaired(link, read_document(link), AGAINST)

    assert link.is_symlink()
    assert target.read_text() == BAD


def test_harmful_values_are_left_to_the_user(tmp_path: Path) -> None:
    """What costs memory or time is said, with the better value, and not changed."""
    path = tmp_path / "ds_config.json"
    path.write_text('{"zero_optimization": {"stage": 3, "sub_group_size": 0}}')
    found = checked(read_document(path), AGAINST)

    assert [f.edits for f in found if f.rule == "sub-group-zero"] == [()]


def test_overlapping_edits_make_the_first() -> None:
    """Of two repairs of one place only the earlier one is made."""
    assert applied("abcdef", [Edit(1, 3, "X"), Edit(2, 4, "Y"), Edit(5, 6, "Z")]) == "aXdeZ"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder nobody can write to")
def test_a_file_that_cannot_be_written_is_an_error_in_words() -> None:
    """No traceback where the folder takes no new file."""
    document = document_of("/proc/self/ds_config.json", BAD)

    with pytest.raises(DsforgeError, match="cannot be written"):
        repaired(Path(document.name), document, AGAINST)


UNSURE = {
    "a remark": {"_comment": "for one node"},
    "another meaning": {"micro_batch_size": 4},
    "another shape": {"zero_optimisation": 3},
    "three letters": {"gradient_acumulatoin_stps": 8},
    "two for one name": {"zero_optimisation": {"stage": 2}, "zero_optimizaton": {"stage": 3}},
    "a taken name": {"bf16": {"enabled": True}, "steps_per_prints": 5, "steps_per_print": 9},
}


@pytest.mark.parametrize("keys", UNSURE.values(), ids=UNSURE)
def test_a_name_that_is_not_certain_stays(keys: dict[str, object], tmp_path: Path) -> None:
    """What was meant, only the user knows: the text keeps every byte."""
    path = tmp_path / "ds_config.json"
    text = json.dumps({"train_micro_batch_size_per_gpu": 1, **keys})
    path.write_text(text)
    repaired(path, read_document(path), AGAINST)

    assert path.read_text() == text


def test_a_remark_is_no_finding(tmp_path: Path) -> None:
    """Neither misspelt nor unread: it is there for readers."""
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"_comment": "a", "comment2": "b", "note": "c", **BASE}))

    assert [f for f in checked(read_document(path), AGAINST) if f.rule.startswith("key-")] == []


def test_the_successor_of_a_trainers_key_is_said(tmp_path: Path) -> None:
    """A micro batch is no global batch, however alike the names are."""
    path = tmp_path / "ds_config.json"
    path.write_text(
        json.dumps({"micro_batch_size": 4, "max_grad_norm": 1.0, "zero_optimization": {}})
    )
    fixes = {f.path: f.fix for f in checked(read_document(path), AGAINST)}

    assert "`train_micro_batch_size_per_gpu`" in fixes["micro_batch_size"]
    assert "`gradient_clipping`" in fixes["max_grad_norm"]


def test_a_repair_that_makes_the_engine_refuse_is_not_written(tmp_path: Path) -> None:
    """The engine ignored the misspelt block, and would refuse what stands in it."""
    path = tmp_path / "ds_config.json"
    text = json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimisation": {"stage": 7}})
    path.write_text(text)
    repaired(path, read_document(path), AGAINST)

    assert path.read_text() == text


KEYS = sorted(frozen().blocks[""].keys)
SLIPS = st.sampled_from(KEYS).flatmap(
    lambda key: st.integers(0, len(key) - 1).map(lambda at: key[:at] + key[at + 1 :])
)
ANY = st.one_of(
    st.booleans(), st.integers(-1, 99), st.just("auto"), st.just({"stage": 3}), st.just({"x": 1})
)


@given(st.dictionaries(st.one_of(st.sampled_from(KEYS), SLIPS), ANY, max_size=8))
@settings(max_examples=150, deadline=None)
def test_no_repair_adds_an_error(config: dict[str, object]) -> None:
    """Over any config with slips: no rule has more errors than before, and no key is lost."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "ds_config.json")
        path.write_text(json.dumps(config))
        before = read_document(path)
        after = repaired(path, before, AGAINST)
    counts = [
        Counter(f.rule for f in checked(document, AGAINST) if f.severity == "error")
        for document in (before, after)
    ]

    assert not counts[1] - counts[0]
    assert len(after.root) == len(before.root)
