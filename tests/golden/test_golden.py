"""The whole run folder of a few cases, file by file, as a person would review it.

`pytest tests/golden --update-golden` writes the expected files anew; read the diff before you
commit it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from golden_plans import CASES, plan_of

from dsforge.artifacts import MANIFEST, write_all
from dsforge.plan import Plan
from dsforge.render import render


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder with its text; plan.json by its meaning alone."""
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {path: file.read_text() for path, file in files.items() if path != MANIFEST}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_folder_is_as_expected(case: Path, tmp_path: Path, update_golden: bool) -> None:
    """Every file, byte for byte, and no other; plan.json reads back as the plan."""
    plan, out, expected = plan_of(case), tmp_path / "run", case / "expected"
    write_all(render(plan), out)
    kept = Plan.model_validate_json((out / "plan.json").read_text())
    (out / "plan.json").unlink()  # its format is pydantic's; what it means is compared
    if update_golden:
        shutil.rmtree(expected, ignore_errors=True)
        (out / MANIFEST).unlink()
        shutil.copytree(out, expected)

    assert kept == plan
    assert tree(out) == tree(expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_expected_files_are_sound(case: Path) -> None:
    """The expected JSON parses and scripts can be executed: what is reviewed is usable."""
    expected = case / "expected"

    for file in expected.rglob("*.json"):
        json.loads(file.read_text())
    for file in [*expected.rglob("*.sh"), *expected.rglob("*.sbatch")]:
        assert file.stat().st_mode & 0o111, file
