"""Report -> one HTML page, a Markdown text, and SVG files.

The page holds its style sheets (those of `dsforge ui`), its script and its pictures: it loads
nothing, and its content security policy lets it run nothing else. All text is escaped by jinja2.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dsforge.artifacts import Artifact
from dsforge.errors import DsforgeError
from dsforge.explain.chart import COLOURS, GRID, INK
from dsforge.masking import printable
from dsforge.render.engine import OPTIONS, compiled_templates, render_text, template_root
from dsforge.report.blocks import Chart, Report, Section, Table

PACKAGE = Path(__file__).resolve().parents[1]
STYLES = ("ui/page/style.css", "ui/page/answer.css", "report/page/report.css")
PRINTED = ("ui/page/print.css", "report/page/print.css")
SCRIPTS = ("ui/page/theme.js", "report/page/report.js")
MOST_BYTES = 3_000_000
GENERATOR = "dsforge report"  # by which a page of ours is known before it is replaced
VERDICTS = {
    "fits": "Fits",
    "tight": "Probably fits",
    "does not fit": "Does not fit",
    "measured": "Measured",
}
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")
_CODE = re.compile(r"`([^`]+)`")
_FENCES = re.compile(r"`{3,}")


class Block(NamedTuple):
    """A table, and the picture of its figures where there is one."""

    table: Table
    name: str = ""
    title: str = ""
    picture: Markup = Markup()


class ShownSection(NamedTuple):
    """A section with its sentences, and its pictures and tables in order."""

    section: Section
    lines: tuple[Markup, ...]
    blocks: tuple[Block, ...]


class PageContext(NamedTuple):
    """Fields of report/REPORT.html.j2."""

    report: Report
    verdict: str
    sections: tuple[ShownSection, ...]
    generator: str
    policy: Markup
    style: Markup
    print_style: Markup
    script: Markup


class MarkdownContext(NamedTuple):
    """Fields of report/REPORT.md.j2."""

    report: Report
    verdict: str
    sections: tuple[ShownSection, ...]
    rules: dict[bool, Markup]
    fence: Markup


def html_page(report: Report) -> str:
    """The page. Raises DsforgeError where it would be larger than 3 MB."""
    style, printed, script = (_joined(names) for names in (STYLES, PRINTED, SCRIPTS))
    hashes = " ".join(map(_hash, (style, printed)))
    policy = (
        f"default-src 'none'; style-src {hashes}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    context = PageContext(
        report=report,
        verdict=VERDICTS[report.verdict],
        sections=_shown(report, _html_line),
        generator=GENERATOR,
        policy=Markup(policy),  # noqa: S704 (hashes of our own files)
        style=Markup(style),  # noqa: S704 (our own file)
        print_style=Markup(printed),  # noqa: S704 (our own file)
        script=Markup(script),  # noqa: S704 (our own file)
    )
    text = render_text(_html_environment(), "report/REPORT.html.j2", context)
    size = len(text.encode())
    if size > MOST_BYTES:
        message = f"the report has {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f} MB"
        raise DsforgeError(message, "report fewer runs at once")
    return text


def markdown_page(report: Report) -> str:
    """The same as Markdown; pictures are files of the folder `figures`."""
    texts = [
        file.text for section in report.sections for file in (*section.files, *section.commands)
    ]
    longest = max((len(f) for text in texts for f in _FENCES.findall(text)), default=2)
    context = MarkdownContext(
        report=report,
        verdict=VERDICTS[report.verdict],
        sections=_shown(report, _markdown_line),
        rules={True: Markup("---:"), False: Markup("---")},
        fence=Markup("`" * (longest + 1)),  # noqa: S704 (only backticks)
    )
    return render_text(_markdown_environment(), "report/REPORT.md.j2", context)


def pictures(report: Report) -> dict[str, str]:
    """SVG text of every chart by its file name."""
    return {f"{c.name}.svg": c.svg for section in report.sections for c in section.charts}


def page_files(report: Report, document: str) -> tuple[Artifact, ...]:
    """The files of a report: page, Markdown with its pictures, and the document as JSON text."""
    return (
        Artifact("report.html", html_page(report)),
        Artifact("report.md", markdown_page(report)),
        Artifact("report.json", document),
        *(Artifact(f"figures/{name}", svg) for name, svg in pictures(report).items()),
    )


def _shown(report: Report, line: Callable[[str], Markup]) -> tuple[ShownSection, ...]:
    """The sections that have any content; `line` is how a sentence is shown."""
    return tuple(
        ShownSection(
            each,
            tuple(map(line, each.lines)),
            (*map(_drawn, each.charts), *map(Block, each.tables)),
        )
        for each in report.sections
        if each.lines or each.charts or each.tables or each.commands or each.files
    )


def _html_line(text: str) -> Markup:
    """A sentence; what stands in backticks is code."""
    parts = (f"<code>{escape(p)}</code>" if code else escape(p) for code, p in _spans(text))
    return Markup("".join(parts))  # noqa: S704 (each part is escaped)


def _markdown_line(text: str) -> Markup:
    """A sentence; what stands in backticks is code in Markdown, too."""
    parts = (f"`{part}`" if code else _plain(f".{part}.")[1:-1] for code, part in _spans(text))
    return Markup("".join(parts))  # noqa: S704 (markup is escaped, code is literal)


def _spans(text: str) -> Iterator[tuple[bool, str]]:
    """Parts of one line of text: whether each is code, and its text."""
    for place, part in enumerate(_CODE.split(" ".join(_printed(text).split()))):
        if part:
            yield place % 2 == 1, part


def _drawn(chart: Chart) -> Block:
    return Block(chart.table, chart.name, chart.title, _themed(chart.svg))


@cache
def _joined(names: tuple[str, ...]) -> str:
    """Our own style sheets or scripts as one."""
    return "\n".join((PACKAGE / name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    """The source expression that allows exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Colours of pictures as attributes, and the variables of the page that stand for them.
_THEME = {
    f'"{colour}"': f'"var(--{name})"'
    for colour, name in (
        (INK, "ink"),
        (GRID, "line"),
        ("white", "card"),
        *((colour, f"series-{place}") for place, colour in enumerate(COLOURS, start=1)),
    )
}
_COLOUR = re.compile("|".join(map(re.escape, _THEME)))
_SIZE = re.compile(r'(<svg [^>]*?) width="[0-9.]+" height="[0-9.]+"')


def _themed(svg: str) -> Markup:
    """A picture in the colours of the page, as wide as its place."""
    coloured = _COLOUR.sub(lambda found: _THEME[found[0]], svg)
    return Markup(_SIZE.sub(r"\1", coloured, count=1))  # noqa: S704 (chart.py escapes all text)


@cache
def _html_environment() -> Environment:
    """An Environment that escapes whatever is printed."""
    return _environment(autoescape=True, finalize=_printed)


@cache
def _markdown_environment() -> Environment:
    """An Environment in which text is text in Markdown, too."""
    return _environment(autoescape=False, finalize=_plain)


def _environment(**more: Any) -> Environment:
    settings = {**OPTIONS, "undefined": StrictUndefined, **more}
    return Environment(  # noqa: S701 (escaping: see the callers)
        loader=FileSystemLoader(template_root()), bytecode_cache=compiled_templates(), **settings
    )


def _printed(value: Any) -> Any:
    """Text without secrets and control characters; markup of ours as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _whole(printable(value))
    return value


def _whole(text: str) -> str:
    """Text without halves of characters, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


def _plain(value: Any) -> Any:
    """Text as one line in which no character is markup."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _MARKDOWN.sub(r"\\\1", " ".join(_printed(value).split()))
    return value
