"""How the page starts: with a plan that came with it, then with the same one, computed."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Route
from ui_page import (
    GREETING,
    PATIENCE_MS,
    Seen,
    answered,
    ask,
    differences,
    fragment,
    open_page,
    wait_until,
)

from dsforge.ui.later import NotHereYetError, arrived, expect
from dsforge.ui.worker import FIRST_QUESTION

CLUSTER = "gpu: a100-80gb\nnodes: 4\ngpus_per_node: 8\ninter_node: ib-ndr\n"


def test_the_plan_that_comes_with_the_page_is_the_computed_one(
    browser: Browser, address: str, exported: Path, axe: str
) -> None:
    """It stands there before Python is fetched, and nothing changes when Python has answered."""
    context = browser.new_context()
    seen = Seen(context)
    gate = Gate(context, "**/planner.bin")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    page.wait_for_selector("#answer:not([hidden])")
    assert page.get_attribute("body", "data-state") == "busy"
    before = page.inner_text("#answer .hero") + page.inner_text("#memory")
    assert page.is_visible("#starting")
    page.evaluate(axe)
    assert page.evaluate("axe.run(document).then((found) => found.violations)") == []
    gate.open()
    answered(page)

    assert page.inner_text("#answer .hero") + page.inner_text("#memory") == before
    assert not page.is_visible("#starting")
    first = json.loads((exported / "first.json").read_text())
    assert {name: text for name, text in GREETING.items() if text} == first["job"]["fields"]
    assert differences(ask(page, FIRST_QUESTION)["shown"], first["shown"]) == []
    page.wait_for_selector("#flips li, #front canvas")
    assert seen.errors == []
    context.close()


class Gate:
    """Holds requests back until it is opened."""

    def __init__(self, context: BrowserContext, pattern: str) -> None:
        self.waiting: list[Route] = []
        self.is_open = False
        context.route(pattern, self._arrive)

    def _arrive(self, route: Route) -> None:
        if self.is_open:
            route.continue_()
        else:
            self.waiting.append(route)

    def open(self) -> None:
        """Let all requests through."""
        self.is_open = True
        for route in self.waiting:
            route.continue_()


def test_a_typed_job_before_python_is_there_is_answered(browser: Browser, address: str) -> None:
    """The greeting is not mistaken for its answer."""
    context = browser.new_context()
    gate = Gate(context, "**/planner.bin")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    page.wait_for_selector("#answer:not([hidden])")
    page.fill("#field-nodes", "2")
    page.wait_for_timeout(500)
    assert "1 x 8 h100-80gb" in page.inner_text("#headline")
    gate.open()
    answered(page)

    assert "2 x 8 h100-80gb" in page.inner_text("#headline")
    context.close()


def test_a_question_that_needs_a_later_module_waits_for_it(browser: Browser, address: str) -> None:
    """A cluster file needs YAML, which a plan of names does not."""
    context = browser.new_context()
    seen = Seen(context)
    gate = Gate(context, "**/later.bin")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address + fragment(model="llama-2-7b", cluster=CLUSTER))
    wait_until(page, "document.querySelector('#starting-text').innerText.startsWith('Planning')")
    page.wait_for_timeout(500)
    gate.open()
    answered(page)

    assert "4 x 8 a100-80gb" in page.inner_text("#headline")
    assert seen.errors == []
    context.close()


def test_a_link_is_not_greeted_with_another_plan(browser: Browser, address: str) -> None:
    """Only the job that came with the page is shown before it is computed."""
    context = browser.new_context()
    context.route("**/planner.bin", lambda _route: None)
    page = context.new_page()
    page.goto(address + fragment(model="gpt2", gpu="v100-32gb"))
    wait_until(page, "document.body.dataset.state === 'busy'")

    assert not page.is_visible("#answer")
    context.close()


def test_a_module_that_is_on_its_way_is_no_missing_module() -> None:
    """Code that does without a missing module must not do without one that comes."""
    expect(("dsforge_nosuch",))
    with pytest.raises(NotHereYetError):
        without("dsforge_nosuch")
    arrived()

    assert without("dsforge_nosuch")


def without(name: str) -> bool:
    """What code does that can do without a module."""
    try:
        import_module(name)
    except Exception:
        return True
    return False


def test_a_page_opened_from_an_export_has_it_all(browser: Browser, address: str) -> None:
    """After the first answer the later part is there: every other question has an answer."""
    context = browser.new_context()
    page = open_page(context, address)
    for question in ({"do": "lint", "text": "{}", "name": "ds_config.json"}, {"do": "diagnose"}):
        found = ask(page, {"text": "CUDA out of memory", **question})
        assert "error" not in found
    context.close()
