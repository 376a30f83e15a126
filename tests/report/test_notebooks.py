"""Notebooks of the docs run from their first cell to their last, and show frames that are whole."""

from __future__ import annotations

import ast
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from report_pages import faults

import dsforge
from dsforge import notebook

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def run(cell: str, names: dict[str, Any]) -> Any:
    """What a cell shows: the value of its last expression."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)  # noqa: S102 (our own notebooks)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307


def framed(shown: Any) -> str:
    """The page in the frame of a value that a notebook displays."""
    found = re.search(r'srcdoc="([^"]*)"', shown._repr_html_())
    assert found
    return html.unescape(found[1])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell in order, in one process; every frame holds a page without faults."""
    monkeypatch.chdir(path.parent)
    names: dict[str, Any] = {}
    cells = json.loads(path.read_text())["cells"]
    values = [run("".join(c["source"]), names) for c in cells if c["cell_type"] == "code"]
    frames = [value for value in values if hasattr(value, "_repr_html_")]

    assert len(values) >= 4
    assert None not in values
    assert frames
    for frame in frames:
        assert faults(framed(frame)) == []


def test_a_frame_shows_what_the_report_shows() -> None:
    """Plans and results of the API alike; the frame can do nothing but run the page's script."""
    ranking = dsforge.plan("gpt2", "v100-32gb")
    shown = notebook.show(ranking)

    assert framed(shown) == dsforge.report(ranking.best).html
    assert framed(notebook.show(ranking.best)) == framed(shown)
    assert 'sandbox="allow-scripts allow-modals"' in shown._repr_html_()
    assert ranking.best.strategy.label() in repr(shown)
    estimate = dsforge.estimate("gpt2", "v100-32gb")
    assert framed(notebook.show(estimate)) == dsforge.report(estimate.plan).html
