"""The README and docs/ under test: commands print what stands below them, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from doc_blocks import PAGES, ROOT, blocks, matches, outcomes, rewritten

from dsforge.cli.main import COMMANDS, command_of
from dsforge.diagnose.rulebook import rulebook
from dsforge.importing.recognition import STYLES
from dsforge.preflight.registry import CHECKS

README = ROOT / "README.md"
MOST_LINES = 220
TEXTS = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))]
TEXTS += [*sorted((ROOT / "benchmarks").rglob("*.md")), ROOT / "schemas/README.md"]
COMMAND = re.compile(r"^(?:\$ )?(?:\w+=\S+ )*(dsforge [a-z].*)$", re.MULTILINE)
SHOWING = [page for page in PAGES if any(block.kind == "console" for block in blocks(page))]
SLOW = [page for page in SHOWING if any(block.how == "slow" for block in blocks(page))]


def name_of(path: Path) -> str:
    """A path as a test is called by it."""
    return str(path.relative_to(ROOT))


def test_every_command_stands_in_the_readme() -> None:
    """The table of commands names each one."""
    text = README.read_text("utf-8")

    assert COMMANDS
    assert [name for name in COMMANDS if f"`dsforge {name}" not in text] == []


def test_the_readme_is_short() -> None:
    """The first page has a picture and links; the rest is in docs/."""
    text = README.read_text("utf-8")

    assert len(text.splitlines()) <= MOST_LINES
    assert re.search(r"!\[[^\]]+\]\(docs/images/[\w-]+\.svg\)", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    """`--help` of a command explains it and each of its options."""
    done = subprocess.run(
        [sys.executable, "-m", "dsforge", name, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "TERM": "dumb"},
    )
    unwrapped = re.sub(r"\n {10,}", "  ", done.stdout)
    options = re.findall(r"^  (?:-[a-z], )?(--[a-z].*)$", unwrapped, re.MULTILINE)

    assert done.returncode == 0
    assert options
    assert [line for line in options if not re.search(r"\S {2,}\S", line)] == []


@pytest.mark.parametrize("page", SHOWING, ids=name_of)
def test_a_page_shows_what_its_commands_print(
    page: Path, tmp_path: Path, update_golden: bool
) -> None:
    """Every command of a console block, in order, and every file that a page shows."""
    found = list(outcomes(page, tmp_path, slow=False))
    if update_golden:
        rewritten(page, found)
        return

    for each in found:
        assert each.agrees, f"{each.line}\n{each.printed}"


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.engine
@pytest.mark.parametrize("page", SLOW, ids=name_of)
def test_a_page_shows_what_its_long_commands_print(page: Path, tmp_path: Path) -> None:
    """The same with the blocks that take minutes."""
    for each in outcomes(page, tmp_path, slow=True):
        assert each.agrees, f"{each.line}\n{each.printed}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_line_of_a_page_has_known_options(page: Path) -> None:
    """Those that are not run here, too: on hosts with GPUs, under Slurm, recorded ones."""
    for block in blocks(page):
        if block.kind in ("sh", "text", "console") and "reference" not in page.parts:
            for line in COMMAND.findall(block.text):
                assert unknown_options(line) == [], line


def unknown_options(line: str) -> list[str]:
    """Options in a command line that its command does not have."""
    words = shlex.split(re.split(" [|>] ", line, maxsplit=1)[0], comments=True)
    command: click.Command = command_of(words[1])
    if isinstance(command, click.Group) and len(words) > 2:
        command = command.commands[words[2]]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [option for option in given if option not in known | {"--help", "--"}]


def test_counts_on_pages_are_those_of_the_code() -> None:
    """How many faults, checks, styles and measurements there are."""
    measured = (ROOT / "benchmarks/published/training.csv").read_text("utf-8").splitlines()
    own = {"dsforge"}
    stated = (
        ("docs/how-to/diagnose.md", r"knows ([\d,]+) faults", len(rulebook())),
        ("docs/how-to/preflight.md", r"([\d,]+) checks:", len(CHECKS)),
        ("README.md", r"configs of ([\d,]+) styles", len({s.name for s in STYLES} - own)),
        ("README.md", r"with ([\d,]+) published measurements", len(measured) - 1),
        ("docs/faq.md", r"against ([\d,]+) published runs", len(measured) - 1),
    )
    for page, pattern, count in stated:
        (found,) = re.findall(pattern, (ROOT / page).read_text("utf-8"))
        assert int(found.replace(",", "")) == count, page


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Files exist, and headings that a link names."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name) if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)

    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize(
    ("expected", "printed", "agree"),
    [
        (["a", "b"], ["a", "b"], True),
        (["a", "b"], ["a", "c"], False),
        (["a", "..."], ["a", "b", "c"], True),
        (["...", "c"], ["a", "b", "c"], True),
        (["a", "...", "d"], ["a", "d"], True),
        (["a", "...", "d"], ["a", "b"], False),
        (["a x..."], ["a xyz"], True),
        (["a x..."], ["a yz"], False),
        (["a.c"], ["abc"], False),
        ([], ["a"], False),
    ],
)
def test_the_comparison_sees_differences(
    expected: list[str], printed: list[str], agree: bool
) -> None:
    """An ellipsis stands for lines, and for nothing else."""
    assert matches(expected, printed) is agree
