"""Hosts that differ in cards or slots: which of them train together, and what is said of the rest.

`DSFORGE_SEED` draws other clusters. Many at once, another seed each time:

    DSFORGE_SEED=$RANDOM pytest tests/planner/test_hosts.py -m slow
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dsforge import catalog
from dsforge.cli.asked import to_request
from dsforge.cli.flags import Flags
from dsforge.cli.main import app
from dsforge.errors import SpecError
from dsforge.plan import Request
from dsforge.planner import appraise, choose
from dsforge.planner.explore import Explorer
from dsforge.planner.objectives import Aim, aimed
from dsforge.planner.parts import fitting, settled
from dsforge.planner.pieces import pieces
from dsforge.planner.preference import doubt

SEED = int(os.environ.get("DSFORGE_SEED", "8"))
FEW, MANY = 4, 120
ROUNDING = 1 + 1e-9
CARDS = ("v100-32gb", "a100-40gb", "a100-80gb", "h100-80gb", "rtx-4090", "l40s")
BETTER = {"v100-32gb": "a100-40gb", "a100-40gb": "a100-80gb", "a100-80gb": "h100-80gb"}
NETWORKS = ("10gbe", "100gbe", "infiniband-200")
Group = dict[str, Any]


def draw_group(draw: Random) -> Group:
    """Some equal hosts."""
    return {
        "gpu": draw.choice(CARDS),
        "nodes": draw.choice((1, 1, 2, 3, 4)),
        "gpus_per_node": draw.choice((2, 4, 8)),
        "host_memory_gib": draw.choice((256, 512, 1024)),
        "intra_node": draw.choice(("pcie-4", "nvlink-3", "nvlink-4")),
        "nics_per_node": draw.choice((1, 2, 8)),
    }


def asked(path: Path, groups: list[Group], network: str, **more: Any) -> Request:
    """The request for a model of 8 B on such groups."""
    values = {"groups": groups, "inter_node": network}
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    said = {"model": "llama-3.1-8b", "seq_len": 2048, "global_batch": 480, "precision": "fp16"}
    return to_request(Flags(**{"cluster": path, **said, **more}))  # type: ignore[arg-type]


def quickest(request: Request) -> tuple[float, float] | None:
    """How surely the plans for the hosts that are taken fit, and the fastest step of them."""
    explorer = settled(Explorer(request))
    found = fitting(explorer)
    if not found:
        return None
    return doubt(explorer.request, found), min(candidate.step_s for candidate in found)


def worse(path: Path, draw: Random) -> Iterator[str]:
    """What a stronger or larger cluster of random groups makes slower."""
    network = draw.choice(NETWORKS)
    groups = [draw_group(draw) for _ in range(draw.choice((2, 2, 3)))]
    request = asked(path, groups, network)
    mine = quickest(request)
    alone = [asked(path, [group], network) for group in groups]
    for group, other in zip(groups, map(quickest, alone), strict=True):
        if other is None or other[0]:  # certainty may be bought with time
            continue
        if mine is None or mine[0] or mine[1] > other[1] * ROUNDING:
            yield f"{groups} over {network}: {mine}, {group} alone {other}"
    index = draw.randrange(len(groups))
    card = BETTER.get(groups[index]["gpu"])
    more = [*groups[:index], {**groups[index], "gpu": card}, *groups[index + 1 :]]
    for what, changed in (
        ("card", more if card else groups),
        ("group", [*groups, draw_group(draw)]),
    ):
        now = quickest(asked(path, changed, network))
        if mine is not None and not mine[0] and (now is None or now[1] > mine[1] * ROUNDING):
            yield f"{what}: {groups} to {changed} over {network}: {mine} to {now}"


def broken(path: Path, count: int) -> list[str]:
    """What random clusters break."""
    draw = Random(SEED)  # noqa: S311 - which clusters, not which key
    return [said for _ in range(count) for said in worse(path / "c.yaml", draw)]


def test_no_group_alone_no_card_and_no_further_host_is_ever_missed(tmp_path: Path) -> None:
    """The plan is as fast as of any group alone, and no slower with a better card or more hosts."""
    assert broken(tmp_path, FEW) == []


@pytest.mark.slow
def test_the_same_of_many_clusters(tmp_path: Path) -> None:
    """The same of many."""
    assert broken(tmp_path, MANY) == []


def written(folder: Path, slots: tuple[int, ...]) -> Path:
    """A hostfile with so many slots on each host."""
    hosts = (f"10.0.0.{index} slots={count}\n" for index, count in enumerate(slots, start=1))
    path = folder / "hostfile"
    path.write_text("".join(hosts), encoding="utf-8")
    return path


def listed(folder: Path, slots: tuple[int, ...], **more: Any) -> Request:
    """Llama 8B on A100 hosts of a hostfile, over 100 Gbit/s."""
    said = {"model": "llama-3.1-8b", "gpu": "a100-80gb", "inter_node": "100gbe", **more}
    return to_request(Flags(hostfile=written(folder, slots), **said))  # type: ignore[arg-type]


@pytest.mark.parametrize("slots", [(8, 4, 2), (2, 4, 8), (8, 1), (8, 8, 1), (4, 8, 4, 8)])
def test_weak_hosts_do_not_hold_back_a_strong_one(tmp_path: Path, slots: tuple[int, ...]) -> None:
    """8 + 4 + 2 slots: 6 of 14 GPUs took 2.3x the time of the first host alone."""
    request = listed(tmp_path, slots)
    plan = choose(request)
    by_all = appraise(request).speed.tokens_per_s.likely
    said = {reason.rule: reason.message for reason in plan.choice.reasons}
    used = {host.address for host in plan.cluster.hosts}

    assert plan.cluster.gpus_per_node == 8
    assert used <= {f"10.0.0.{i}" for i, count in enumerate(slots, start=1) if count == 8}
    assert plan.speed.tokens_per_s.likely > by_all
    assert f"{sum(slots) - plan.cluster.gpus} GPUs stay idle" in said["fastest-hosts"]
    assert f"all {len(slots)} hosts with {min(slots)} GPU" in said["fastest-hosts"]


def test_the_sentence_quotes_what_all_hosts_and_what_is_taken_would_take(tmp_path: Path) -> None:
    """Each figure of the reason is that of a search of its own."""
    request = listed(tmp_path, (8, 4, 2))
    plan = choose(request)
    said = next(r.message for r in plan.choice.reasons if r.rule == "fastest-hosts")
    first = next(p for p in pieces(request) if p.cluster.gpus == 8 and p.cluster.nodes == 1)

    assert f"1 host with 8 GPUs (a100-80gb) reaches {rate(first):,.0f} tokens/s" in said
    assert f"all 3 hosts with 2 GPUs each {rate(request):,.0f} tokens/s; 6 GPUs stay idle" in said
    assert said.endswith("(10.0.0.2, 10.0.0.3)")


def rate(request: Request) -> float:
    """Tokens a second of the fastest plan on all machines of a request."""
    steps = (candidate.step_s for candidate in fitting(Explorer(request)))
    return request.workload.tokens_per_step / min(steps)


def test_all_hosts_train_where_that_is_faster_and_the_reason_says_by_how_much(
    tmp_path: Path,
) -> None:
    """Cards of one pace and other memory: twice as many of them are nearly twice as fast."""
    groups = [
        {"gpu": "a100-80gb", "nodes": 4, "gpus_per_node": 8},
        {"gpu": "a100-40gb", "nodes": 4, "gpus_per_node": 8},
    ]
    request = asked(tmp_path / "c.yaml", groups, "infiniband-200", global_batch=512)
    plan = choose(request)
    said = {reason.rule: reason.message for reason in plan.choice.reasons}

    assert (plan.cluster.nodes, plan.cluster.gpus) == (8, 64)
    assert plan.cluster.gpu.memory_bytes == catalog.gpu("a100-40gb").memory_bytes
    assert "all 8 hosts reach" in said["fastest-hosts"]
    assert "x those of 4 hosts with 8 GPUs each (a100-80gb)" in said["fastest-hosts"]


def test_what_trains_together_is_no_better_than_its_weakest(tmp_path: Path) -> None:
    """Slowest card, smallest memory, slowest links, least RAM: of every set of random groups."""
    draw = Random(SEED)  # noqa: S311
    for _ in range(30):
        groups = [draw_group(draw) for _ in range(3)]
        request = asked(tmp_path / "c.yaml", groups, draw.choice(NETWORKS))
        cards = [catalog.gpu(group["gpu"]) for group in groups]
        together = request.cluster

        assert together.gpu.memory_bytes == min(card.memory_bytes for card in cards)
        assert set(together.gpu.peak_flops) == set.intersection(*(set(c.peak_flops) for c in cards))
        assert together.gpu.peak_flops["fp16"] in {card.peak_flops["fp16"] for card in cards}
        assert together.gpus_per_node == min(group["gpus_per_node"] for group in groups)
        assert together.nodes == sum(group["nodes"] for group in groups)
        assert together.host_memory_bytes == min(g["host_memory_gib"] for g in groups) << 30
        assert request.all_gpus == sum(g["nodes"] * g["gpus_per_node"] for g in groups)
        for piece in pieces(request):
            assert piece.cluster.nodes < together.nodes or piece.cluster.gpus > together.gpus


def test_a_set_of_cards_with_bf16_is_not_kept_from_it_by_others(tmp_path: Path) -> None:
    """V100 has no bf16: all together train in fp16, the A100 by themselves in bf16."""
    groups = [
        {"gpu": "a100-80gb", "nodes": 1, "gpus_per_node": 8},
        {"gpu": "v100-32gb", "nodes": 1, "gpus_per_node": 8},
    ]
    request = asked(tmp_path / "c.yaml", groups, "100gbe", precision=None)

    assert request.workload.precision == "fp16"
    assert choose(request).workload.precision == "bf16"
    assert choose(request).cluster.gpu.name == "a100-80gb"


HOSTS = [
    {"gpu": "h100-80gb", "hosts": [{"address": "10.0.0.1", "slots": 8}]},
    {
        "gpu": "a100-80gb",
        "hosts": [{"address": "10.0.0.2", "slots": 8}, {"address": "10.0.0.3", "slots": 4}],
    },
]


def test_the_hostfile_names_exactly_the_hosts_that_are_used(tmp_path: Path) -> None:
    """Launchers start no rank on an idle host; the folder explains and lints like any other."""
    request = asked(tmp_path / "c.yaml", HOSTS, "10gbe")
    used = {host.address for host in choose(request).cluster.hosts}
    said = f"gen --model llama-3.1-8b --cluster {tmp_path}/c.yaml --seq-len 2048 --global-batch 480"
    made = CliRunner().invoke(app, [*said.split(), "--out", str(tmp_path / "run")])
    hostfile = next((tmp_path / "run").rglob("hostfile*")).read_text(encoding="utf-8")

    assert made.exit_code == 0, made.output
    assert {line.split()[0] for line in hostfile.splitlines() if line[:1] != "#"} == used
    assert used < {"10.0.0.1", "10.0.0.2", "10.0.0.3"}
    for command in ("explain", "lint"):
        checked = CliRunner().invoke(app, [command, str(tmp_path / "run")])
        assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("objective", ["fastest", "cheapest", "fewest-gpus"])
def test_an_objective_chooses_among_all_sets_of_hosts(tmp_path: Path, objective: Any) -> None:
    """The fastest is the one that is taken anyhow; the reason counts all GPUs that are listed."""
    request = listed(tmp_path, (8, 4, 2), global_batch=96)
    picked = aimed(request, Aim(objective))
    said = next(r.message for r in picked.reasons if r.rule == f"objective-{objective}")
    step_s = min(candidate.step_s for candidate in fitting(Explorer(picked)))

    assert f"{picked.cluster.gpus} of 14 GPUs" in said
    if objective == "fastest":
        assert step_s == quickest(request)[1]  # type: ignore[index]


def test_a_card_of_ones_own_plans_generates_and_explains(tmp_path: Path) -> None:
    """Among others, too: described in its group, with its link."""
    own = {"name": "mine", "memory_gib": 48, "memory_bandwidth_gb_s": 900}
    own["peak_tflops"] = {"bf16": 180}
    link = {"name": "cable", "kind": "nvlink", "bandwidth_gb_s": 100, "latency_us": 3}
    groups = [
        {"gpu": own, "nodes": 2, "gpus_per_node": 4, "intra_node": link},
        {"gpu": "t4", "nodes": 1, "gpus_per_node": 2},
    ]
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"groups": groups, "inter_node": "100gbe"}), encoding="utf-8")
    said = f"gen --model llama-3.1-8b --cluster {path} --precision bf16 --out {tmp_path}/run"
    made = CliRunner().invoke(app, said.split())
    explained = CliRunner().invoke(app, ["explain", str(tmp_path / "run"), "--json"])

    assert made.exit_code == 0, made.output
    assert "2 x 4 mine" in made.output
    assert json.loads(explained.output)["disagreements"] == []


REFUSED = {
    "no library for both": (
        {"groups": [{"gpu": "mi300x", "nodes": 1}, {"gpu": "h100", "nodes": 1}]},
        "cannot train one model together: mi300x uses RCCL, h100-80gb uses NCCL",
    ),
    "hosts beside groups": (
        {"hosts": [{"address": "10.0.0.1", "slots": 8}], "groups": [{"gpu": "h100"}]},
        "`hosts` cannot be combined with `groups`",
    ),
    "nodes beside groups": (
        {"nodes": 2, "groups": [{"gpu": "h100"}, {"gpu": "a100"}]},
        "`nodes` cannot be combined with `groups`",
    ),
    "hosts of one group only": (
        {"groups": [HOSTS[0], {"gpu": "a100", "nodes": 1}]},
        "`groups[1]` has no `hosts`, but another group has",
    ),
    "unknown card of a group": (
        {"groups": [{"gpu": "h100"}, {"gpu": "a1000"}]},
        "gpu 'a1000' is not in the catalog",
    ),
    "host in two groups": (
        {"groups": [HOSTS[0], {"gpu": "a100", "hosts": [{"address": "10.0.0.1", "slots": 8}]}]},
        "host `10.0.0.1` occurs twice",
    ),
    "no card": ({"groups": [{"nodes": 1}, {"gpu": "h100"}]}, "`gpu` is missing"),
    "list of cards": (
        {"gpu": ["h100-80gb", "a100-80gb"]},
        "must be one card; list hosts with other cards as `groups: [",
    ),
    "list of links": (
        {"gpu": "h100", "inter_node": ["100gbe"]},
        "`inter_node` (=('100gbe',)) must be one text, not a list",
    ),
    "unknown key of a group": (
        {"groups": [{"gpu": "h100", "slots": 8}, {"gpu": "a100"}]},
        "`groups[0].slots` is not a key",
    ),
}


@pytest.mark.parametrize(("values", "message"), REFUSED.values(), ids=REFUSED)
def test_groups_that_cannot_be_read_are_refused(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    """With the line of the file, and all at once."""
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")

    with pytest.raises(SpecError) as caught:
        to_request(Flags(model="llama-2-7b", cluster=path))

    assert message in "\n".join(map(str, caught.value.problems))


def test_a_hostfile_does_not_go_with_groups(tmp_path: Path) -> None:
    """It does not say which host is of which group."""
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"groups": HOSTS}), encoding="utf-8")

    with pytest.raises(SpecError) as caught:
        to_request(Flags(model="llama-2-7b", cluster=path, hostfile=written(tmp_path, (8, 8))))

    assert "does not say which host belongs to which" in str(caught.value.problems[0])


def test_one_group_is_a_cluster_of_equal_hosts(tmp_path: Path) -> None:
    """The same plan as without the list."""
    group = {"gpu": "a100-80gb", "nodes": 2, "gpus_per_node": 8}
    request = asked(tmp_path / "c.yaml", [group], "100gbe")
    (tmp_path / "d.yaml").write_text(yaml.safe_dump({**group, "inter_node": "100gbe"}))
    said = {"model": "llama-3.1-8b", "seq_len": 2048, "global_batch": 480, "precision": "fp16"}
    plain = to_request(Flags(cluster=tmp_path / "d.yaml", **said))  # type: ignore[arg-type]

    assert request.cluster == plain.cluster
    assert request.others == plain.others == ()
    assert choose(request).choice == choose(plain).choice
