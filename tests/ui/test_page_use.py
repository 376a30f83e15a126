"""The page in use: lint and diagnose, keyboard, offline, accessibility, what it looks like."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Page
from sampled import each
from ui_page import (
    GREETING,
    Seen,
    answered,
    ask,
    differences,
    follow,
    fragment,
    open_page,
    type_into,
    wait_until,
)

from dsforge.cli.main import app
from dsforge.ui.server import site

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
BROKEN = ROOT / "examples" / "broken_ds_config.json"
LOG = "rank 3: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
PHONE = {"width": 390, "height": 844}
ARGUED = "#flips li, #front canvas"


def test_a_pasted_config_is_linted_as_on_the_command_line(page: Page) -> None:
    """The findings have the rules, lines and texts of `dsforge lint`."""
    shown = CliRunner().invoke(app, ["lint", str(BROKEN), "--format", "json"])
    expected = json.loads(shown.stdout)
    for finding in expected["findings"]:
        finding["file"] = BROKEN.name

    question = {"do": "lint", "text": BROKEN.read_text(), "name": BROKEN.name}
    assert differences(ask(page, question)["document"], expected) == []
    assert len(expected["findings"]) > 3

    page.click("#tab-lint")
    page.fill("#lint-text", BROKEN.read_text())
    page.click("#lint-run")
    page.wait_for_selector("#lint-answer .finding")
    assert page.locator("#lint-answer .finding").count() == len(expected["findings"])


def test_a_pasted_log_is_diagnosed_as_on_the_command_line(page: Page) -> None:
    """The causes have the rule, confidence and fix of `dsforge diagnose`."""
    shown = CliRunner().invoke(app, ["diagnose", "-", "--json"], input=LOG)
    (expected,) = json.loads(shown.stdout)["causes"]

    (cause,) = ask(page, {"do": "diagnose", "text": LOG})["document"]["causes"]
    without = ("evidence",)  # names the stream that the line came from
    assert {k: v for k, v in cause.items() if k not in without} == {
        k: v for k, v in expected.items() if k not in without
    }

    page.click("#tab-diagnose")
    page.check("#diagnose-job")
    page.fill("#diagnose-text", LOG)
    page.click("#diagnose-run")
    page.wait_for_selector("#diagnose-answer .finding")
    assert "GPU memory ran out" in page.inner_text("#diagnose-answer")
    assert "of the plan" not in page.inner_text("#diagnose-answer h3")


def test_hostile_texts_stay_text(page: Page) -> None:
    """A config and a log with markup show it; nothing of it runs."""
    page.click("#tab-lint")
    page.fill("#lint-text", '{"<img src=x onerror=alert(1)>": 1, "train_batch_size": "<b>x</b>"}')
    page.click("#lint-run")
    page.wait_for_selector("#lint-answer .finding")
    page.click("#tab-diagnose")
    page.fill("#diagnose-text", "RuntimeError: <img src=x onerror=alert(1)>\n" * 3)
    page.click("#diagnose-run")
    page.wait_for_selector("#diagnose-answer .finding, #diagnose-answer .summary")

    assert page.locator(".paste :is(img, script, b > b)").count() == 0


def test_everything_can_be_done_by_keyboard(page: Page) -> None:
    """Tabs by arrows, fields by Tab, an explanation opened and closed, focus back at its figure."""
    page.evaluate("document.activeElement.blur()")
    page.focus("#skip")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "tab-plan"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-lint"
    assert page.is_visible("#view-lint")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "field-model"
    page.keyboard.press("Control+A")
    page.keyboard.type("llama-2-7b")
    wait_until(page, "document.querySelector('#headline').innerText.startsWith('llama-2-7b')")
    page.focus("#stats .figure")
    page.keyboard.press("Enter")
    page.wait_for_selector("#explanation-body .value")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.className") == "figure"
    reached = page.evaluate(
        "[...document.querySelectorAll('#view-plan :is(button, input, select, a, summary)')]"
        ".filter(one => one.checkVisibility() && one.tabIndex < 0).map(one => one.outerHTML)"
    )
    assert reached == []


def test_the_theme_button_recolours_the_charts(page: Page) -> None:
    """auto, light, dark and back, each kept for the next visit; the canvas follows."""
    themes, inks = [], []
    page.wait_for_timeout(300)
    for _ in range(3):
        page.click("#theme")
        themes.append(page.inner_text("#theme"))
        inks.append(page.evaluate("Chart.defaults.color"))
        kept = page.evaluate("localStorage.getItem('dsforge-theme')")
        assert themes[-1] == f"Theme: {kept}"

    assert themes == ["Theme: light", "Theme: dark", "Theme: auto"]
    assert inks[0] == inks[2] != inks[1]


def test_the_page_works_after_the_server_is_gone(browser: Browser, exported: Path) -> None:
    """After one visit a reload answers without any server."""
    context = browser.new_context()
    seen = Seen(context)
    with site(exported, 0) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        page = open_page(context, f"http://localhost:{server.server_port}/")
        page.evaluate("navigator.serviceWorker.ready.then(() => true)")
        wait_until(page, "navigator.serviceWorker.controller !== null")
        server.shutdown()
    serving.join()

    page.reload()
    answered(page)
    type_into(page, "nodes", "2")

    assert "2 x 8 h100-80gb" in page.inner_text("#headline")
    assert seen.errors == []
    context.close()


@pytest.mark.parametrize(
    ("scheme", "size"),
    [
        ("light", "desktop"),
        ("dark", "phone"),
        pytest.param("dark", "desktop", marks=pytest.mark.slow),
        pytest.param("light", "phone", marks=pytest.mark.slow),
    ],
)
def test_axe_finds_no_violation(page: Page, axe: str, scheme: Any, size: str) -> None:
    """No rule of axe-core is broken on any view, with everything that can be open opened."""
    page.emulate_media(color_scheme=scheme)
    if size == "phone":
        page.set_viewport_size(PHONE)
    page.wait_for_selector(ARGUED)
    found = _violations(page, axe, "plan")
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    found += _violations(page, axe, "plan, opened")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "scrolls sideways"
    page.click("#stats .figure")
    page.wait_for_selector("#explanation-body .value")
    found += _violations(page, axe, "explanation")
    page.keyboard.press("Escape")
    follow(page, "#model=llama-3.1-70b&gpu=rtx-4090")
    found += _violations(page, axe, "does not fit")
    follow(page, "#model=llama-3.1-70b&gpu=rtx-4090&nodes=x")
    found += _violations(page, axe, "mistake")
    follow(page, fragment(**GREETING))
    for view, text in (("lint", BROKEN.read_text()), ("diagnose", LOG)):
        page.click(f"#tab-{view}")
        page.fill(f"#{view}-text", text)
        page.click(f"#{view}-run")
        page.wait_for_selector(f"#{view}-answer .finding")
        found += _violations(page, axe, view)

    assert found == []


def _violations(page: Page, axe: str, what: str) -> list[str]:
    """What axe-core complains of."""
    page.evaluate(axe)
    result = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{what}: {each['id']}: {node['target']} {node['failureSummary']}"
        for each in result["violations"]
        for node in each["nodes"]
    ]


def test_it_prints_the_answer_alone(page: Page) -> None:
    """On paper there is no form, and everything that was folded is open."""
    page.emulate_media(media="print")

    assert not page.is_visible("#job")
    assert not page.is_visible(".top")
    assert page.is_visible("#memory table")
    assert len(page.pdf(format="A4")) > 20_000


SCREENSHOTS = {
    "ui": ("light", {"width": 1360, "height": 1000}),
    "ui-dark": ("dark", {"width": 1360, "height": 1000}),
    "ui-phone": ("light", PHONE),
}


@pytest.mark.parametrize("name", each(3, SCREENSHOTS))
def test_screenshots(name: str, page: Page, tmp_path: Path, update_golden: bool) -> None:
    """Images of the page for the documents; `--update-golden` writes them to docs/images."""
    scheme, size = SCREENSHOTS[name]
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size(size)  # type: ignore[arg-type]
    follow(
        page,
        "#model=llama-3.1-70b&gpu=h100-80gb&nodes=8&gpus_per_node=8&inter_node=ib-ndr"
        "&nics_per_node=8&tokens=2b&gpu_hour_price=2.5",
    )
    page.wait_for_selector(ARGUED)
    folder = IMAGES if update_golden else tmp_path
    folder.mkdir(exist_ok=True)
    selector = "#view-plan .answers" if name == "ui-phone" else "body"
    if name == "ui-phone":
        page.locator(selector).scroll_into_view_if_needed()
        page.evaluate("document.querySelector('.answers').scrollIntoView()")
    page.wait_for_timeout(300)  # the charts are drawn with the next frame
    page.screenshot(path=folder / f"{name}.png")

    assert (folder / f"{name}.png").stat().st_size > 20_000
