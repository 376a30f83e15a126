"""Facts of this node, from /proc, /sys, NVML and two short timings.

Every file is found below `root`, so that a test can lay out a machine that it does not have. What
cannot be read is absent from the facts; nothing here decides anything.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dsforge.preflight.remote.machine import (
    ROOT,
    cpu_cores,
    default_interface,
    folders,
    infiniband_ports,
    memory_bytes,
    number,
    text,
)
from dsforge.probe.cpu_speed import cpu_speed
from dsforge.probe.disk_speed import measured
from dsforge.probe.node_facts import DiskFact, Facts, InfinibandFact, InterfaceFact
from dsforge.probe.nvml import gpu_facts
from dsforge.units import GIB

SIOCGIFADDR = 0x8915  # linux/sockios.h
MIN_DISK_BYTES = 10 * GIB
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
    speed = cpu_speed(cores, root)
    return Facts(
        host_name=socket.gethostname(),
        memory_bytes=memory_bytes(root),
        cpu_cores=cores,
        cpu_has_bf16=bool(re.search(r"amx_bf16|avx512_bf16", text(root / "proc/cpuinfo"))),
        cpu_flops=speed.flops,
        cpu_bytes_per_s=speed.bytes_per_s,
        cpu_note=speed.note,
        gpus=gpus,
        gpu_note=note,
        disks=tuple(measured(disk) for disk in disks) if measure_disk else disks,
        interfaces=interface_facts(root, address_of or ipv4_address),
        infiniband=infiniband_facts(root),
    )


def disk_facts(root: Path = ROOT) -> tuple[DiskFact, ...]:
    """Disks with room with write permission to, the fastest kind first, then the roomiest."""
    found: dict[str, DiskFact] = {}
    for line in text(root / "proc/mounts").splitlines():
        device, mount, kind = [*line.split(), "", "", ""][:3]
        local = device.startswith("/dev/") or kind == "overlay"
        folder = root / mount.lstrip("/")
        if not local or mount.startswith(PSEUDO) or not folder.is_dir():
            continue
        if not os.access(folder, os.W_OK):
            continue
        free = shutil.disk_usage(folder).free
        if free >= MIN_DISK_BYTES:
            found.setdefault(device, DiskFact(mount=mount, device=device, free_bytes=free))
    return tuple(sorted(found.values(), key=lambda disk: (not disk.is_nvme, -disk.free_bytes)))


def interface_facts(
    root: Path, address_of: Callable[[str], str | None]
) -> tuple[InterfaceFact, ...]:
    """Network interfaces that are up, the loopback excepted."""
    default = default_interface(root)
    return tuple(
        InterfaceFact(
            name=folder.name,
            address=address_of(folder.name),
            gbit_per_s=_speed(folder),
            is_default=folder.name == default,
            is_physical=(folder / "device").exists(),
        )
        for folder in folders(root / "sys/class/net")
        if folder.name != "lo" and text(folder / "operstate") in ("up", "unknown")
    )


def infiniband_facts(root: Path) -> tuple[InfinibandFact, ...]:
    """Active ports of RDMA adapters that say their rate."""
    return tuple(
        InfinibandFact(
            name=port["name"], gbit_per_s=port["gbit_per_s"], is_ethernet=port["is_ethernet"]
        )
        for port in infiniband_ports(root)
        if port["is_active"] and port["gbit_per_s"]
    )


def ipv4_address(interface: str) -> str | None:
    """The IPv4 address of an interface, where it has one."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probing, suppress(OSError):
        request = struct.pack("256s", interface.encode()[:15])
        answer = fcntl.ioctl(probing.fileno(), SIOCGIFADDR, request)
        return socket.inet_ntoa(answer[20:24])
    return None


def _speed(folder: Path) -> float | None:
    """Gbit/s of an interface; virtual ones say -1 or nothing."""
    mbit_per_s = number(folder / "speed")
    return mbit_per_s / 1000 if mbit_per_s and mbit_per_s > 0 else None
