"""Probe: the one place that looks at the machine, through /proc, /sys, NVML and two short timings.

Every file is found below `root`, so that a test can lay out a machine that it does not have. What
cannot be read is absent from the facts; nothing here decides anything.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dsforge.doctor.disk import measured
from dsforge.doctor.facts import DiskFact, Facts, InfinibandFact, InterfaceFact
from dsforge.doctor.nvml import gpu_facts
from dsforge.units import GIB

ROOT = Path("/")
SIOCGIFADDR = 0x8915  # linux/sockios.h
GATEWAY_FLAG = 0x2  # linux/route.h, RTF_GATEWAY
UNLIMITED = 1 << 60  # cgroup v1 says "no limit" with a number near 2^63
MATRIX, COPY_BYTES, TIMING_S = 64, 64 << 20, 0.15
LEAST_DISK_BYTES = 10 * GIB
PSEUDO = ("/proc", "/sys", "/dev", "/run", "/etc", "/boot")


def probe(
    root: Path = ROOT,
    *,
    measure_disk: bool = False,
    address_of: Callable[[str], str | None] | None = None,
) -> Facts:
    """What this node is. `measure_disk` writes and reads a file of 256 MiB on each disk found."""
    gpus, note = gpu_facts()
    disks = disk_facts(root)
    cores = cpu_cores(root)
    flops, bytes_per_s = cpu_speed(cores)
    return Facts(
        host_name=socket.gethostname(),
        memory_bytes=memory_bytes(root),
        cpu_cores=cores,
        cpu_has_bf16=bool(re.search(r"amx_bf16|avx512_bf16", _text(root / "proc/cpuinfo"))),
        cpu_flops=flops,
        cpu_bytes_per_s=bytes_per_s,
        gpus=gpus,
        gpu_note=note,
        disks=tuple(measured(disk) for disk in disks) if measure_disk else disks,
        interfaces=interface_facts(root, address_of or ipv4_address),
        infiniband=infiniband_facts(root),
    )


def memory_bytes(root: Path = ROOT) -> int:
    """RAM in bytes, or the lowest memory limit of this process's cgroup and those above it."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    total = (
        int(match[1]) * 1024 if match else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
    limits = [
        _number(folder / name)
        for folder in _cgroups(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    return min([total, *(int(limit) for limit in limits if limit and limit < UNLIMITED)])


def cpu_cores(root: Path = ROOT) -> int:
    """Cores that this process may use: its affinity, and the quota of its cgroup."""
    cores = len(os.sched_getaffinity(0))
    for folder in _cgroups(root, "cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not quota:
            quota = _text(folder / "cpu.cfs_quota_us")
            period = _text(folder / "cpu.cfs_period_us")
        with suppress(ValueError, ZeroDivisionError):
            if int(quota) > 0:
                cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def disk_facts(root: Path = ROOT) -> tuple[DiskFact, ...]:
    """Disks with room that the user may write to, the fastest kind first, then the roomiest."""
    found: dict[str, DiskFact] = {}
    for line in _text(root / "proc/mounts").splitlines():
        device, mount, kind = [*line.split(), "", "", ""][:3]
        local = device.startswith("/dev/") or kind == "overlay"
        folder = root / mount.lstrip("/")
        if not local or mount.startswith(PSEUDO) or not folder.is_dir():
            continue
        if not os.access(folder, os.W_OK):
            continue
        free = shutil.disk_usage(folder).free
        if free >= LEAST_DISK_BYTES:
            found.setdefault(device, DiskFact(mount=mount, device=device, free_bytes=free))
    return tuple(sorted(found.values(), key=lambda disk: (not disk.is_nvme, -disk.free_bytes)))


def interface_facts(
    root: Path, address_of: Callable[[str], str | None]
) -> tuple[InterfaceFact, ...]:
    """Network interfaces that are up, the loopback excepted."""
    default = _default_interface(root)
    return tuple(
        InterfaceFact(
            name=folder.name,
            address=address_of(folder.name),
            gbit_per_s=_speed(folder),
            is_default=folder.name == default,
            is_physical=(folder / "device").exists(),
        )
        for folder in _folders(root / "sys/class/net")
        if folder.name != "lo" and _text(folder / "operstate") in ("up", "unknown")
    )


def infiniband_facts(root: Path) -> tuple[InfinibandFact, ...]:
    """Active ports of RDMA adapters."""
    facts = []
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        rate = re.match(r"([\d.]+) Gb/sec", _text(port / "rate"))
        if rate is None or "ACTIVE" not in _text(port / "state"):
            continue
        ethernet = _text(port / "link_layer") == "Ethernet"
        name = port.parent.parent.name
        facts.append(InfinibandFact(name=name, gbit_per_s=float(rate[1]), is_ethernet=ethernet))
    return tuple(facts)


def ipv4_address(interface: str) -> str | None:
    """The IPv4 address of an interface, where it has one."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probing, suppress(OSError):
        request = struct.pack("256s", interface.encode()[:15])
        answer = fcntl.ioctl(probing.fileno(), SIOCGIFADDR, request)
        return socket.inet_ntoa(answer[20:24])
    return None


def cpu_speed(cores: int) -> tuple[float, float]:
    """FLOP/s of fp32 matrix products on all cores, and bytes/s of a copy in RAM; 0.3 s.

    One core is timed and multiplied: BLAS runs so small a product in one thread, and a threaded one
    on a busy machine measures how its threads wait for each other, ten times too slow.
    """
    import numpy as np

    matrix = np.ones((MATRIX, MATRIX), dtype=np.float32)
    product = np.empty_like(matrix)
    source = np.ones(COPY_BYTES, dtype=np.uint8)
    target = np.zeros_like(source)
    products = _per_second(lambda: np.matmul(matrix, matrix, out=product))
    copies = _per_second(lambda: np.copyto(target, source))
    return cores * 2 * MATRIX**3 * products, 2 * COPY_BYTES * copies


def _per_second(work: Callable[[], object]) -> float:
    """How often the work can be done in a second, by its fastest time: others use the CPU too."""
    work()
    end, fastest_s = time.perf_counter() + TIMING_S, float("inf")
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        fastest_s = min(fastest_s, time.perf_counter() - start)
    return 1 / fastest_s


def _cgroups(root: Path, controller: str) -> list[Path]:
    """The cgroup folders whose limits bind this process, v1 and v2, its own and those above."""
    base, paths = root / "sys/fs/cgroup", {Path("/")}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or controller in controllers.split(","):
            paths |= {Path(path), *Path(path).parents}
    tops = (base, base / controller, base / "cpu,cpuacct")
    return [top / str(path).lstrip("/") for top in tops for path in sorted(paths)]


def _default_interface(root: Path) -> str | None:
    """The interface of the default route with the lowest metric."""
    routes = []
    for line in _text(root / "proc/net/route").splitlines()[1:]:
        name, destination, _, flags, _, _, metric, *_ = [*line.split(), *["0"] * 7]
        if destination == "00000000" and int(flags, 16) & GATEWAY_FLAG:
            routes.append((int(metric), name))
    return min(routes)[1] if routes else None


def _speed(folder: Path) -> float | None:
    """Gbit/s of an interface; virtual ones say -1 or nothing."""
    mbit_per_s = _number(folder / "speed")
    return mbit_per_s / 1000 if mbit_per_s and mbit_per_s > 0 else None


def _folders(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _number(path: Path) -> float | None:
    with suppress(ValueError):
        return float(_text(path))
    return None


def _text(path: Path) -> str:
    """The text of a small file of the kernel, or nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
