"""Good files have no errors: what `dsforge gen` makes and what DeepSpeed ships."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from pairs import PAIRS, plan_of

from dsforge.artifacts import write_all
from dsforge.findings import Finding
from dsforge.lint.bounds import Bounds
from dsforge.lint.files import Against, checked, read_document, release_named
from dsforge.render import render

CASES = sorted(p.parent for p in (Path(__file__).parents[1] / "golden").glob("*/expected"))
# Its plan is put together by hand, only to be rendered: gpt2-xl has 25 heads and two tensor ranks.
HAND_MADE = {"v100-fp16-tensor": ["tensor-heads"]}
RELEASES = ("0.16.9", None)  # one that is older than what is generated for, and the newest


def errors(folder: Path, against: Against) -> list[Finding]:
    """Errors in all files of a folder that lint knows."""
    paths = [f.path for f in Bounds().found([folder])]
    documents = [document for path in paths if (document := read_document(path)).kind != "unknown"]
    assert documents
    return [
        f for document in documents for f in checked(document, against) if f.severity == "error"
    ]


@pytest.mark.parametrize("release", RELEASES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden_trees_have_no_errors(case: Path, release: str | None) -> None:
    """Every file of the golden cases passes, against an older release too."""
    found_errors = errors(case / "expected", Against(*release_named(release)))

    assert [f.rule for f in found_errors] == HAND_MADE.get(case.name, [])


@pytest.mark.parametrize("name", PAIRS)
def test_what_gen_makes_has_no_errors(name: str, tmp_path: Path) -> None:
    """Every file of every pair passes, against its own model and cluster too."""
    plan = plan_of(name, tmp_path)
    write_all(render(plan), tmp_path / "run")
    against = Against(*release_named(None), plan.model, plan.cluster)

    assert errors(tmp_path / "run", against) == []


def test_configs_in_the_deepspeed_package_have_no_errors() -> None:
    """The config templates that DeepSpeed ships pass; its other JSON is of no known kind."""
    spec = importlib.util.find_spec("deepspeed")
    if spec is None or spec.origin is None:
        pytest.skip("deepspeed is not installed")
    root = Path(spec.origin).parent
    paths = sorted(root.rglob("*.json"))
    against = Against(*release_named("installed"))
    found_errors = [f for p in paths for f in checked(read_document(p), against)]

    assert len([p for p in paths if read_document(p).kind == "ds_config"]) >= 4
    assert [f for f in found_errors if f.severity == "error"] == []
