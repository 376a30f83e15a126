"""The planner's argument: other kinds, what flips the choice, the front, objectives.

Searches of a whole cluster many times over: too slow for the unit tests.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dsforge import catalog
from dsforge.cli.main import app
from dsforge.errors import DsforgeError, SpecError
from dsforge.explain.plots import PLOT, Bars, front_plot, memory_plot, scaling_plot
from dsforge.plan import Request
from dsforge.planner import choose, price, search
from dsforge.planner.alternatives import alternatives, kind_of
from dsforge.planner.explore import Explorer
from dsforge.planner.flips import Known, flips
from dsforge.planner.front import FrontPoint, front
from dsforge.planner.objectives import Aim, aimed
from dsforge.planner.parts import fitting, parts
from dsforge.planner.preference import choice
from dsforge.specs import ClusterSpec, Workload
from dsforge.strategy import Constraints
from dsforge.units import GIB

KNOWN = Known(
    tuple(catalog.link(name) for name in catalog.link_names()),
    tuple(catalog.gpu(name) for name in catalog.gpu_names()),
)
COMMAND = ("--model", "llama-2-7b", "--gpu", "a100-80gb", "--nodes", "2", "--gpus-per-node", "8")


def ask(nodes: int = 2, inter: str = "100gbe", batch: int = 64, **more: Any) -> Request:
    """Llama 2 7B on nodes of eight A100."""
    price = more.pop("gpu_hour_price", None)
    cluster = ClusterSpec(
        nodes=nodes,
        gpus_per_node=8,
        gpu=catalog.gpu("a100-80gb"),
        intra_node=catalog.link("nvlink-3"),
        inter_node=catalog.link(inter),
        host_memory_bytes=1024 * GIB,
        cpu_cores=96,
        gpu_hour_price=price,
    )
    work = Workload(sequence_length=4096, global_batch_size=batch, learning_rate=1e-5, **more)
    return Request(model=catalog.model("llama-2-7b"), cluster=cluster, workload=work)


@cache
def points() -> tuple[FrontPoint, ...]:
    """The front of the usual request with a budget and a price."""
    return front(tuple(parts(ask(tokens=10**9, gpu_hour_price=2.0))))


def test_no_point_of_the_front_beats_another_everywhere() -> None:
    """Of any two, each is better in something, or one is there because it is our choice."""
    beaten = [
        (one.label, other.label)
        for one in points()
        for other in points()
        if other.step_s.likely < one.step_s.likely / 1.02
        and other.gpus <= one.gpus
        and other.gpu_s < one.gpu_s / 1.02
        and other.free_bytes > one.free_bytes + GIB
        and not one.chosen
    ]

    assert beaten == []


def test_the_front_holds_the_fastest_the_cheapest_and_the_choice_of_each_part() -> None:
    """What any search on a part would give is on it."""
    request = ask(tokens=10**9, gpu_hour_price=2.0)
    found = tuple(parts(request))
    fastest = min(c.step_s for part in found for c in part.fitting)
    cheapest = min(part.gpus * c.step_s for part in found for c in part.fitting)

    assert [part.gpus for part in found] == [16, 8, 4, 2, 1]
    assert min(p.step_s.likely for p in points()) == pytest.approx(fastest)
    assert min(p.gpu_s for p in points()) == pytest.approx(cheapest, rel=0.01)
    assert {p.gpus for p in points() if p.chosen} == {16, 8, 4, 2, 1}
    assert all(p.run and p.run.money for p in points())


def test_alternatives_are_other_kinds_with_the_term_that_sets_them_apart() -> None:
    """Each is of a kind of its own; its figures are those of its price."""
    request = ask()
    plan = search(request).plans[0]
    found = alternatives(request, plan.choice, fitting(Explorer(request)))
    mine = plan.choice.time

    assert len({other.kind for other in found} | {kind_of(plan.strategy)}) == len(found) + 1
    for other in found:
        theirs = price(request.model, request.cluster, request.workload, other.strategy).time
        grown = {n: getattr(theirs.terms, n) - t for n, t in mine.terms}
        largest = max(grown, key=lambda name: abs(grown[name]))

        assert other.slowdown == pytest.approx(theirs.step_s.likely / mine.step_s.likely)
        assert (other.term, other.term_s) == (largest.removesuffix("_s"), grown[largest])


def test_a_flip_is_what_planning_anew_gives() -> None:
    """On the network that a flip names, `choose` takes the kind that it names."""
    request = ask(inter="50gbe")
    found = flips(request, choice(request, fitting(Explorer(request))), KNOWN)
    flip = next(flip for flip in found if flip.axis == "inter_node")
    link = catalog.link(flip.change.split(" instead of ")[0])
    other = request.model_copy(
        update={"cluster": request.cluster.model_copy(update={"inter_node": link})}
    )

    assert link.bytes_per_s != request.cluster.inter_node.bytes_per_s
    assert kind_of(choose(other).strategy) == flip.kind != flip.instead_of
    assert "x faster" in str(flip) or "is chosen as the simpler one" in str(flip)


def test_cheapest_costs_least_and_fewest_uses_fewest() -> None:
    """Objectives pick their part of the cluster, and say so."""
    request = ask(tokens=10**9, gpu_hour_price=2.0)
    cheap, few = aimed(request, Aim("cheapest")), aimed(request, Aim("fewest-gpus"))
    least = min(p.gpu_s for p in points())
    plan = choose(cheap)

    assert plan.cluster.gpus * plan.choice.time.step_s.likely <= least * 1.1
    assert few.cluster.gpus == 1
    assert cheap.reasons[-1].rule == "objective-cheapest"


def test_fastest_leaves_nodes_idle_where_the_network_is_slow() -> None:
    """Without a pipeline, two nodes on 10 GbE are slower than one: the plan uses one."""
    asked = ask(inter="10gbe")
    plain = Constraints(back_end="deepspeed", tensor_parallel_size=1, pipeline_parallel_size=1)
    request = asked.model_copy(update={"constraints": plain})

    assert aimed(request, Aim("fastest")).cluster.nodes == 1


def test_a_part_of_a_node_has_fewer_slots_in_the_hostfile(tmp_path: Path) -> None:
    """`gen --objective fewest-gpus` launches on one slot of the first host."""
    (tmp_path / "hosts").write_text("10.0.0.1 slots=8\n10.0.0.2 slots=8\n", encoding="utf-8")
    words = ["gen", "--model", "llama-2-7b", "--gpu", "a100-80gb", "--out", str(tmp_path / "run")]
    words += ["--hostfile", str(tmp_path / "hosts"), "--objective", "fewest-gpus"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    hosts = (tmp_path / "run" / "hostfile").read_text(encoding="utf-8")

    assert "fewest gpus: 1 of 16 GPUs" in done.stdout
    assert re.findall(r"^\S+ slots=\d+$", hosts, re.MULTILINE) == ["10.0.0.1 slots=1"]


def test_a_deadline_is_met_with_the_fewest_gpus_that_can() -> None:
    """Half as many would be late."""
    request = ask(tokens=20 * 10**9)
    days = {p.gpus: p.run.days.likely for p in front(tuple(parts(request))) if p.chosen and p.run}
    limit = (days[4] + days[8]) / 2
    plan = choose(aimed(request, Aim("fewest-gpus", deadline_days=limit)))

    assert plan.run is not None
    assert plan.cluster.gpus == 8
    assert plan.run.days.likely <= limit < days[4]


@pytest.mark.parametrize(
    ("aim", "message", "hint"),
    [
        (Aim(deadline_days=0.1), "cannot be met: the run takes", r"--deadline-days (\S+),"),
        (Aim(budget=1.0), "is too low: the run costs", r"--budget (\S+)"),
    ],
    ids=["deadline", "budget"],
)
def test_an_aim_that_cannot_be_met_names_one_that_can(aim: Aim, message: str, hint: str) -> None:
    """The offered value, asked for, is met."""
    request = ask(tokens=10**9, gpu_hour_price=2.0)
    with pytest.raises(DsforgeError, match=message) as caught:
        aimed(request, aim)
    offered = re.search(hint, caught.value.hint)
    assert offered is not None
    value = float(offered[1])
    nearest = Aim(deadline_days=value) if aim.deadline_days else Aim(budget=value)

    assert aimed(request, nearest).cluster.gpus >= 1


def test_offered_nodes_and_tokens_meet_the_deadline() -> None:
    """The other two ways out are true as well."""
    request = ask(tokens=10**9)
    with pytest.raises(DsforgeError) as caught:
        aimed(request, Aim(deadline_days=0.1))
    nodes = int(re.search(r"(\d+) nodes", caught.value.hint)[1])  # type: ignore[index]
    tokens = float(re.search(r"--tokens ([\d.]+)m", caught.value.hint)[1])  # type: ignore[index]
    aim = Aim("fastest", deadline_days=0.1)

    assert aimed(ask(nodes=nodes, tokens=10**9), aim).cluster.nodes <= nodes
    assert aimed(ask(tokens=round(tokens * 1e6)), aim).cluster.nodes <= 2


def test_a_deadline_needs_tokens_and_a_budget_a_price() -> None:
    """Both are said at once."""
    with pytest.raises(SpecError) as caught:
        aimed(ask(), Aim(deadline_days=3, budget=100))

    assert [problem.rule for problem in caught.value.problems] == ["aim-tokens", "aim-price"]


def test_plan_argues_in_json() -> None:
    """`--argue --json` has the front and the flips, without it neither; alternatives always."""
    run = CliRunner().invoke
    argued = json.loads(run(app, ["plan", *COMMAND, "--argue", "--json"]).stdout)
    plain = json.loads(run(app, ["plan", *COMMAND, "--json"]).stdout)

    assert argued["front"]
    assert argued["flips"]
    assert argued["alternatives"] == plain["alternatives"]
    assert (plain["front"], plain["flips"]) == (None, None)
    shown = run(app, ["plan", *COMMAND, "--argue"]).stdout
    assert "the choice for each number of GPUs" in shown  # which others may beat


SVG = "{http://www.w3.org/2000/svg}"


def outside(picture: ET.Element) -> list[str]:
    """Marks of a picture that lie beyond the axes, where the legend stands."""
    marks = picture.iter(f"{SVG}circle")
    return [
        str(mark.attrib)
        for mark in marks
        if not (PLOT.left <= float(mark.get("cx", 0)) <= PLOT.right)
        or not (PLOT.top <= float(mark.get("cy", 0)) <= PLOT.bottom)
    ]


@pytest.mark.parametrize("more", [{}, {"nodes": 1, "batch": 32}, {"inter": "infiniband-400"}])
def test_bars_are_as_long_as_their_figures_and_marks_lie_on_the_axes(more: dict[str, Any]) -> None:
    """The allocator's share belongs to device memory; the fastest plan may beat the choice."""
    request = ask(**more)
    plan, points = choose(request), front(tuple(parts(request)))
    bars = memory_plot(plan, (Bars("ours", plan.choice),))
    sizes = [float(text) for text in re.findall(r"<title>[a-z ]+: ([\d.]+) GiB", bars)]

    assert sum(sizes) == pytest.approx(plan.choice.memory.device_bytes.likely / GIB, rel=0.01)
    for text in (scaling_plot(plan, points), front_plot(plan, points)):
        assert outside(ET.fromstring(text)) == []  # noqa: S314 - our own text


def test_plots_are_svg_with_every_strategy_and_unit(tmp_path: Path) -> None:
    """Four files that parse; names, units and the limit of the card stand in them."""
    shown = CliRunner().invoke(app, ["plan", *COMMAND, "--plots", str(tmp_path), "--top", "1"])
    words = {
        path.name: " ".join(
            node.text or ""
            for node in ET.fromstring(path.read_text("utf-8")).iter()  # noqa: S314
        )
        for path in tmp_path.iterdir()
    }

    for path in tmp_path.iterdir():
        assert outside(ET.fromstring(path.read_text("utf-8"))) == []  # noqa: S314
    assert shown.exit_code == 0
    assert set(words) == {"memory.svg", "time.svg", "front.svg", "scaling.svg"}
    assert search(ask()).plans[0].strategy.layout.label() in words["memory.svg"]
    assert "79 GiB on the card" in words["memory.svg"]
    assert "seconds" in words["time.svg"]
    assert "GPU-seconds of a step" in words["front.svg"]
    assert "tokens/s" in words["scaling.svg"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--objective", "fasted"), "is not one of"),
        (("--deadline-days", "0"), "is not in the range x>0"),
        (("--gpu-hour-price", "0"), "must be greater than 0"),
        (("--gpu", "a100-80gx"), "nearest: a100-80gb"),
        (("--nodes", "0"), "must be at least 1"),
        (("--global-batch", "60", "--zero-stage", "2"), "use a global batch size of 48 or 64"),
        (("--global-batch", "4", "--zero-stage", "2"), "use a global batch size of 16"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_gets_one_clear_message(flags: tuple[str, ...], message: str) -> None:
    """One problem, with the nearest legal request where there is one."""
    done = CliRunner().invoke(app, ["plan", *COMMAND, *flags])
    error = done.exception
    problems = getattr(error, "problems", ())
    said = " ".join(map(str, problems)) or done.output

    assert done.exit_code != 0
    assert message in said
    assert len(problems) <= 1


@pytest.mark.parametrize("limit", ["budget", "deadline_days"])
def test_a_limit_between_the_easier_plan_and_the_fastest_takes_the_fastest(limit: str) -> None:
    """`--objective fewest-gpus` with a budget that only the fastest plan keeps was a traceback."""
    request = ask(nodes=1, tokens=10**9, gpu_hour_price=2.0)
    easy, quick = choose(request), choose(request.model_copy(update={"prefer": 1.0}))
    assert easy.run is not None
    assert quick.run is not None
    runs = [(run.money, run.days) for run in (easy.run, quick.run)]
    values = [money if limit == "budget" else days for money, days in runs]
    most = sum(value.likely for value in values if value is not None) / 2
    assert most < values[0].likely  # type: ignore[union-attr]

    aim = Aim("fewest-gpus", **{limit: most})
    plan = choose(aimed(request, aim))
    assert plan.run is not None
    kept = plan.run.money if limit == "budget" else plan.run.days
    assert kept is not None
    assert kept.likely <= most


LARGE = ("--gpus-per-node", "8", "--nodes")


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(("llama-2-70b", "--gpu", "h100-80gb", *LARGE, "32"), id="70b-on-256"),
        pytest.param(
            ("gpt3-175b", "--gpu", "a100-80gb", *LARGE, "128"),
            id="175b-on-1024",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_argument_is_found_where_fewer_machines_are_nearly_as_fast(
    asked: tuple[str, ...],
) -> None:
    """What a part of the cluster takes bounds the choice on the whole, never that on a piece."""
    done = CliRunner().invoke(app, ["plan", "--model", *asked, "--argue", "--json"])

    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert found["flips"] is not None
    assert len({point["gpus"] for point in found["front"] if point["chosen"]}) > 1
