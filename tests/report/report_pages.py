"""A report as a browser reads it: elements, attributes, tables, and what it would load."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}
LOADING = ("src", "href", "action", "srcset", "poster", "data", "formaction", "xlink:href")


@dataclass
class Seen(HTMLParser):
    """The outline of a page: each element with its attribute names, in order."""

    text: str
    outline: list[tuple[str, ...]] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    handlers: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    captions: dict[str, list[list[str]]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.outline.append((tag, *(name for name, _ in attrs)))
        self.loads += [v or "" for name, v in attrs if name in LOADING]
        self.ids += [v or "" for name, v in attrs if name == "id"]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._rows: list[list[str]] = []
        if tag == "tr":
            self._rows.append([])
        if tag in ("th", "td"):
            self._rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element of SVG without content."""
        self.outline.append((tag, *(name for name, _ in attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Close an element; any other than the last opened one is a fault of the page."""
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()
        if tag == "table":
            self.captions[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        """Note text where it stands."""
        if self.open and self.open[-1] == "caption":
            self._caption = data
        if self.open and self.open[-1] in ("th", "td"):
            self._rows[-1][-1] += data
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)


def faults(page: str) -> list[str]:
    """What a page must not have: things left open, loaded from elsewhere, or called by markup."""
    seen = Seen(page)
    styles = "".join(re.findall(r"<style[^>]*>(.*?)</style>", page, re.DOTALL))
    scripts = "".join(re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL))
    found = [f"open: {tag}" for tag in seen.open]
    found += [f"loads {address}" for address in seen.loads if not address.startswith("#")]
    found += [f"handler {name}" for name in seen.handlers]
    found += [f"id twice: {name}" for name in seen.ids if seen.ids.count(name) > 1]
    found += [word for word in ("url(", "@import") if word in styles]
    found += [word for word in ("fetch(", "import(", "XMLHttpRequest", "eval(") if word in scripts]
    return found


def cells(line: str) -> int:
    """Cells of a row of a Markdown table."""
    return len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) - 1
