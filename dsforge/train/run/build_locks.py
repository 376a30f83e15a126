"""Locks that a killed build of a C++ op left behind: the next start would wait for them silently.

Until torch 2.13 the lock of a build is a file that exists, and it outlives a build that is killed.
`dsforge preflight` checks all hosts for them (`preflight/remote/software.py`); here a rank looks
before it would wait. Where other hosts may build in the same folder it only says what it saw.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

KERNEL_LOCKS = (2, 14)  # from this torch on the kernel ends a lock with its holder
FRESH_S = 30.0  # a build may just be starting
LOCAL = frozenset(("btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"))


def free_builds(say: Callable[[str], None]) -> None:
    """Remove locks that nobody can hold, and name those that nobody on this host holds."""
    if kernel_locks():
        return
    for lock in sorted(_root().glob("*/lock")):
        with suppress(OSError):
            if not is_abandoned(lock):
                continue
            age = f"{(time.time() - lock.stat().st_mtime) / 60:.0f} min"
            if _is_local(lock):
                lock.unlink()
                say(f"{lock}, left by a build that was killed {age} ago, was removed")
            else:
                say(f"{lock}, {age} old, is of no build on this host: if no build runs on")
                say(
                    f"another host, remove it; this run waits for it if it needs {lock.parent.name}"
                )


def kernel_locks() -> bool:
    """Whether the installed torch locks its builds by the kernel."""
    parts = version("torch").split(".")[:2]
    return tuple(int(part) for part in parts) >= KERNEL_LOCKS


def is_abandoned(lock: Path) -> bool:
    """Whether no build of this host can hold a lock: no process works there, and it is not new."""
    if time.time() - lock.lstat().st_mtime < FRESH_S:
        return False
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if link.readlink() == lock.parent.resolve():
                return False
    return True


def _root() -> Path:
    """Where torch builds ops (`torch.utils.cpp_extension`)."""
    if given := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(given)
    import torch

    cuda = torch.version.cuda
    accelerator = "cpu" if cuda is None else f"cu{cuda.replace('.', '')}"
    tag = f"py{sys.version_info.major}{sys.version_info.minor}"
    abi = getattr(sys, "abiflags", "") or sysconfig.get_config_var("abiflags") or ""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "torch_extensions" / f"{tag}{abi}_{accelerator}"


def _is_local(path: Path) -> bool:
    """Whether a file lies on a disk of this machine, where no other host can build."""
    place, found = path.resolve(), ("", "")
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, point, kind, *_ = line.split(" ")
        if place.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found[1] in LOCAL
