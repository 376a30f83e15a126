"""Memory that ran out: on the device, in the host, in /dev/shm, or a limit on it."""

from __future__ import annotations

import re

from dsforge.diagnose.rule import ESTIMATE, Hit, Rule
from dsforge.diagnose.rules.frames import host_moment, moment

_SIZE = r"(\d+(?:\.\d+)?) ?([KMG]i?B|bytes)"
_FACTOR = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6,
           "gb": 10**9}  # fmt: skip
_FIGURES = {
    "tried": rf"Tried to allocate {_SIZE}",
    "total": rf"(?:has a total capaci?ty of |; ){_SIZE}(?: total capacity)?",
    "free": rf"(?:of which {_SIZE} is free|; {_SIZE} free)",
    "allocated": rf"(?:allocated memory {_SIZE} is allocated|; {_SIZE} already allocated)",
    "unused": rf"and {_SIZE} is reserved by PyTorch but unallocated",
    "reserved": rf"{_SIZE} reserved in total by PyTorch",
    "in_use": rf"(?:this process|Process \d+) has {_SIZE} memory in use",
}
_SPLIT = 0.1  # of the device: more than that reserved but unallocated is fragmentation


def figures(text: str) -> dict[str, int]:
    """The bytes that torch's out-of-memory message names, by name."""
    found = {name: re.search(pattern, text) for name, pattern in _FIGURES.items()}
    return {name: _bytes(match) for name, match in found.items() if match}


def _bytes(match: re.Match[str]) -> int:
    number, unit = (group for group in match.groups() if group)
    return round(float(number) * _FACTOR[unit.lower()])


def _device(hits: tuple[Hit, ...]) -> dict[str, str]:
    """Moment, shortfall and the remedy for that moment."""
    hit = hits[0]
    known = figures(hit.text)
    when, remedy = moment(hit.before, hit.phase)
    size = f"{known['tried'] / 2**30:.2f} GiB" if "tried" in known else "memory"
    over = _shortfall(known)
    unused = known.get("unused", known.get("reserved", 0) - known.get("allocated", 0))
    if known.get("total") and unused > _SPLIT * known["total"]:
        remedy = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + remedy
    ranks = sorted({h.rank for h in hits if h.rank is not None})
    who = f"rank {ranks[0]}" if ranks else "a rank"
    return {"size": size, "over": over, "moment": when, "remedy": remedy, "who": who}


def _shortfall(known: dict[str, int]) -> str:
    """How much was missing, where the message says enough."""
    if not {"tried", "free"} <= known.keys():
        return ""
    missing = (known["tried"] - known["free"]) / 2**30
    total = f" of {known['total'] / 2**30:.1f} GiB" if "total" in known else ""
    return f" {missing:.2f} GiB more than was free{total}" if missing > 0 else ""


RULES = (
    Rule(
        "cuda-out-of-memory",
        ("out of memory", "cublas_status_alloc_failed"),
        r"(?:CUDA|HIP|NPU|XPU) out of memory|CUDA error: out of memory|"
        r"Cuda failure (?:\d+ )?'out of memory'|CUBLAS_STATUS_ALLOC_FAILED",
        "GPU memory ran out on {who} {moment}: it asked for {size},{over}".rstrip(","),
        "what the step needs at that moment is larger than the card",
        "{remedy}\n" + ESTIMATE + "   # which term dominates, what makes it fit",
        "torch c10/cuda/CUDACachingAllocator.cpp; axolotl-ai-cloud/axolotl#1439",
        confidence=0.95,
        read=_device,
    ),
    Rule(
        "slurm-host-memory",
        ("oom-kill event", "oom_kill event", "out_of_memory", "exceeded memory limit", "oomkilled"),
        r"oom[-_]kill event|Exceeded (?:job|step) memory limit|OUT_OF_MEMORY|OOMKilled",
        "the job's memory limit was reached{phase}: the scheduler's cgroup killed a process",
        "offloaded states, one copy of the model per rank and pinned buffers count against the "
        "limit of the job, not against the machine's memory",
        "{remedy}\n#SBATCH --mem=0   # all of the node's memory; Kubernetes: limits.memory",
        "slurmstepd; deepspeedai/DeepSpeed#4571",
        confidence=0.95,
        explains=("killed", "exit-code"),
        read=host_moment,
    ),
    Rule(
        "kernel-oom",
        ("out of memory: killed process", "memory cgroup out of memory", "invoked oom-killer"),
        r"Out of memory: Killed process (?P<pid>\d+)|Memory cgroup out of memory|oom-killer",
        "the kernel killed a process because host memory ran out{phase}",
        "CPU offload, loading on every rank and gathering for a save all peak in host memory",
        "{remedy}\n" + ESTIMATE + "   # host RAM by phase",
        "Linux mm/oom_kill.c",
        confidence=0.95,
        explains=("killed", "exit-code"),
        read=host_moment,
    ),
    Rule(
        "host-allocation",
        ("defaultcpuallocator", "cannot allocate memory", "std::bad_alloc", "memoryerror"),
        r"DefaultCPUAllocator: (?:can't|not enough)[^\n]{0,80}?(?:allocate (?P<bytes>\d+) bytes)?|"
        r"OSError: \[Errno 12\] Cannot allocate memory|std::bad_alloc|\bMemoryError\b",
        "host memory ran out{phase}: an allocation was refused",
        "the process reached its limit (ulimit -v, cgroup) or the machine its memory",
        "{remedy}\n$ ulimit -v unlimited   # where a limit was set",
        "torch c10/core/CPUAllocator.cpp",
        read=host_moment,
    ),
    Rule(
        "shared-memory-small",
        ("shared memory", "bus error", "shm/nccl"),
        r"out of shared memory|Error while (?:creating|attaching to) shared memory segment|"
        r"unable to (?:open|write|mmap|allocate) (?:to )?(?:file|shared memory)[^\n]{0,40}"
        r"(?:/dev/shm|/torch_)|/dev/shm/[^\n]{0,200}No space left|Bus error\. It is possible",
        "`/dev/shm` is too small for what workers and NCCL exchange through it",
        "containers get 64 MiB of shared memory unless told otherwise",
        "$ docker run --shm-size=16g --ulimit memlock=-1 ...\n"
        "# Kubernetes: an emptyDir with medium: Memory at /dev/shm",
        "torch/utils/data/_utils/signal_handling.py; NCCL src/misc/shmutils.cc",
        explains=("peer-lost", "nccl-error"),
    ),
    Rule(
        "locked-memory-limit",
        ("ibv_", "memlock", "cudahostalloc", "cudahostregister", "mlock"),
        r"ibv_(?:reg_mr|create_cq|create_qp|modify_qp)\w*[^\n]{0,60}Cannot allocate memory|"
        r"(?:cudaHostAlloc|cudaHostRegister|mlock)[^\n]{0,60}(?:failed|out of memory|Cannot)",
        "the limit on locked memory is too low for InfiniBand or pinned buffers",
        "RDMA and pinned buffers must be locked in RAM; the default limit is 64 KiB to 8 MiB",
        "# /etc/security/limits.conf on every node\n*  soft  memlock  unlimited\n"
        "*  hard  memlock  unlimited\n$ docker run --ulimit memlock=-1 ...",
        "NCCL src/misc/ibvwrap.cc",
        explains=("nccl-error", "peer-lost"),
    ),
)
