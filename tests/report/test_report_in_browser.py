"""The page in a real browser, from a file, offline: keys, themes, phone, print, axe-core."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

import dsforge
from dsforge.ui.runtime import cache_folder, components, fetched

playwright = pytest.importorskip("playwright.sync_api")

HERE = Path(__file__).parent
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
CACHE = cache_folder()
AXE = HERE.parent / "ui/axe.json"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a real run and a real comparison, as a file."""
    out = tmp_path_factory.mktemp("report")
    dsforge.report([HERE / "data/run", HERE / "data/bench"]).write(out / "report")
    return (out / "report/report.html").as_uri()


def opened(
    browser: playwright.Browser, address: str, *, width: int = 1360, scheme: str = "light"
) -> tuple[playwright.Page, list[str]]:
    """The page without a network, and everything that it complains about or asks for."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_offline(True)
    page, seen = context.new_page(), []
    page.on("request", lambda request: seen.append(request.url))
    page.on("console", lambda message: seen.append(message.text))
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.goto(address)
    return page, seen


@pytest.mark.parametrize(("width", "scheme"), [(1360, "light"), (1360, "dark"), (390, "light")])
def test_nothing_is_loaded_wider_than_the_screen_or_refused_by_axe(
    browser: playwright.Browser, address: str, width: int, scheme: str
) -> None:
    """One request, no complaint, no sideways scrolling, no violation of any rule of axe-core."""
    page, seen = opened(browser, address, width=width, scheme=scheme)
    for summary in page.query_selector_all("summary"):
        summary.evaluate("each => { each.parentElement.open = true }")
    wide = page.evaluate("document.documentElement.scrollWidth")
    (listed,) = components(AXE)
    fetched((listed,), CACHE, print)
    with tarfile.open(CACHE / listed.file) as archive:
        stream = archive.extractfile("package/axe.min.js")
        assert stream
        page.evaluate(stream.read().decode())
    found = page.evaluate("axe.run()")
    rules = {r["id"]: [node["html"][:150] for node in r["nodes"][:3]] for r in found["violations"]}

    assert seen == [address]
    assert wide <= width
    assert json.dumps(rules, indent=1) == "{}"


def test_the_keyboard_reaches_everything(browser: playwright.Browser, address: str) -> None:
    """Skip link first, then the theme, and a chart's table opens with the space bar."""
    page, _ = opened(browser, address)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.focus("figure summary")
    page.keyboard.press("Space")
    assert page.evaluate("document.querySelector('figure details').open") is True


def test_a_config_is_copied(browser: playwright.Browser, address: str) -> None:
    """The button copies the text that is shown, or selects it where a browser forbids that."""
    page, _ = opened(browser, address)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.evaluate("document.querySelector('#files details').open = true")
    page.click("#files .copy")
    page.wait_for_timeout(200)
    said = page.inner_text("#files .copy")
    copied = page.evaluate(
        "said => said === 'Copied' ? navigator.clipboard.readText() : String(getSelection())", said
    )

    assert said in ("Copied", "Selected")
    assert copied.strip() == (HERE / "data/run/train.yaml").read_text().strip()


def test_print_opens_the_tables_behind_the_charts(
    browser: playwright.Browser, address: str
) -> None:
    """Paper has no buttons."""
    page, _ = opened(browser, address)
    closed = page.locator("details:not([open])").count()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")

    assert closed > 0
    assert page.locator("details:not([open])").count() == 0
    assert not page.is_visible(".copy")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() == closed
    assert len(page.pdf()) > 10_000
