"""The page, exported once and served on localhost, in the Chromium of the distribution."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsers import missing
from playwright.sync_api import Browser, BrowserContext, Page
from ui_page import GREETING, Seen, follow, fragment, open_page

from dsforge.errors import DsforgeError
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
    try:
        return export(tmp_path_factory.mktemp("site") / "page", print, cache=CACHE).folder
    except DsforgeError as error:  # no way to a registry; the message has been tested elsewhere
        return missing(error.message)


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which is pinned like what the page needs."""
    (listed,) = components(HERE / "axe.json")
    try:
        fetched((listed,), CACHE, print)
    except DsforgeError as error:
        missing(error.message)
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


@pytest.fixture(scope="module")
def visitor(browser: Browser) -> Iterator[tuple[BrowserContext, Seen]]:
    """A visitor, and what the visitor's browser said and asked for."""
    context = browser.new_context(viewport=DESKTOP, accept_downloads=True)
    yield context, Seen(context)
    context.close()


@pytest.fixture(scope="module")
def opened(visitor: tuple[BrowserContext, Seen], address: str) -> Page:
    """The page, opened once: Python takes seconds to start in it."""
    return open_page(visitor[0], address)


@pytest.fixture
def seen(visitor: tuple[BrowserContext, Seen]) -> Seen:
    """What the browser has said and asked for in this test."""
    return visitor[1]


@pytest.fixture
def page(opened: Page, seen: Seen, address: str) -> Iterator[Page]:
    """The page as it greets a visitor; at the end of a test nothing went wrong in it."""
    opened.emulate_media(media="screen", color_scheme="light")
    opened.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    opened.click("#tab-plan")
    follow(opened, fragment(**GREETING))
    yield opened
    errors, strangers = seen.errors.copy(), seen.other_origins(address)
    seen.errors.clear()
    assert errors == []
    assert strangers == []
