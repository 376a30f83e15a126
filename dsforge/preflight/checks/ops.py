"""Ops: exactly the C++ ops that this config needs are built on every host, or can be.

DeepSpeed builds an op at its first use, inside the rank, with whatever the host has. Its own report
(`ds_report`) lists all ops of all models; most failures it shows have nothing to do with the run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from dsforge.findings import Hit
from dsforge.preflight.case import Case, Job, check
from dsforge.preflight.host_facts import HostFacts

BUILD_BYTES = 300 << 20  # sources, objects and library of the largest op
ADAM, LION, ADAGRAD, LAMB = ("adam", "adamw"), "lion", "adagrad", ("lamb", "fusedlamb")


GXX, LIBAIO = "`apt-get install g++`", "`apt-get install libaio-dev`"


class Op(NamedTuple):
    """A C++ op: its folder, and what its build asks for beyond a compiler."""

    name: str
    what_for: str
    cuda: bool = False
    libaio: bool = False


def needed_ops(job: Job) -> tuple[Op, ...]:
    """The ops that the engine builds for this config (DeepSpeed 0.19, `runtime/engine.py`)."""
    ops = [Op("deepspeed_shm_comm", "collectives of CPU ranks")] if job.on_cpu else []
    config = job.config
    kind, plain = config.optimizer_name, bool(config.optimizer_parameters.get("torch_adam"))
    on_host = config.offload_optimizer in ("cpu", "nvme")
    on_card = not job.on_cpu
    if kind in ADAM and not plain:
        name = "cpu_adam" if on_host else "fused_adam"
        ops.append(Op(name, f"optimizer {kind}", cuda=on_card and not on_host))
    elif kind == LION:
        ops.append(Op("cpu_lion" if on_host else "fused_lion", "optimizer lion", cuda=not on_host))
    elif kind == ADAGRAD and on_host:
        ops.append(Op("cpu_adagrad", "optimizer adagrad"))
    elif kind in LAMB:
        ops.append(Op("fused_lamb", "optimizer lamb", cuda=on_card))
    if config.swaps:
        ops.append(Op("async_io", "NVMe offload", libaio=True))
    return tuple(ops)


def first_cause(op: Op, facts: HostFacts, *, beside: bool) -> tuple[str, str] | None:
    """The first thing that stops an op from being loaded on a host, and its remedy.

    In the order in which DeepSpeed and torch meet them. Even a finished op is loaded through
    `ninja`, and libaio is tried with the compiler each time.
    """
    tools, python = facts.tools, facts.interpreter
    is_built = op.name in facts.builds.ops
    is_tried = op.libaio or not is_built
    release = ".".join(python.version.split(".")[:2])
    steps = (
        (
            not tools.ninja and not (beside and tools.ninja_beside),
            "ninja is not on the PATH of a remote shell",
            f"`{shlex.quote(python.path)} -m pip install ninja`",
        ),
        (is_tried and not tools.compiler, "there is no C++ compiler", GXX),
        (
            is_tried and not tools.compiler_works,
            f"{tools.compiler} cannot compile a test program",
            GXX,
        ),
        (op.libaio and not tools.has_libaio, "libaio.h or libaio.so is missing", LIBAIO),
        (
            not is_built and not tools.has_python_headers,
            f"{python.headers}/Python.h is missing",
            f"`apt-get install python{release}-dev`",
        ),
        *(_of_cuda(facts) if op.cuda and not is_built else ()),
    )
    return next(((message, fix) for stops, message, fix in steps if stops), None)


def _of_cuda(facts: HostFacts) -> tuple[tuple[bool, str, str], ...]:
    """What stops an op that is compiled for CUDA, each with its message and remedy."""
    tools, python = facts.tools, facts.interpreter
    toolkit = f"install the CUDA {python.cuda} toolkit"
    same_major = python.cuda.partition(".")[0] == tools.nvcc_release.partition(".")[0]
    versions = f"nvcc is of CUDA {tools.nvcc_release}, torch of {python.cuda}"
    return (
        (not python.cuda, "torch is built for the CPU", "install a CUDA build of torch there"),
        (not tools.nvcc, "nvcc is missing", f"{toolkit} or CUDA_HOME"),
        (not same_major, versions, toolkit),
    )


@check(
    "op-unbuildable",
    "ops",
    "error",
    why="The rank fails during its start, and its message is the last of many errors "
    "(`'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'`), never the first.",
)
def op_unbuildable(case: Case) -> Iterator[Hit]:
    """An op that this config needs and a host can neither load nor build, with the first cause."""
    for host, facts in case.hosts.items():
        python = facts.interpreter
        if not python.exists or python.error or "torch" not in python.packages:
            continue  # what is missing there is another finding
        causes: dict[tuple[str, str], list[Op]] = {}
        for op in needed_ops(case.job):
            cause = first_cause(op, facts, beside=case.job.trains_here)
            if cause is not None:
                causes.setdefault(cause, []).append(op)
        for (message, fix), ops in causes.items():
            names = ", ".join(f"{op.name} ({op.what_for})" for op in ops)
            other = "; or `torch_adam: true`, which needs no build" if _is_adam(ops) else ""
            yield Hit((host,), f"cannot build {names}: {message}", f"on {host}: {fix}{other}")


def _is_adam(ops: list[Op]) -> bool:
    return any(op.name.endswith("adam") for op in ops)


@check(
    "op-unbuilt",
    "ops",
    "info",
    why="The first start builds it on every host, which takes one to six minutes with two "
    "cores each; a run stopped during the build leaves a lock.",
)
def op_unbuilt(case: Case) -> Iterator[Hit]:
    """An op that will be built when the run starts."""
    for host, facts in case.hosts.items():
        names = [op.name for op in needed_ops(case.job) if op.name not in facts.builds.ops]
        free = facts.builds.free_bytes
        if names and free is not None and free < BUILD_BYTES:
            message = (
                f"{', '.join(names)} must be built, and the disk of {facts.builds.root} is full"
            )
            yield Hit(
                (host,), message, "free 300 MB there, or set TORCH_EXTENSIONS_DIR", severity="error"
            )
        elif names and "torch" in facts.interpreter.packages:
            fix = "wait for the build at the first start, or build before it"
            yield Hit((host,), f"will be built at the first start: {', '.join(names)}", fix)


@check(
    "op-lock",
    "ops",
    "error",
    why="A build that was killed leaves its lock, and every later run waits for it without a "
    "message; from torch 2.14 on the kernel releases the lock.",
)
def op_lock(case: Case) -> Iterator[Hit]:
    """A build lock whose holder has ended."""
    needed = {op.name for op in needed_ops(case.job)}
    for host, facts in case.hosts.items():
        for lock in facts.builds.locks:
            if lock.is_held:
                continue
            if host in case.left and lock.path not in case.left[host]:
                yield Hit((host,), f"{lock.path} was stale", "it has been removed", severity="info")
                continue
            message = f"{lock.path}, {lock.age_s / 60:.0f} min old, belongs to no process"
            fix = f"`dsforge preflight --fix`, or on {host}: `rm {shlex.quote(lock.path)}`"
            yield Hit((host,), message, fix, severity=None if lock.op in needed else "warning")


@check(
    "op-building",
    "ops",
    "warning",
    why="A second rank that needs the op waits until the first has built it.",
)
def op_building(case: Case) -> Iterator[Hit]:
    """A build that seems to be at work now, of an op that this config needs."""
    needed = {op.name for op in needed_ops(case.job)}
    for host, facts in case.hosts.items():
        names = [lock.op for lock in facts.builds.locks if lock.is_held and lock.op in needed]
        if names:
            message = f"is building {', '.join(names)} now"
            yield Hit((host,), message, "start when it has finished")
