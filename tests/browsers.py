"""The Chromium of the distribution: one for all tests of a process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
REQUIRED = "DSFORGE_TEST_BROWSER"


def missing(reason: str) -> NoReturn:
    """Skip what cannot be had here; fail where DSFORGE_TEST_BROWSER says that it must be."""
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def headless() -> Iterator[Browser]:
    """Headless Chromium."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if found is None:
        missing("no Chromium here: `scripts/system.sh` installs it where it may")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
