"""Detection: facts from a laid-out machine, and the cluster file that follows from facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsforge.probe import node as probe
from dsforge.probe.detect import cluster_file, cluster_yaml, training_interface
from dsforge.probe.disk_speed import measured
from dsforge.probe.node_facts import DiskFact, Facts, GpuFact, InfinibandFact, InterfaceFact
from dsforge.reading.cluster import cluster_of
from dsforge.reading.source import parse_source
from dsforge.specs import ClusterSpec
from dsforge.units import GIB

NODE = Facts(
    host_name="node-1",
    memory_bytes=64 * GIB,
    cpu_cores=16,
    cpu_flops=1e12,
    cpu_bytes_per_s=2e10,
)
A100 = GpuFact(name="NVIDIA A100-SXM4-80GB", memory_bytes=80 * GIB, nvlinks=12)
ETHERNET = InterfaceFact(
    name="eth0", address="10.0.0.7", gbit_per_s=25, is_default=True, is_physical=True
)


def laid_out(root: Path, files: dict[str, str]) -> Path:
    """The root of a machine with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def node(**facts: object) -> Facts:
    """A node with some facts changed."""
    return NODE.model_copy(update=facts)


def detected(facts: Facts) -> ClusterSpec:
    """The cluster, by way of the YAML that a person would get."""
    text = cluster_yaml(*cluster_file(facts))
    return cluster_of(parse_source(text, "cluster.yaml"))[0]


def test_memory_is_the_ram_without_a_limit(tmp_path: Path) -> None:
    """MemTotal, in bytes, whatever cgroup v2 calls no limit."""
    root = laid_out(
        tmp_path, {"proc/meminfo": "MemTotal: 1024 kB\n", "sys/fs/cgroup/memory.max": "max"}
    )

    assert probe.memory_bytes(root) == 1024 * 1024


@pytest.mark.parametrize(
    "files",
    [
        {"sys/fs/cgroup/memory.max": "4096"},
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "4096"},
        {"sys/fs/cgroup/memory/memory.limit_in_bytes": "4096"},
        {
            "proc/self/cgroup": "4:memory:/job\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4096",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    ],
    ids=["v2 container", "v2 parent", "v1 container", "v1 job"],
)
def test_the_cgroup_limit_binds(tmp_path: Path, files: dict[str, str]) -> None:
    """The lowest limit above this process counts, in either version of cgroups."""
    root = laid_out(tmp_path, {"proc/meminfo": "MemTotal: 1024 kB\n", **files})

    assert probe.memory_bytes(root) == 4096


@pytest.mark.parametrize(
    "files",
    [
        {"sys/fs/cgroup/cpu.max": "150000 100000"},
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    ],
    ids=["v2", "v1"],
)
def test_the_cpu_quota_binds(tmp_path: Path, files: dict[str, str]) -> None:
    """A quota of one core and a half lets one rank run at full speed."""
    assert probe.cpu_cores(laid_out(tmp_path, files)) == 1


def test_interfaces_are_those_that_are_up(tmp_path: Path) -> None:
    """Speed and default route are read; the loopback and what is down are left out."""
    net = "sys/class/net"
    root = laid_out(
        tmp_path,
        {
            f"{net}/lo/operstate": "unknown",
            f"{net}/eth0/operstate": "up",
            f"{net}/eth0/speed": "100000",
            f"{net}/eth0/device/vendor": "0x15b3",
            f"{net}/eth1/operstate": "down",
            f"{net}/docker0/operstate": "up",
            f"{net}/docker0/speed": "-1",
            "proc/net/route": (
                "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
                "docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\n"
                "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\n"
            ),
        },
    )

    docker, ethernet = probe.interface_facts(root, {"eth0": "10.0.0.7"}.get)

    assert ethernet == ETHERNET.model_copy(update={"gbit_per_s": 100})
    assert (docker.name, docker.is_default, docker.gbit_per_s) == ("docker0", False, None)


def test_infiniband_ports_are_those_that_are_active(tmp_path: Path) -> None:
    """The rate stands in front of its unit; RoCE says so in its link layer."""
    port = "sys/class/infiniband/{}/ports/1/{}"
    root = laid_out(
        tmp_path,
        {
            port.format("mlx5_0", "rate"): "400 Gb/sec (4X NDR)",
            port.format("mlx5_0", "state"): "4: ACTIVE",
            port.format("mlx5_0", "link_layer"): "InfiniBand",
            port.format("mlx5_1", "rate"): "400 Gb/sec (4X NDR)",
            port.format("mlx5_1", "state"): "1: DOWN",
        },
    )

    assert probe.infiniband_facts(root) == (
        InfinibandFact(name="mlx5_0", gbit_per_s=400, is_ethernet=False),
    )


def test_disks_are_writable_mounts_nvme_first(tmp_path: Path) -> None:
    """Pseudo file systems and missing folders are passed over."""
    mounts = "/dev/sda1 / ext4 rw\nproc /proc proc rw\n/dev/nvme0n1 /fast xfs rw\n/dev/sdb /no x\n"
    root = laid_out(tmp_path, {"proc/mounts": mounts, "fast/here": ""})

    assert [disk.mount for disk in probe.disk_facts(root)] == ["/fast", "/"]


def test_a_node_of_known_cards_is_named_from_the_catalog() -> None:
    """Card, number, NVLink, InfiniBand adapters and address are taken over."""
    ports = tuple(
        InfinibandFact(name=f"mlx5_{n}", gbit_per_s=200, is_ethernet=False) for n in range(4)
    )

    cluster = detected(node(gpus=(A100,) * 8, infiniband=ports, interfaces=(ETHERNET,)))

    assert (cluster.gpu.name, cluster.gpus_per_node) == ("a100-80gb", 8)
    assert (cluster.intra_node.name, cluster.inter_node.name) == ("nvlink-3", "infiniband-200")
    assert (cluster.nics_per_node, cluster.interface) == (4, "eth0")
    assert [(host.address, host.slots) for host in cluster.hosts] == [("10.0.0.7", 8)]


def test_cards_without_their_nvlink_talk_over_pcie() -> None:
    """The catalog's usual link is not assumed where the driver sees none."""
    card = A100.model_copy(update={"nvlinks": 0, "pcie_generation": 4})

    assert detected(node(gpus=(card, card))).intra_node.name == "pcie-4"


@pytest.mark.parametrize(
    "card",
    [
        GpuFact(name="NVIDIA Unheard-of 9", memory_bytes=20 * GIB),
        A100.model_copy(update={"memory_bytes": 20 * GIB}),
    ],
    ids=["unknown name", "memory of another card"],
)
def test_an_unknown_card_is_described(card: GpuFact) -> None:
    """Its own memory, and low estimates for the rest, with a note."""
    file, notes = cluster_file(node(gpus=(card,)))

    assert detected(node(gpus=(card,))).gpu.memory_bytes == 20 * GIB
    assert "not in the catalog" in " ".join(notes)
    assert file.gpus_per_node == 1


def test_different_cards_are_planned_as_the_weakest() -> None:
    """The note says which."""
    small = GpuFact(name="NVIDIA A100-SXM4-40GB", memory_bytes=40 * GIB, nvlinks=12)

    assert detected(node(gpus=(A100, small))).gpu.name == "a100-40gb"
    assert "A100-SXM4-40GB" in " ".join(cluster_file(node(gpus=(A100, small)))[1])


def test_memory_that_cpu_and_gpu_share_is_written_once() -> None:
    """The driver of a GB10 reports what the system reports: the plan gets it in two parts."""
    spark = GpuFact(name="NVIDIA GB10", memory_bytes=round(119.7 * GIB))
    cluster = detected(node(gpus=(spark,), memory_bytes=round(119.7 * GIB)))

    assert cluster.gpu.name == "gb10-128gb"
    assert cluster.gpu.memory_bytes + cluster.host_memory_bytes <= 119.8 * GIB


@pytest.mark.parametrize(("cores", "ranks"), [(1, 1), (2, 2), (64, 2)], ids=str)
def test_without_a_gpu_ranks_run_on_the_cpu(cores: int, ranks: int) -> None:
    """Two ranks share the RAM, nine tenths of it."""
    cluster = detected(node(cpu_cores=cores))

    assert cluster.gpu.is_cpu
    assert cluster.gpus_per_node == ranks
    assert cluster.gpu.memory_bytes * ranks == pytest.approx(0.9 * 64 * GIB, rel=1e-3)
    assert cluster.gpu.peak_flops["fp32"] == pytest.approx(1e12 / ranks, rel=1e-3)


def test_the_interface_of_the_default_route_is_preferred() -> None:
    """Bridges of containers never carry training."""
    docker = InterfaceFact(name="docker0", address="172.17.0.1", is_default=True)
    second = ETHERNET.model_copy(update={"name": "aaa", "is_default": False})

    assert training_interface((docker, second, ETHERNET)) == ETHERNET
    assert training_interface((docker, second)) == second
    assert training_interface((docker,)) is None


@pytest.mark.parametrize(
    ("gbit_per_s", "link"), [(100, "100gbe"), (120, "100gbe"), (0.1, "1gbe")], ids=str
)
def test_the_network_is_never_taken_faster_than_it_is(gbit_per_s: float, link: str) -> None:
    """The next lower rate of the catalog stands for it."""
    ethernet = ETHERNET.model_copy(update={"gbit_per_s": gbit_per_s})

    assert detected(node(interfaces=(ethernet,))).inter_node.name == link


def test_an_nvme_disk_is_offered_with_its_measured_rates() -> None:
    """A fifth of the free space is left alone."""
    disk = DiskFact(mount="/fast", device="/dev/nvme0n1", free_bytes=1000 * GIB)
    rates = {"read_bytes_per_s": 5e9, "write_bytes_per_s": 2e9}

    nvme = detected(node(disks=(disk.model_copy(update=rates),))).nvme

    assert nvme is not None
    assert (nvme.path, nvme.size_bytes) == ("/fast/dsforge_swap", 800 * GIB)
    assert (nvme.read_bytes_per_s, nvme.write_bytes_per_s) == (5e9, 2e9)
    assert "--measure-disk" in " ".join(cluster_file(node(disks=(disk,)))[1])


def test_a_measurement_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is gone, and both rates are known."""
    monkeypatch.setattr("dsforge.probe.disk_speed.FILE_BYTES", 1 << 20)

    disk = measured(DiskFact(mount=str(tmp_path), device="/dev/x", free_bytes=1))

    assert disk.read_bytes_per_s is not None
    assert disk.write_bytes_per_s is not None
    assert not list(tmp_path.iterdir())
