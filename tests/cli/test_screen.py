"""What people see: one screen, one label for each quantity, names in one piece, true sums."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from drawing import CARDS, CARDS_OF_A_NODE, MODELS, NETWORKS, NODES

from dsforge.cli.brief import OTHERS, REASONS, SCREEN
from dsforge.cli.main import app
from dsforge.cli.text import NARROWEST, aligned, wrapped
from dsforge.units import GIB, gib

SEED = int(os.environ.get("DSFORGE_SEED", "5"))
REQUESTS = int(os.environ.get("DSFORGE_REQUESTS", "60"))
Words = tuple[str, ...]
SIXTEEN = ("--model", "llama-2-7b", "--nodes", "2", "--gpus-per-node", "8", "--gpu", "a100-80gb")


def drawn(draw: Random) -> Words:
    """A command line that somebody could type, whether it fits or not."""
    words = ["--model", draw.choice(MODELS), "--gpu", draw.choice(CARDS)]
    words += ["--gpus-per-node", str(draw.choice(CARDS_OF_A_NODE))]
    words += ["--nodes", str(draw.choice((*NODES, 128)))]
    words += ["--method", draw.choice(("full", "full", "lora", "qlora"))]
    words += ["--seq-len", draw.choice(("1k", "4k", "8192"))]
    for flag, value in (
        ("--inter-node", draw.choice(NETWORKS)),
        ("--host-memory", draw.choice(("256", "1024"))),
        ("--tokens", draw.choice(("300m", "2b", "1t"))),
        ("--gpu-hour-price", draw.choice(("2", "0.35"))),
    ):
        words += [flag, value] if draw.random() < 0.4 else []
    return tuple(words)


def said(*words: str, columns: int = 100) -> str:
    """What a command prints; empty where it refuses."""
    env = {"COLUMNS": str(columns)}
    done = CliRunner(env=env).invoke(app, list(words))
    return done.stdout if done.exit_code == 0 else ""


def figure(text: str, label: str) -> str:
    """The value of a figure, its lines joined."""
    found = re.search(rf"^  {label}  +(.*(?:\n {{17}}\S.*)*)", text, re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def rows_of(text: str, title: str) -> list[str]:
    """The rows of a table below its title, names and figures joined where they are apart."""
    lines = text.partition(f"  {title}")[2].splitlines()
    joined = re.sub(r"\n {6,}", "  ", "\n".join(lines))
    return [line for line in joined.splitlines()[1:] if re.match(r"  \S", line)]


@pytest.mark.parametrize(
    "requests", [REQUESTS // 4, pytest.param(REQUESTS, marks=pytest.mark.slow)]
)
def test_a_plain_answer_fits_one_screen(
    requests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of random requests: 24 lines, three reasons and alternatives at most, no line too long."""
    draw = Random(SEED)  # noqa: S311 - which requests, not which key
    monkeypatch.chdir(tmp_path)
    shown = 0
    for number in range(requests):
        words, columns = drawn(draw), draw.choice((80, 100, 100, 120))
        out = ("--out", str(number))
        for command, more in (("plan", ()), ("estimate", ()), ("gen", out)):
            text = said(command, *words, *more, columns=columns)
            lines = text.splitlines()
            shown += bool(text)
            assert len(lines) <= SCREEN + (6 if columns < 100 else 0), (command, words, columns)
            assert text.count("\n  because ") <= REASONS
            assert [line for line in lines if len(line) > columns and "ZeRO" not in line] == []
            assert len(rows_of(text, "alternatives")) <= OTHERS
            assert [line for line in lines if line.rstrip().endswith(("ZeRO-3", " mbs1"))] == []
    assert shown > requests


def test_one_figure_has_one_label_and_one_value(tmp_path: Path) -> None:
    """Plan, gen, PLAN.md and JSON agree on what a rank needs, has and has left."""
    draw = Random(SEED + 1)  # noqa: S311 - which requests, not which key
    compared = 0
    for number in range(REQUESTS // 4):
        words, out = drawn(draw), tmp_path / str(number)
        shown, written = said("plan", *words), said("gen", *words, "--out", str(out))
        if not shown:
            continue
        plan = json.loads(said("plan", *words, "--json"))["plans"][0]
        device, total = plan["memory"]["device_bytes"], plan["cluster"]["gpu"]["memory_bytes"]
        peak = max(plan["memory"]["host_bytes"].values())
        for label in ("strategy", "device memory", "host RAM", "step time", "run"):
            value = figure(shown, label)
            assert figure(written, label) == value
            assert label == "strategy" or f"| {label} | {value} |" in (
                (out / "PLAN.md").read_text() if value else f"| {label} |  |"
            )
        memory = figure(shown, "device memory")
        assert memory.startswith(f"{gib(device['likely'])} of {gib(total)} per GPU")
        assert f"{gib(total - device['likely'])} left" in memory
        assert ("tight" in memory) == (device["high"] > total)
        assert figure(shown, "host RAM").startswith(gib(peak))
        assert ("--tokens" in words) == bool(figure(shown, "run"))
        assert ("--tokens" in words and "--gpu-hour-price" in words) == ("cost" in shown)
        compared += 1
    assert compared > REQUESTS // 10


def test_what_is_left_is_named_after_where_it_is_left() -> None:
    """7 B on one H100: the node's RAM is all but full, the card is not."""
    document = json.loads(said("estimate", "--model", "7b", "--gpu", "h100", "--json"))
    shown = said("estimate", "--model", "7b", "--gpu", "h100", "--verbose")
    device = document["memory"]["device_bytes"]["likely"]
    left = gib(document["cluster"]["gpu"]["memory_bytes"] - device)
    ram = 0.95 * document["cluster"]["host_memory_bytes"]

    assert document["margin_bytes"] < 2 * GIB
    assert f"{left} left on each h100-80gb" in " ".join(shown.split())
    host = gib(ram - max(document["memory"]["host_bytes"].values()))
    assert f"{host} of host RAM left on each node" in " ".join(shown.split())
    assert f"of {gib(ram)} usable per node at its peak (init)" in shown


def test_a_default_that_can_decide_stands_above_the_reasons() -> None:
    """The network between nodes; not where it was named, nor on one node."""
    top = "assumed        1 x 100gbe per node"
    named = ("--inter-node", "infiniband-400", "--nics-per-node", "8")

    assert top in said("plan", *SIXTEEN).partition("  because")[0]
    assert "set --inter-node and --nics-per-node" in " ".join(said("plan", *SIXTEEN).split())
    assert "\n  assumed" not in said("plan", *SIXTEEN, *named)
    assert "\n  assumed" not in said("plan", *SIXTEEN, "--nodes", "1")
    offloaded = ("--model", "7b", "--gpu", "h100", "--gpus-per-node", "1")
    assert "set --host-memory" in said("plan", *offloaded)
    assert "set --host-memory" not in said("plan", *offloaded, "--host-memory", "512")


def test_all_is_there_with_verbose(tmp_path: Path) -> None:
    """Every reason with its rule, every default; none of that without."""
    for command in (("plan",), ("estimate",), ("gen", "--out", str(tmp_path / "run"))):
        short, long = said(*command, *SIXTEEN), said(*command, *SIXTEEN, "--verbose")
        defaults = re.findall(r"\[(default-[a-z-]+)\]", long)

        assert len(defaults) >= 9
        assert "[default-" not in short
        assert short.count("\ndefaults: ") == 1
    assert "not possible" in said("plan", *SIXTEEN, "--verbose")
    assert "not possible" not in said("plan", *SIXTEEN)


def test_what_was_fixed_says_why_its_plainest_form_is_not_possible() -> None:
    """ZeRO-0 of 7 B on eight cards needs the whole state on each of them."""
    shown = said("plan", *SIXTEEN, "--nodes", "1", "--pp", "2", "--for", "deepspeed")

    assert "tp2" not in shown.partition("not possible")[2]
    fixed = said("plan", "--model", "qwen2.5-32b", *SIXTEEN[2:], "--nodes", "1", "--pp", "4")
    assert "not possible: ZeRO" in fixed


def test_tight_plans_are_marked() -> None:
    """8 B on eight H100 from scratch: a larger micro batch is faster and may not fit."""
    eight = ("--model", "llama-3.1-8b", "--gpu", "h100", "--gpus-per-node", "8", "--tokens", "2b")
    rows = rows_of(said("plan", *eight), "alternatives")

    assert rows[0].endswith("tight")
    assert [row.endswith("fits") for row in rows[1:]] == [True, True]


@pytest.mark.parametrize("columns", [NARROWEST, 80, 100])
def test_names_and_quantities_are_not_broken(columns: int) -> None:
    """A name of a plan stays whole at the end of a line, and a number stays with its unit."""
    name = "ZeRO-3 dp16 mbs2 x4 hpZ 8 recompute full"
    for before in range(0, 70, 3):
        text = f"{'a ' * before}{name} takes 23.2 s and 14.0 GiB on 8 GPUs [some-rule]"
        lines = wrapped(text, first="  because  ", width=columns)
        assert any(name in line for line in lines)
        for quantity in ("23.2 s", "14.0 GiB", "8 GPUs"):
            assert any(quantity in line for line in lines)
        assert all(len(line) <= columns for line in lines)
        assert not lines[-1].strip().startswith("[")


def test_a_table_that_is_too_wide_keeps_its_names_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names then stand on lines of their own."""
    name = "ZeRO-3 dp1 mbs2 x32 recompute full optimizer on cpu parameters on cpu"
    for columns, lines in (("80", 4), ("120", 2)):
        monkeypatch.setenv("COLUMNS", columns)
        table = list(aligned(("plan", "step", "memory"), [(name, "1.5 s", "14.0 GiB")]))

        assert len(table) == lines
        assert any(name in line for line in table)
