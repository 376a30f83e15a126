"""Kernel: what /proc, /sys and a few system calls say about this machine.

Every file is found below `root`, so that a test can lay out a machine that it does not have. What
cannot be read is absent; nothing here decides anything.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import struct
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path("/")
UNLIMITED = 1 << 60  # cgroup v1 says "no limit" with a number near 2^63
GATEWAY_FLAG = 0x2  # linux/route.h, RTF_GATEWAY
SIOCGIFCONF = 0x8912  # linux/sockios.h: every IPv4 address with the name of its interface
IFREQ_BYTES, MOST_ADDRESSES = 40, 256
PROGRAM_LIMIT_S = 15.0
LONGEST_LIST = 64
GPU_FIELDS = (
    "name",
    "memory.total",
    "driver_version",
    "ecc.errors.uncorrected.volatile.total",
    "clocks_throttle_reasons.active",
)


def machine_facts() -> dict[str, Any]:
    """Names, addresses, adapters, memory, limits and GPUs of this machine."""
    gpus, note = gpus_by_driver()
    return {
        "host_name": socket.gethostname()[:200],
        "name_address": own_name_address(),
        "addresses": listed_addresses(),
        "interfaces": interfaces(),
        "infiniband": infiniband_ports(),
        "gpus": gpus,
        "gpu_note": note[:200],
        "cpu_cores": cpu_cores(),
        "memory_bytes": memory_bytes(),
        "shm_free_bytes": free_bytes("/dev/shm"),  # noqa: S108 (where ranks of a host share memory)
        "tmp_free_bytes": free_bytes("/tmp"),  # noqa: S108 (where compilers write)
        "memlock_bytes": limit(resource.RLIMIT_MEMLOCK),
        "open_files": limit(resource.RLIMIT_NOFILE),
    }


def memory_bytes(root: Path = ROOT) -> int:
    """RAM in bytes, or the lowest memory limit of this process's cgroup and those above it."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", text(root / "proc/meminfo"), re.MULTILINE)
    total = (
        int(match[1]) * 1024 if match else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
    limits = [
        number(folder / name)
        for folder in cgroups(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    return min([total, *(int(limit) for limit in limits if limit and limit < UNLIMITED)])


def cpu_cores(root: Path = ROOT) -> int:
    """Cores that this process may use: its affinity, and the quota of its cgroup."""
    cores = len(os.sched_getaffinity(0))
    for folder in cgroups(root, "cpu"):
        quota, _, period = text(folder / "cpu.max").partition(" ")
        if not quota:
            quota = text(folder / "cpu.cfs_quota_us")
            period = text(folder / "cpu.cfs_period_us")
        with suppress(ValueError, ZeroDivisionError):
            if int(quota) > 0:
                cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def cgroups(root: Path, controller: str) -> list[Path]:
    """The cgroup folders whose limits bind this process, v1 and v2, its own and those above."""
    base, paths = root / "sys/fs/cgroup", {Path("/")}
    for line in text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or controller in controllers.split(","):
            paths |= {Path(path), *Path(path).parents}
    tops = (base, base / controller, base / "cpu,cpuacct")
    return [top / str(path).lstrip("/") for top in tops for path in sorted(paths)]


def default_interface(root: Path = ROOT) -> str | None:
    """The interface of the default route with the lowest metric."""
    routes = []
    for line in text(root / "proc/net/route").splitlines()[1:]:
        name, destination, _, flags, _, _, metric, *_ = [*line.split(), *["0"] * 7]
        if destination == "00000000" and int(flags, 16) & GATEWAY_FLAG:
            routes.append((int(metric), name))
    return min(routes)[1] if routes else None


def interfaces(root: Path = ROOT) -> list[dict[str, Any]]:
    """Network interfaces that are up, the loopback excepted, with their IPv4 addresses."""
    addresses, default = ipv4_addresses(), default_interface(root)
    return [
        {
            "name": folder.name,
            "addresses": [address for name, address in addresses if name == folder.name],
            "mtu": int(number(folder / "mtu") or 0),
            "mac": text(folder / "address")[:64],
            "is_default": folder.name == default,
        }
        for folder in folders(root / "sys/class/net")[:LONGEST_LIST]
        if folder.name != "lo" and text(folder / "operstate") in ("up", "unknown")
    ]


def ipv4_addresses() -> list[tuple[str, str]]:
    """Every IPv4 address of this host with the name of its interface."""
    import array
    import fcntl

    room = array.array("B", bytes(IFREQ_BYTES * MOST_ADDRESSES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("iL", len(room), room.buffer_info()[0])
        used = struct.unpack("iL", fcntl.ioctl(asking.fileno(), SIOCGIFCONF, request))[0]
    data = room.tobytes()
    entries = (data[at : at + IFREQ_BYTES] for at in range(0, used, IFREQ_BYTES))
    return [(e[:16].split(b"\0")[0].decode(), socket.inet_ntoa(e[20:24])) for e in entries]


def listed_addresses() -> list[str]:
    """What `hostname -I` prints, in its order: DeepSpeed takes the first as master address."""
    return said(["hostname", "-I"]).split()[:LONGEST_LIST]


def own_name_address() -> str:
    """What the host's own name resolves to, which gloo announces where no interface is named."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def infiniband_ports(root: Path = ROOT) -> list[dict[str, Any]]:
    """Every port of every RDMA adapter, active or not."""
    found = []
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*"))[:LONGEST_LIST]:
        rate = re.match(r"([\d.]+) Gb/sec", text(port / "rate"))
        found.append(
            {
                "name": port.parent.parent.name,
                "is_active": "ACTIVE" in text(port / "state"),
                "is_ethernet": text(port / "link_layer") == "Ethernet",
                "gbit_per_s": float(rate[1]) if rate else 0.0,
            }
        )
    return found


def gpus_by_driver() -> tuple[list[dict[str, Any]], str]:
    """NVIDIA's GPUs by `nvidia-smi`, and why there are none where its driver says so."""
    query = [f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    answer = said(["nvidia-smi", *query])
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines()]
    rows = [row for row in rows if len(row) == len(GPU_FIELDS) and row[1].isdigit()]
    gpus = [
        {
            "name": name[:100],
            "memory_bytes": int(mib) << 20,
            "driver": driver[:40],
            "ecc_errors": int(errors) if errors.isdigit() else 0,
            "throttle": int(mask, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", mask) else 0,
        }
        for name, mib, driver, errors, mask in rows[:LONGEST_LIST]
    ]
    return gpus, "" if gpus else answer.strip().split("\n")[0]


def limit(which: int) -> int:
    """A resource limit of this process; -1 where there is none."""
    soft = resource.getrlimit(which)[0]
    return -1 if soft == resource.RLIM_INFINITY else soft


def free_bytes(path: str) -> int | None:
    """Free bytes of the disk or memory behind a path."""
    with suppress(OSError):
        return shutil.disk_usage(path).free
    return None


def said(command: list[str], environment: dict[str, str] | None = None) -> str:
    """What a program prints; nothing where it does not exist or takes too long."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROGRAM_LIMIT_S,
            cwd="/",
            env=environment,
            check=False,
        )
        return done.stdout.decode(errors="replace")
    return ""


def folders(folder: Path) -> list[Path]:
    """What stands in a folder, sorted; nothing where it is none."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def number(path: Path) -> float | None:
    """The number in a small file of the kernel."""
    with suppress(ValueError):
        return float(text(path))
    return None


def text(path: Path) -> str:
    """The text of a small file of the kernel, or nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
