"""Steps on the page that several tests take, and what a browser notices meanwhile."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import urlencode, urlsplit

from click.testing import CliRunner
from playwright.sync_api import BrowserContext, ConsoleMessage, Page

from dsforge.cli.main import app
from dsforge.errors import DsforgeError
from dsforge.ui.fields import FIELDS

PATIENCE_MS = 120_000  # Python in a browser on a loaded machine
GREETING = {"model": "llama-3.1-8b", "gpu": "h100-80gb", "gpus_per_node": "8"}  # of the page
CLOSE = 1e-9  # relative: logarithms and powers may differ in the last bit between machines


class Seen:
    """Errors of the console, exceptions, and every request of a visitor."""

    def __init__(self, context: BrowserContext) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("console", self._note)
        context.on("weberror", lambda error: self.errors.append(str(error.error)))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def other_origins(self, address: str) -> list[str]:
        """Requests to anywhere but the page's own origin; data and blobs stay in the browser."""
        own = urlsplit(address).netloc
        return [
            url
            for url in self.requests
            if urlsplit(url).scheme not in ("data", "blob") and urlsplit(url).netloc != own
        ]


def fragment(**fields: str) -> str:
    """The link of a job."""
    return "#" + urlencode(fields)


def open_page(context: BrowserContext, address: str, link: str = "") -> Page:
    """A new page with its first answer."""
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address + link)
    answered(page)
    return page


def answered(page: Page) -> None:
    """Wait until the page has answered its job."""
    page.wait_for_selector("body[data-state=done]")


def wait_until(page: Page, expression: str) -> None:
    """Wait until an expression is true. Playwright's own way breaks the policy of the page."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"never true: {expression}"
        page.wait_for_timeout(50)


def follow(page: Page, link: str) -> None:
    """Follow a link to another job on the open page, and wait for its answer."""
    page.evaluate("document.body.dataset.state = 'following'")
    page.evaluate("link => { location.hash = ''; location.hash = link }", link)
    page.wait_for_timeout(20)  # both changes are events
    answered(page)


def type_into(page: Page, field: str, text: str) -> None:
    """Type into a field, and wait for the answer to that job."""
    page.evaluate("document.body.dataset.state = 'typing'")
    page.fill(f"#field-{field}", text)
    answered(page)


def ask(page: Page, question: dict[str, Any]) -> dict[str, Any]:
    """A question to the planner in the page."""
    found: dict[str, Any] = page.evaluate("question => dsforge.engine.ask(question)", question)
    return found


def arguments(fields: dict[str, str]) -> list[str]:
    """The same job for the command line."""
    words: list[str] = []
    for name, text in fields.items():
        field = FIELDS[name]
        words += [field.flag] if field.kind == "switch" else [field.flag, text]
    return words


def on_the_command_line(command: str, fields: dict[str, str], *more: str) -> dict[str, Any]:
    """The JSON document of a command; of an error its problems and its message."""
    done = CliRunner().invoke(app, [command, *arguments(fields), *more, "--json"])
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    if isinstance(done.exception, DsforgeError):
        error = done.exception
        problems = [[p.rule, p.message, p.hint] for p in getattr(error, "problems", ())]
        found["failed"] = [type(error).__name__, error.message, error.hint, problems]
    return found


def in_the_page(answer: dict[str, Any]) -> dict[str, Any]:
    """The same of an answer of the page."""
    found = dict(answer.get("document", {}))
    if "error" in answer:
        error = answer["error"]
        problems = [[p["rule"], p["message"], p["hint"]] for p in error["problems"]]
        found["failed"] = [error["kind"], error["message"], error["hint"], problems]
    return found


def differences(mine: Any, other: Any, place: str = "") -> list[str]:
    """Where two documents differ; wall times are no figures of a plan."""
    if place.endswith((".search.seconds", ".answer.seconds")):
        return []
    if isinstance(mine, dict) and isinstance(other, dict):
        keys = sorted(mine.keys() | other.keys())
        return [
            line
            for key in keys
            for line in differences(mine.get(key), other.get(key), f"{place}.{key}")
        ]
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        pairs = enumerate(zip(mine, other, strict=True))
        return [line for n, (a, b) in pairs for line in differences(a, b, f"{place}[{n}]")]
    if isinstance(mine, int | float) and isinstance(other, int | float):
        same = abs(mine - other) <= CLOSE * max(abs(mine), abs(other))
    else:
        same = mine == other
    return [] if same else [f"{place}: {mine!r:.200} is not {other!r:.200}"]
