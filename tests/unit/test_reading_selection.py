"""Hosts and slots by `include` and `exclude`; Slurm's words; a disk by its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsforge.errors import SpecError
from dsforge.hostfile import Entry
from dsforge.reading.cluster import Reading, cluster_of
from dsforge.reading.files import ClusterFile
from dsforge.reading.selection import selected
from dsforge.reading.source import Source
from dsforge.specs import ClusterSpec

POOL = "10.0.0.1 slots=4\n10.0.0.2 slots=4\n10.0.0.3 slots=2\n"


def read(folder: Path, hostfile: str | None = POOL, **values: Any) -> Reading:
    """A cluster of A100 on the hosts of a hostfile, with more keys."""
    path = None
    if hostfile is not None:
        path = folder / "hosts"
        path.write_text(hostfile)
    return cluster_of(Source("test", {"gpu": "a100-80gb", **values}), hostfile=path)


def hosts(cluster: ClusterSpec) -> list[tuple[str, int, tuple[int, ...]]]:
    """Address, slots and devices of each host."""
    return [(host.address, host.slots, host.devices) for host in cluster.hosts]


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("include", "10.0.0.2", [("10.0.0.2", 4, ())]),
        ("include", "10.0.0.2@10.0.0.1", [("10.0.0.1", 4, ()), ("10.0.0.2", 4, ())]),
        ("include", "10.0.0.1:0,1", [("10.0.0.1", 2, ())]),
        ("include", "10.0.0.1:3,2,2", [("10.0.0.1", 2, (2, 3))]),
        ("include", "10.0.0.1:2@10.0.0.1:3", [("10.0.0.1", 2, (2, 3))]),
        ("include", "10.0.0.1:1,2,3@10.0.0.3", [("10.0.0.1", 2, (1, 2)), ("10.0.0.3", 2, ())]),
        ("exclude", "10.0.0.3", [("10.0.0.1", 4, ()), ("10.0.0.2", 4, ())]),
        (
            "exclude",
            "10.0.0.3@10.0.0.2:0",
            [("10.0.0.1", 3, ()), ("10.0.0.2", 3, (1, 2, 3))],
        ),
        ("exclude", "10.0.0.2@10.0.0.3:0,1", [("10.0.0.1", 4, ())]),
    ],
)
def test_hosts_and_slots_that_are_left(
    key: str, text: str, expected: list[Any], tmp_path: Path
) -> None:
    """In the order of the hostfile; every node gives as many as the one that has fewest."""
    cluster, reasons = read(tmp_path, **{key: text})

    assert hosts(cluster) == expected
    assert (cluster.nodes, cluster.gpus_per_node) == (len(expected), expected[0][1])
    assert f"{key}-hosts" in {reason.rule for reason in reasons}


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"include": "10.0.0.9"}, "selection-host"),
        ({"include": "10.0.0.1:4"}, "selection-slot"),
        ({"include": "10.0.0.1:"}, "selection-form"),
        ({"include": "10.0.0.1@"}, "selection-form"),
        ({"include": "10.0.0.1:0-3"}, "selection-form"),
        ({"include": "10.0.0.1:a"}, "selection-form"),
        ({"include": "10.0.0.1:-1"}, "selection-form"),
        ({"include": "10.0.0.1 10.0.0.2"}, "selection-form"),
        ({"include": "10.0.0.1;id"}, "selection-form"),
        ({"include": "$(id)"}, "selection-form"),
        ({"include": "10.0.0.1:0,１"}, "selection-form"),  # noqa: RUF001
        ({"exclude": "10.0.0.1@10.0.0.2@10.0.0.3"}, "selection-empty"),
        ({"include": "10.0.0.1", "exclude": "10.0.0.2"}, "one-of-two"),
        ({"include": "10.0.0.1", "nodes": 2}, "nodes-beyond-hosts"),
        ({"include": "10.0.0.1:0,1", "gpus_per_node": 4}, "gpus-beyond-slots"),
    ],
)
def test_what_selects_nothing_sure_is_refused(
    values: dict[str, Any], rule: str, tmp_path: Path
) -> None:
    """With the rule that it breaks, before anything is planned."""
    with pytest.raises(SpecError) as caught:
        read(tmp_path, **values)

    assert [problem.rule for problem in caught.value.problems] == [rule]


@pytest.mark.parametrize(
    ("values", "devices"),
    [
        ({"include": "localhost:2,3"}, (2, 3)),
        ({"include": "localhost:0,1"}, ()),
        ({"include": "localhost:6,7", "gpus_per_node": 8}, (6, 7)),
        ({"exclude": "localhost:0", "gpus_per_node": 3}, (1, 2)),
    ],
    ids=["two", "first", "of-8", "all-but-one"],
)
def test_this_machine_needs_no_hostfile(
    values: dict[str, Any], devices: tuple[int, ...], tmp_path: Path
) -> None:
    """As DeepSpeed takes `--include localhost:2,3`."""
    cluster, _ = read(tmp_path, None, **values)

    assert hosts(cluster) == [("127.0.0.1", 2, devices)]
    assert (cluster.nodes, cluster.gpus_per_node) == (1, 2)


def test_a_listed_host_gives_as_many_as_are_asked_for(tmp_path: Path) -> None:
    """`gpus_per_node` narrows what was selected, on a listed 127.0.0.1 as well."""
    pool = "127.0.0.1 slots=4\n"
    cluster, _ = read(tmp_path, pool, include="127.0.0.1:1,2,3", gpus_per_node=2)

    assert hosts(cluster) == [("127.0.0.1", 2, (1, 2))]


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"include": "node1"}, "selection-hosts"),
        ({"include": "localhost:0", "nodes": 2}, "selection-hosts"),
        ({"exclude": "localhost:0"}, "selection-count"),
        ({"include": "localhost:8", "gpus_per_node": 8}, "selection-slot"),
    ],
)
def test_without_hosts_only_this_machine_is_selected_from(
    values: dict[str, Any], rule: str, tmp_path: Path
) -> None:
    """And only where it is known how many accelerators it has."""
    with pytest.raises(SpecError) as caught:
        read(tmp_path, None, **values)

    assert [problem.rule for problem in caught.value.problems] == [rule]


def test_slots_of_an_ipv6_host_are_refused(tmp_path: Path) -> None:
    """DeepSpeed's parser would split the address; whole hosts can be selected."""
    pool = "fd00::1 slots=4\nfd00::2 slots=4\n"

    assert hosts(read(tmp_path, pool, include="fd00::2")[0]) == [("fd00::2", 4, ())]
    with pytest.raises(SpecError) as caught:
        read(tmp_path, pool, include="fd00::2:1,2")
    assert [problem.rule for problem in caught.value.problems] == ["selection-ipv6"]


@pytest.mark.parametrize(
    ("time", "legal"),
    [
        *((text, True) for text in ("30", "30:00", "12:00:00", "2-0", "2-12:30", "1-0:0:0")),
        *((60, True), ("UNLIMITED", True)),
        *((text, False) for text in ("", "1h", "1:2:3:4", "-1", "1 2", "1\n2", "$(id)", "1;id")),
        *((-5, False), (1.5, False), (True, False)),
    ],
)
def test_time_limits_are_those_of_sbatch(time: object, legal: bool, tmp_path: Path) -> None:
    """`man sbatch`, --time; a number is one of minutes."""
    values = {"nodes": 1, "slurm": {"time": time}}
    if not legal:
        with pytest.raises(SpecError):
            read(tmp_path, None, **values)
        return
    cluster, _ = read(tmp_path, None, **values)
    assert cluster.slurm is not None
    assert cluster.slurm.time == str(time)


@pytest.mark.parametrize("key", ["account", "partition"])
@pytest.mark.parametrize("text", ["", "-x", "a b", "a;b", "$(id)", "`id`", "a'b", 'a"b', "a\nb"])
def test_slurm_names_hold_nothing_of_a_shell(key: str, text: str, tmp_path: Path) -> None:
    """They become words of a script."""
    with pytest.raises(SpecError):
        read(tmp_path, None, nodes=1, slurm={key: text})


def test_a_disk_by_its_path_alone(tmp_path: Path) -> None:
    """Size and rates are assumed, and said; what is given stays."""
    cluster, reasons = read(tmp_path, None, nodes=1, nvme={"path": "/scratch/nvme"})
    known, said = read(
        tmp_path,
        None,
        nodes=1,
        nvme={"path": "/n", "size_gib": 10, "read_gb_s": 5.0, "write_gb_s": 4},
    )

    assert cluster.nvme is not None
    assert known.nvme is not None
    assert cluster.nvme.path == "/scratch/nvme"
    assert "default-nvme" in {reason.rule for reason in reasons}
    assert "default-nvme" not in {reason.rule for reason in said}
    assert (known.nvme.read_bytes_per_s, known.nvme.write_bytes_per_s) == (5e9, 4e9)


@pytest.mark.parametrize("path", ["nvme", "/a b", "/a;b", "/$(id)", "/a'b", "/a\nb", ""])
def test_a_disk_path_is_absolute_and_plain(path: str, tmp_path: Path) -> None:
    """It stands in ds_config.json and in messages."""
    with pytest.raises(SpecError):
        read(tmp_path, None, nodes=1, nvme={"path": path})


WORDS = (
    "10.0.0.1",
    "fd00::1",
    "localhost",
    "127.0.0.1",
    "node1",
    "@",
    ":",
    ",",
    "0",
    "1",
    "9",
    "-",
)


@settings(max_examples=400, deadline=None, database=None)
@given(
    st.lists(st.sampled_from(WORDS) | st.characters(), min_size=1, max_size=9).map("".join),
    st.sampled_from(("include", "exclude")),
    st.sampled_from(((), ("10.0.0.1", "fd00::1", "node1"), ("127.0.0.1",))),
)
def test_any_text_selects_or_is_refused(text: str, key: str, pool: tuple[str, ...]) -> None:
    """Never a traceback; what is left are listed slots of listed hosts, in their order."""
    entries = [Entry(host, 2, "here") for host in pool]
    file = ClusterFile.model_construct(**{key: text, "gpus_per_node": 2})
    try:
        left = selected(entries, file, Source("test", {})).entries
    except SpecError:
        return
    known = list(pool) or ["127.0.0.1"]

    assert left
    assert [e.address for e in left] == [h for h in known if h in {e.address for e in left}]
    assert all(set(e.devices or range(e.slots)) <= {0, 1} for e in left)
    assert all(not e.devices or len(e.devices) == e.slots for e in left)
