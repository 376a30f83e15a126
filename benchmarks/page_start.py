"""Seconds until the page of `dsforge ui` shows a plan, and what it loads for it.

    python benchmarks/page_start.py             # exports the page and opens it in headless Chromium
    python benchmarks/page_start.py site other  # exports that are there, in turns: before and after

A first visit has an empty cache; the second comes after the service worker has kept the page. The
server is the one of `dsforge ui`, on this machine: no network is in the figures.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, BrowserContext, sync_playwright

from dsforge.ui.export import export
from dsforge.ui.server import site

VISITS = 7
LINK = "#model=llama-2-7b&gpu=a100-80gb&nodes=2&gpus_per_node=8"
AFTER_A_PLAN = {"later.bin", "licences.txt", "sw.js", "precache.js"}
# Times since the start of the navigation: an answer is to be seen; it has been computed.
WATCH = """
self.seen = {};
const note = (name) => { self.seen[name] ??= performance.now() / 1000; };
new MutationObserver(() => {
  const answer = document.getElementById("answer");
  if (answer && !answer.hidden) note("shown");
  if (document.body?.dataset.state === "done") note("computed");
}).observe(document, { subtree: true, childList: true, attributes: true });
"""
KINDS = (
    "greeting shown",
    "greeting computed",
    "link",
    "second visit shown",
    "second visit computed",
)


def visit(context: BrowserContext, address: str) -> dict[str, float]:
    """Seconds of one visit."""
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-state=done]", timeout=120_000)
    found: dict[str, float] = page.evaluate("self.seen")
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    page.close()
    return found


def visits(browser: Browser, address: str) -> list[float]:
    """Seconds of a first visit, of a link, and of a second visit."""
    first, link = browser.new_context(), browser.new_context()
    for context in (first, link):
        context.add_init_script(WATCH)
    found = [visit(first, address), visit(link, address + LINK), visit(first, address)]
    first.close()
    link.close()
    greeting, linked, second = found
    return [
        *(greeting["shown"], greeting["computed"], linked["shown"]),
        *(second["shown"], second["computed"]),
    ]


def megabytes(folder: Path) -> float:
    """What a first plan loads, compressed as a host does it."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in AFTER_A_PLAN]
    contents = [path.read_bytes() for path in files]
    return sum(min(len(each), len(gzip.compress(each))) for each in contents) / 1e6


def main() -> None:
    """Print a row for each export."""
    with tempfile.TemporaryDirectory() as own, sync_playwright() as playwright:
        folders = [Path(name) for name in sys.argv[1:]] or [
            export(Path(own) / "site", print).folder
        ]
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        servers = [site(folder, 0) for folder in folders]
        for server in servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        found: list[list[list[float]]] = [[] for _ in folders]
        for _ in range(VISITS):
            for place, server in enumerate(servers):
                found[place].append(visits(browser, f"http://localhost:{server.server_port}/"))
        print(
            f"medians of {VISITS} visits, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )
        for folder, rows in zip(folders, found, strict=True):
            print(f"{folder.name}: {megabytes(folder):.1f} MB until a plan")
            for kind, *values in zip(KINDS, *rows, strict=True):
                print(
                    f"  {kind:24} {median(values):5.2f} s  ({min(values):.2f} to {max(values):.2f})"
                )
        browser.close()
        for server in servers:
            server.shutdown()


if __name__ == "__main__":
    main()
