"""The page, exported once and served on localhost, in the Chromium of the distribution."""

from __future__ import annotations

import shutil
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from ui_page import Seen, open_page

from dsforge.ui.export import export
from dsforge.ui.runtime import cache_folder, components, fetched
from dsforge.ui.server import site

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
HERE = Path(__file__).parent
CACHE = cache_folder()  # of the user, before the tests get one of their own: 11 MB are fetched once
DESKTOP = {"width": 1360, "height": 900}


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the page."""
    return export(tmp_path_factory.mktemp("site") / "page", print, cache=CACHE).folder


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which is pinned like what the page needs."""
    (listed,) = components(HERE / "axe.json")
    fetched((listed,), CACHE, print)
    with tarfile.open(CACHE / listed.file) as archive:
        stream = archive.extractfile("package/axe.min.js")
        assert stream is not None
        return stream.read().decode()


@pytest.fixture(scope="session")
def address(exported: Path) -> Iterator[str]:
    """Where the page is served."""
    with site(exported, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium."""
    found = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if found is None:
        pytest.skip("no Chromium here: `scripts/system.sh` installs it where it may")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def planner(browser: Browser, address: str) -> Iterator[Page]:
    """One page for all questions of a module that go straight to the planner."""
    context = browser.new_context()
    seen = Seen(context)
    yield open_page(context, address)
    context.close()
    assert seen.errors == []


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A visitor who was never here."""
    context = browser.new_context(viewport=DESKTOP, accept_downloads=True)
    yield context
    context.close()


@pytest.fixture
def seen(context: BrowserContext) -> Seen:
    """What a visitor's browser said and asked for."""
    return Seen(context)


@pytest.fixture
def page(context: BrowserContext, seen: Seen, address: str) -> Iterator[Page]:
    """The page with its first answer; at the end nothing went wrong in it."""
    page = open_page(context, address)
    yield page
    assert seen.errors == []
    assert seen.other_origins(address) == []
