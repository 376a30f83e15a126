"""The device: matrix products, memory, copies to and from the host; CPU Adam and the disk.

Every rank measures at the same time: cards of a node share power and PCIe, CPU ranks share memory.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from deepspeed.accelerator import get_accelerator
from torch.utils import cpp_extension

from dsforge.probe.disk_speed import measured
from dsforge.probe.messages import Answer, Product, Question, Rate, Skipped
from dsforge.probe.node_facts import DiskFact
from dsforge.probe.rank.location import Standing
from dsforge.probe.rank.timing import Clock
from dsforge.specs import Precision

DTYPES: dict[Precision, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}
SQUARE, CPU_SQUARE = 8192, 1024
MOST_ELEMENTS, MOST_CPU_ELEMENTS = 1 << 28, 1 << 22  # of one matrix of a product
COPY_BYTES, CPU_COPY_BYTES = 1 << 30, 128 << 20
ADAM_PARAMETERS = 8_000_000


class _Best(NamedTuple):
    """The rates of all ranks for one thing."""

    slowest: float
    fastest: float
    name: str

    def rate(self, **more: object) -> Rate:
        """What is said about it."""
        fields = {"per_s": self.slowest, "best_per_s": self.fastest, "slowest": self.name}
        return Rate.model_validate({**fields, **more})


def device_rates(question: Question, standing: Standing, clock: Clock) -> Iterator[Answer]:
    """Rates of the device and of the host behind it, in the order of what they are worth."""
    for precision in question.precisions:
        if precision in DTYPES and clock.has_time():
            flops = max(_flops(product, precision, clock) for product in _products(question))
            found = _every(flops, standing)
            yield found.rate(what="product", precision=precision)
    for what, per_s in _copies(clock):
        yield _every(per_s, standing).rate(what=what)
    yield from _adam(standing, clock)
    yield from _disk(question, standing, clock)


def _is_cpu() -> bool:
    return bool(get_accelerator().device_name() == "cpu")


def _every(own: float, standing: Standing) -> _Best:
    """The slowest and the fastest rank."""
    import torch.distributed

    rates: list[tuple[float, str]] = [(own, standing.name)] * standing.place.world_size
    torch.distributed.all_gather_object(rates, (own, standing.name))
    slowest = min(rates)
    return _Best(slowest[0], max(rates)[0], slowest[1])


def _products(question: Question) -> tuple[Product, ...]:
    """The plan's products, as far as they are worth their memory, and one large square."""
    side, most = (CPU_SQUARE, MOST_CPU_ELEMENTS) if _is_cpu() else (SQUARE, MOST_ELEMENTS)
    found = [Product(rows=side, inputs=side, outputs=side)]
    for product in question.products:
        rows = max(1, min(product.rows, most // max(product.inputs, product.outputs)))
        if product.inputs * product.outputs <= most:
            found.append(product.model_copy(update={"rows": rows}))
    return tuple(found)


def _flops(product: Product, precision: Precision, clock: Clock) -> float:
    """FLOP/s of one product on this rank."""
    device, dtype = get_accelerator().current_device_name(), DTYPES[precision]
    left = torch.ones(product.rows, product.inputs, dtype=dtype, device=device)
    right = torch.ones(product.inputs, product.outputs, dtype=dtype, device=device)
    target = torch.empty(product.rows, product.outputs, dtype=dtype, device=device)
    seconds = clock.own_s(lambda: torch.matmul(left, right, out=target))
    return 2 * product.rows * product.inputs * product.outputs / seconds


def _copies(clock: Clock) -> Iterator[tuple[str, float]]:
    """Bytes/s in the device's memory (read and written), to the device and back."""
    device, size = get_accelerator().current_device_name(), COPY_BYTES
    pinned = not _is_cpu()
    if not pinned:
        size = CPU_COPY_BYTES
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    yield "memory", 2 * size / clock.own_s(lambda: target.copy_(source))
    host = torch.ones(size, dtype=torch.uint8, pin_memory=pinned)
    yield "to_device", size / clock.own_s(lambda: target.copy_(host, non_blocking=pinned))
    yield "to_host", size / clock.own_s(lambda: host.copy_(source, non_blocking=pinned))


def _adam(standing: Standing, clock: Clock) -> Iterator[Answer]:
    """Parameters/s of one node: of DeepSpeed's CPU Adam where it is built, else of torch's."""
    if not clock.has_time():
        yield Skipped(what="CPU Adam", why="no time was left")
        return
    parameter = torch.nn.Parameter(torch.ones(ADAM_PARAMETERS))
    parameter.grad = torch.full_like(parameter, 1e-3)
    step, how = torch.optim.AdamW([parameter], fused=True).step, "AdamW of torch"
    if _load_built_adam():
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        step, how = DeepSpeedCPUAdam([parameter], adamw_mode=True).step, "DeepSpeedCPUAdam"
    per_s = standing.per_node * ADAM_PARAMETERS / clock.own_s(step)
    yield _every(per_s, standing).rate(what="adam", how=how)


def _load_built_adam() -> bool:
    """Whether DeepSpeed's CPU Adam is built; it is loaded then.

    Nothing is built here, and the builder, which might, is told that its work is done: a build that
    is cut short leaves a lock behind, and every later run waits for it.
    """
    from deepspeed.ops.op_builder import CPUAdamBuilder

    name, loaded = CPUAdamBuilder.NAME, CPUAdamBuilder._loaded_ops  # noqa: SLF001
    folder = Path(cpp_extension._get_build_directory(name, False))  # noqa: SLF001 (no public way)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.so")
    if name in loaded or spec is None or spec.loader is None:
        return name in loaded
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:  # not built, or for another torch
        return False
    loaded[name] = module
    return True


def _disk(question: Question, standing: Standing, clock: Clock) -> Iterator[Answer]:
    """Bytes/s of the slowest node's disk."""
    if question.disk is None:
        return
    folder = next(p for p in (Path(question.disk), *Path(question.disk).parents) if p.is_dir())
    fast = float("inf"), float("inf")
    why = "" if clock.has_time() else "no time was left"
    if standing.place.local_rank == 0 and not why:
        disk = measured(DiskFact(mount=str(folder), device="", free_bytes=0))
        fast = disk.read_bytes_per_s or 0.0, disk.write_bytes_per_s or 0.0
    read, write = (_every(per_s, standing) for per_s in fast)
    if why or min(read.slowest, write.slowest) == 0.0:
        yield Skipped(what=f"disk at {folder}"[:100], why=why or "no file can be written there")
        return
    yield read._replace(fastest=read.slowest).rate(what="disk_read")
    yield write._replace(fastest=write.slowest).rate(what="disk_write")
