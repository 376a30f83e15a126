"""Lint on public files with verdicts: the shares of right findings and met verdicts do not fall."""

from __future__ import annotations

import copy
import json
from collections import Counter
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest
from lint_scoring import PAGE, Scored, all_scored, cases, infos_per_file, page, total

from dsforge.lint.files import Against, checked, read_document, release_named, repaired
from dsforge.lint.reading.document import KINDS
from dsforge.lint.reading.json_text import plain
from dsforge.lint.schemas.releases import frozen
from dsforge.masking import masked
from dsforge.train.config_check import verdicts

AGAINST = Against(*release_named(None))
ERRORS_RIGHT, WARNINGS_RIGHT, INFOS = 0.97, 0.85, 0.5
WARNINGS_MET = 0.95
LICENCES = {"Apache-2.0", "MIT", "reduced"}


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, 1e30, 1e9, "auto", "3", "x", "true", "1e-4", "nvme"),
    *([], [1], {}, {"a": 1}, {"enabled": True}),
)


@cache
def results() -> list[Scored]:
    """The whole corpus, scored once."""
    return all_scored()


def test_the_corpus_is_large_and_half_of_it_older_than_its_rules() -> None:
    """300 files, each with its source, its kind, and verdicts with place and reason."""
    rows = [(case.half, case.row) for case in cases()]

    assert len(rows) >= 300
    assert 0.4 < sum(half == "first_half" for half, _ in rows) / len(rows) < 0.6
    for _, row in rows:
        assert len(row["commit"]) == 40, row["path"]
        assert "/" in row["repository"]
        assert row["kind"] in (*KINDS, "other")
        assert row["licence"] in LICENCES
        assert datetime.fromisoformat(row["judged"])
        assert all(len(verdict) == 3 and all(verdict[::2]) for verdict in row["expect"])
        assert {verdict[0] for verdict in row["expect"]} <= {"error", "warning"}


def test_no_secret_is_in_the_corpus() -> None:
    """Secrets of others were replaced."""
    words = [
        word.partition("=")[2]
        for case in cases()
        if case.kind == "env"
        for word in case.row["text"].split()
        if masked(word) != word
    ]

    assert words
    assert [w for w in words if "notTheRealOne" not in w and not w.startswith("/")] == []


def test_errors_are_right_and_met() -> None:
    """97 of 100 at least, over all kinds; those of DeepSpeed's config class all."""
    errors = total(results(), "error")

    assert errors.found >= 80
    assert errors.precision >= ERRORS_RIGHT
    assert errors.recall >= ERRORS_RIGHT
    configs = total([r for r in results() if r.case.kind == "ds_config"], "error")
    assert configs.recall == 1.0


def test_warnings_are_right_and_met() -> None:
    """85 of 100 at least."""
    warnings = total(results(), "warning")

    assert warnings.found >= 80
    assert warnings.precision >= WARNINGS_RIGHT
    assert warnings.recall >= WARNINGS_MET


def test_files_of_other_programs_have_no_finding() -> None:
    """Training arguments, model configs and scripts of others stay without a mark."""
    others = [result for result in results() if result.case.kind == "other"]

    assert len(others) >= 50
    assert [r.case.name for r in others if r.differences or r.infos] == []


def test_infos_are_few() -> None:
    """Half a line a file at most, for each kind of file."""
    kinds = {result.case.kind for result in results()}
    for kind in sorted(kinds):
        assert infos_per_file([r for r in results() if r.case.kind == kind]) <= INFOS, kind


def test_the_page_is_current() -> None:
    """`python tests/lint/lint_scoring.py --write` was run."""
    assert PAGE.read_text(encoding="utf-8") == page(results())


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_what_the_engine_refuses_lint_calls_an_error() -> None:
    """Every public ds_config that DeepSpeed's config class refuses has an error."""
    configs = [case for case in cases() if case.kind == "ds_config"]
    said = verdicts(tuple(case.row["text"] for case in configs))
    silent = [
        case.name
        for case, verdict in zip(configs, said, strict=True)
        if verdict == "refused" and not _errors(case.name, case.row["text"])
    ]

    assert Counter(said)["refused"] >= 20
    assert [name for name in silent if "TEMPLATE" not in name] == []


def _errors(name: str, text: str) -> list[str]:
    from dsforge.lint.reading.kind import document_of

    document = document_of(name, text)
    return [f.rule for f in checked(document, AGAINST) if f.severity == "error"]


def mutant(config: dict[str, Any], random: Random) -> dict[str, Any]:
    """A config with one key, known or not, of some block set to some value."""
    changed = copy.deepcopy(config)
    blocks = frozen().blocks
    path = "" if random.random() < 0.3 else random.choice(sorted(blocks))
    inner = changed
    for key in path.split(".") if path else ():
        if not isinstance(inner.get(key), dict):
            inner[key] = {}
        inner = inner[key]
    known = random.random() > 0.15
    inner[random.choice(sorted(blocks[path].keys)) if known else "of_nobody"] = random.choice(
        VALUES
    )
    return changed


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_mutants_that_the_engine_refuses_have_an_error() -> None:
    """One value changed in a public config: 97 of 100 refusals are foreseen at least."""
    random = Random(19)  # noqa: S311 - no secret
    bases = [
        json.loads(case.row["text"])
        for case in cases()
        if case.kind == "ds_config" and not any(v[0] == "error" for v in case.row["expect"])
        if plain(case.row["text"]) is not None
    ]
    texts = tuple(json.dumps(mutant(random.choice(bases), random)) for _ in range(150))
    said = verdicts(texts)
    refused = [text for text, verdict in zip(texts, said, strict=True) if verdict == "refused"]
    silent = [text for text in refused if not _errors("ds_config.json", text)]

    assert len(refused) >= 60
    assert len(silent) <= 0.03 * len(refused), silent


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_no_repair_harms(tmp_path: Path) -> None:
    """Of every public config: the engine reads what it read before, and only findings changed."""
    pairs: list[tuple[str, str, str]] = []
    for number, case in enumerate(cases()):
        path = tmp_path / str(number) / Path(case.row["path"]).name
        path.parent.mkdir()
        path.write_text(case.row["text"])
        before = read_document(path)
        after = repaired(path, before, AGAINST)
        if after.text == before.text:
            continue
        touched = {f.path for f in checked(before, AGAINST) if f.edits}
        assert _changes(before.root, after.root) <= {p.split(".")[0] for p in touched}, case.name
        pairs += [(case.name, before.text, after.text)] * (before.kind == "ds_config")
    said = verdicts(tuple(text for _, before, after in pairs for text in (before, after)))
    harmed = [
        name
        for (name, _, _), before, after in zip(pairs, said[::2], said[1::2], strict=True)
        if before == "accepted" and after == "refused"
    ]

    assert len(pairs) >= 10
    assert harmed == []


def _changes(before: Any, after: Any) -> set[str]:
    """Top-level keys whose values differ; a renamed key counts under its old name."""
    kept = {key for key in before if json.dumps(before[key]) == json.dumps(after.get(key))}
    return set(before) - kept
