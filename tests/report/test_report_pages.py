"""Pages of any plan: complete, small, alone, pictures that are XML; hostile text stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree as ET

import drawing
import pytest
from report_pages import Seen, cells, faults

import dsforge
from dsforge.errors import DsforgeError
from dsforge.plan import Plan
from dsforge.planner import appraise
from dsforge.report import html_page, markdown_page, pictures
from dsforge.report.combined import combined
from dsforge.report.pages import MOST_BYTES
from dsforge.report.plan_sections import plan_report
from dsforge.report.step_plot import step_picture

DATA = Path(__file__).parent / "data"
HOSTILE = (
    '"><script>alert(1)</script>',
    "</style></title></pre></svg><img src=x onerror=alert(1)>",
    "'; alert(1); '",
    "{{ 7 * 7 }}{% for %}",
    "| a | b |\n\n# heading\n```\n[x](javascript:alert(1))",
    "\x00\x1b[31m\u202e\ud800",
    "https://elsewhere.example/x.js",
)


def drawn_plan(seed: int) -> Plan:
    """A priced strategy of a random job, whether or not it fits."""
    draw = Random(seed)  # noqa: S311 - nothing is to be kept secret
    while True:
        try:
            return appraise(drawing.draw_request(draw))
        except DsforgeError:
            continue


@pytest.mark.parametrize("seed", range(24))
def test_the_page_of_any_plan_is_whole_and_alone(seed: int) -> None:
    """Every element is closed, nothing is loaded, it is below 3 MB, and its pictures are XML."""
    report = plan_report(drawn_plan(seed), ())
    page = html_page(report)

    assert faults(page) == []
    assert len(page.encode()) < MOST_BYTES
    for svg in pictures(report).values():
        ET.fromstring(svg)  # noqa: S314 (our own text)


@pytest.mark.parametrize("seed", range(24))
def test_the_timeline_fills_the_predicted_step(seed: int) -> None:
    """Activities of the slowest rank last as long as the step; with pipelines it also idles."""
    plan = drawn_plan(seed)
    busy_s, step_s = sum(step_picture(plan).seconds.values()), plan.choice.time.step_s.likely

    assert 0 < busy_s <= step_s * (1 + 1e-6)
    if plan.strategy.layout.pipeline_parallel_size == 1:
        assert busy_s == pytest.approx(step_s, rel=1e-6)


def test_the_policy_allows_exactly_the_styles_and_the_script_of_the_page() -> None:
    """Whatever else came into the page would not run."""
    page = html_page(plan_report(drawn_plan(1), ()))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    inner = re.findall(r"<(style|script)[^>]*>(.*?)</\1>", page, re.DOTALL)

    assert policy
    allowed = set(re.findall(r"'sha256-[^']*'", policy[1].replace("&#39;", "'")))
    digests = (hashlib.sha256(text.encode()).digest() for _, text in inner)
    assert allowed == {f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests}
    assert "default-src 'none'" in policy[1]
    assert " style=" not in page


def leaves(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all texts in a document."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        if isinstance(inner, dict | list):
            yield from leaves(inner, (*at, key))
        elif isinstance(inner, str):
            yield (*at, key)


def replaced(document: Any, place: tuple[Any, ...], text: str) -> Any:
    """The document with another text at a place."""
    copy = json.loads(json.dumps(document))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = text
    return copy


def accepted(document: Any, text: str) -> Iterator[tuple[Any, ...]]:
    """Places at which a plan takes any text."""
    for place in leaves(document):
        try:
            Plan.model_validate(replaced(document, place, text))
        except ValueError:
            continue
        yield place


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_plan_becomes_markup(text: str) -> None:
    """With hostile text at every place that takes text, the page has the same elements."""
    document = json.loads((DATA / "run/plan.json").read_text())
    places = list(accepted(document, text))
    harmless = hostile = document
    for place in places:
        harmless, hostile = replaced(harmless, place, "x"), replaced(hostile, place, text)
    pages = [plan_report(Plan.model_validate(each), ()) for each in (harmless, hostile)]

    assert ("model", "name") in places
    assert len(places) > 20
    outlines = [Seen(html_page(page)).outline for page in pages]
    without_code = [[e for e in outline if e != ("code",)] for outline in outlines]
    assert without_code[0] == without_code[1]  # what stands in backticks is shown as code
    assert faults(html_page(pages[1])) == []
    for svg in pictures(pages[1]).values():
        ET.fromstring(svg.encode("utf-8", "replace"))  # noqa: S314 (our own text)
    rows = [line for line in markdown_page(pages[1]).splitlines() if line.startswith("|")]
    plain = [line for line in markdown_page(pages[0]).splitlines() if line.startswith("|")]
    assert list(map(cells, rows)) == list(map(cells, plain))


def test_several_reports_make_one_page() -> None:
    """Sections and pictures of each have names of their own."""
    reports = tuple(plan_report(drawn_plan(seed), ()) for seed in range(3))
    page = combined(reports)

    assert faults(html_page(page)) == []
    assert len(pictures(page)) == sum(len(pictures(each)) for each in reports)


def test_a_report_that_grows_too_large_is_refused() -> None:
    """3 MB are a promise."""
    plan = drawn_plan(1)
    report = plan_report(plan, ())
    huge = replace(report, headline="x" * MOST_BYTES)

    with pytest.raises(DsforgeError, match="more than 3 MB"):
        html_page(huge)


def test_the_same_plan_makes_the_same_report(tmp_path: Path) -> None:
    """`gen` writes report.html once; the second time it is unchanged, and it shows the files."""
    out = tmp_path / "run"
    first = dsforge.gen("gpt2", "v100-32gb", out=out)
    again = dsforge.gen("gpt2", "v100-32gb", out=out)

    assert "report.html" in first.written.created
    assert "report.html" in again.written.unchanged
    words = "\n".join(Seen((out / "report.html").read_text()).words)
    for name in ("train.yaml", "deepspeed/ds_config.json", "launch/deepspeed.sh"):
        assert (out / name).read_text().rstrip() in words, name


def test_every_chart_has_its_table() -> None:
    """A picture is never the only place of a figure."""
    page = html_page(plan_report(drawn_plan(2), ()))

    assert page.count("<figure>") == page.count("Figures of this chart as a table") >= 3
