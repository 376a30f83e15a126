"""Models of the hub: read by the local server, and never by the page itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page
from ui_jobs import CONFIG
from ui_page import (
    GREETING,
    Seen,
    ask,
    differences,
    in_the_page,
    on_the_command_line,
    type_into,
    wait_until,
)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A hub on this machine: the folder that it serves."""
    make = partial(Quiet, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), make) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        yield tmp_path
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    """A server that says nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_hub_id_is_read_through_the_local_server(page: Page, hub: Path) -> None:
    """An id that no catalog knows has the figures that the command line finds for it."""
    config = hub / "some-one" / "new-model" / "resolve" / "main" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG)

    type_into(page, "model", "some-one/new-model")
    wait_until(page, "document.querySelector('#headline').innerText.startsWith('some-one')")

    fields = {**GREETING, "model": "some-one/new-model"}
    job = page.evaluate("dsforge.job()")
    mine = in_the_page(ask(page, {"do": "plan", "job": job}))
    assert differences(mine, on_the_command_line("plan", fields)) == []


def test_a_site_that_reads_no_hub_says_what_to_do(page: Page, seen: Seen, hub: Path) -> None:
    """A hub id that nobody knows here: the way out is to drop its config.json."""
    type_into(page, "model", "some-one/no-such-model-of-anyone")
    page.wait_for_selector("#failure")

    assert "config.json" in page.inner_text("#failure")
    seen.errors.clear()  # the browser notes the answer 502 of the server
    assert list(hub.iterdir()) == []
