"""Capacity: RAM, shared memory and disks are large enough for the plan."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.plan import Plan
from dsforge.planner.pricing import missing
from dsforge.preflight.case import Case, check
from dsforge.preflight.host_facts import HostFacts
from dsforge.units import GIB, gib

SHM_RANK_BYTES = 70 << 20  # DeepSpeed's CPU collectives map 66 MiB a rank; NCCL less
MIN_FREE_BYTES = GIB  # logs and small files, where no plan knows the size of a checkpoint
MIN_TMP_BYTES = 256 << 20  # the objects of the largest C++ op
KEPT = 2  # the last checkpoint stands until the next is whole


@check(
    "memory-limit",
    "memory",
    "error",
    why="The kernel kills the largest process (signal 9) without a message; in a container "
    "this happens at the cgroup's limit, which `free` does not show.",
)
def memory_limit(case: Case) -> Iterator[Hit]:
    """A host with less RAM, or a lower limit on it, than the plan needs."""
    plan = case.job.plan
    if plan is None:
        return
    for host, facts in case.hosts.items():
        cluster = plan.cluster.model_copy(update={"host_memory_bytes": facts.memory_bytes})
        short = missing(cluster, plan.choice.memory)["host"] * cluster.gpus_per_node
        if short > 0:
            message = f"has {gib(facts.memory_bytes)} of RAM within its limits, "
            needed = f"and the plan needs {gib(short)} more{_largest(plan)}"
            fix = (
                "raise the memory limit of the container (docker --memory, limits.memory, Slurm's "
                "--mem), or plan with the available RAM: `host_memory_gib` in the cluster file"
            )
            yield Hit((host,), message + needed, fix)


def _largest(plan: Plan) -> str:
    """The phase with the largest need, where ranks use RAM besides a device."""
    if plan.cluster.gpu.is_cpu:
        return ""
    phases = plan.choice.memory.host_bytes.model_dump()
    return f", most of it in phase `{max(phases, key=lambda name: int(phases[name]))}`"


@check(
    "shm-small",
    "memory",
    "error",
    why="Ranks of one host communicate through /dev/shm, which has 64 MiB in a container by "
    "default: a "
    "bus error, or NCCL's `unhandled system error`.",
)
def shm_small(case: Case) -> Iterator[Hit]:
    """A host whose /dev/shm is too small for its ranks."""
    for entry in case.job.entries:
        facts = case.hosts.get(entry.address)
        if facts is None or facts.shm_free_bytes is None:
            continue
        needed = entry.slots * SHM_RANK_BYTES
        if facts.shm_free_bytes < needed:
            message = f"shared memory: {_mib(facts.shm_free_bytes)} free; {entry.slots} ranks need "
            fix = (
                "`mount -o remount,size=8g /dev/shm`, docker `--shm-size 8g`, a memory-backed "
                "emptyDir in Kubernetes; or remove files of earlier runs there"
            )
            yield Hit((entry.address,), message + _mib(needed), fix)


@check(
    "disk-full",
    "disk",
    "error",
    why="The first checkpoint is written hours after the start; a full disk is noticed only then.",
)
def disk_full(case: Case) -> Iterator[Hit]:
    """A run folder without enough free space for a checkpoint."""
    plan = case.job.plan
    size = plan.choice.memory.checkpoint_bytes if plan else 0
    needed = max(KEPT * size, MIN_FREE_BYTES)
    for host, facts in case.hosts.items():
        free = facts.folder.free_bytes
        if facts.folder.exists and free is not None and free < needed:
            what = f"{KEPT} checkpoints need" if KEPT * size > MIN_FREE_BYTES else "a run needs"
            message = f"{_mib(free)} free for {case.job.folder}; {what} {_mib(needed)}"
            fix = "free some space there, or set `output` in train.yaml to a larger disk"
            yield Hit((host,), message, fix)


@check(
    "tmp-full",
    "disk",
    "warning",
    why="Compilers, data workers and sockets of torch write to /tmp; if it is full, they fail "
    "with unrelated errors.",
)
def tmp_full(case: Case) -> Iterator[Hit]:
    """A host whose /tmp is nearly full."""
    for host, facts in case.hosts.items():
        free = facts.tmp_free_bytes
        if free is not None and free < MIN_TMP_BYTES:
            message = f"its temporary folder has {_mib(free)} free of {_mib(MIN_TMP_BYTES)}"
            yield Hit((host,), message, "free some space there, or set TMPDIR in .deepspeed_env")


def _offloading(case: Case) -> Iterator[tuple[str, HostFacts]]:
    """Hosts of a job that keeps states on disk."""
    return iter(case.hosts.items() if case.job.config.swaps else ())


@check(
    "nvme-direct",
    "disk",
    "error",
    why="DeepSpeed opens its swap files with O_DIRECT, which tmpfs and some network disks refuse: "
    "`Invalid argument`, after the model is built.",
)
def nvme_direct(case: Case) -> Iterator[Hit]:
    """A folder for NVMe offload that does not support O_DIRECT."""
    for host, facts in _offloading(case):
        if facts.nvme is not None and facts.nvme.error:
            message = (
                f"{facts.nvme.path} does not support direct I/O (O_DIRECT): {facts.nvme.error}"
            )
            fix = "set `nvme: path` in the cluster file to a folder on a local disk (ext4, xfs)"
            yield Hit((host,), message, f"{fix} with write permission")


@check("nvme-full", "disk", "error", why="The swap files are written while the optimizer is built.")
def nvme_full(case: Case) -> Iterator[Hit]:
    """A folder for NVMe offload with less free space than the plan needs."""
    plan = case.job.plan
    for host, facts in _offloading(case):
        free = facts.nvme.free_bytes if facts.nvme else None
        if plan is None or free is None or facts.nvme is None:
            continue
        needed = plan.choice.memory.nvme_bytes
        if free < needed:
            message = f"{facts.nvme.path} has {gib(free)} free; the plan puts {gib(needed)} there"
            yield Hit((host,), message, "free some space, or set a larger disk in the cluster file")


def _mib(value: int) -> str:
    """Bytes in MiB, or in GiB where that is easier to read."""
    return gib(value) if value >= GIB else f"{value / (1 << 20):.0f} MiB"
