"""Simple ceilings of the machine, which explain the step times: products, memory, copies, links.

A few seconds in all. Each rate is the best of several turns, so it is what the card can do, not
what it does under load; random numbers, because zeros run faster than anything that trains.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpu.ranks import Report

# tokens, inputs, outputs: square ones, then layers of Llama-3-8B, Llama-3.2-1B, Llama-2-7B
SHAPES = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 4096, 14336),
    (4096, 14336, 4096),
    (4096, 2048, 8192),
    (8192, 4096, 11008),
    (1024, 2048, 8192),
)
DRY_SHAPES = ((128, 128, 128), (256, 256, 512))
TURNS, BEST_OF = 10, 3


def ceilings(task: dict[str, Any], report: Report) -> None:
    """Measure on this rank; collectives with all ranks where there are several."""
    import torch

    from dsforge.train.parallel.ranks import choose_device, join, leave, place_of_process

    place = place_of_process()
    choose_device(place)
    cuda = task["cuda"]
    if cuda:
        torch.cuda.set_device(place.local_rank)
    device = torch.device("cuda", place.local_rank) if cuda else torch.device("cpu")
    size = 1 << (30 if cuda else 22)
    report.add(phase="products")
    found: dict[str, Any] = {"matmul_tflops": _products(device, SHAPES if cuda else DRY_SHAPES)}
    report.add(phase="copies")
    found["device_memory_gb_per_s"] = _memory(device, size)
    if cuda:
        found |= _host_copies(device, size // 2)
    if place.world_size > 1:
        join(place)
        report.add(phase="collectives")
        found["all_reduce_bus_gb_per_s"] = _all_reduce(device, size // 4, place.world_size)
        leave()
    report.add(phase="done", outcome="measured", ceilings=found)


def _products(device: Any, shapes: tuple[tuple[int, int, int], ...]) -> dict[str, float]:
    """TFLOP/s of bf16 matrix products, by shape."""
    import torch

    rates = {}
    for tokens, inputs, outputs in shapes:
        left = torch.randn(tokens, inputs, dtype=torch.bfloat16, device=device)
        right = torch.randn(inputs, outputs, dtype=torch.bfloat16, device=device)
        product = torch.empty(tokens, outputs, dtype=torch.bfloat16, device=device)
        one_s = _seconds(lambda a=left, b=right, c=product: torch.mm(a, b, out=c), device)
        rates[f"{tokens}x{inputs}x{outputs}"] = 2 * tokens * inputs * outputs / one_s / 1e12
    return rates


def _memory(device: Any, size_bytes: int) -> float:
    """GB/s of a copy on the device, read and written bytes counted."""
    import torch

    source = torch.ones(size_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size_bytes / _seconds(lambda: target.copy_(source), device) / 1e9


def _host_copies(device: Any, size_bytes: int) -> dict[str, float]:
    """GB/s between page-locked host memory and the device, each way."""
    import torch

    host = torch.ones(size_bytes, dtype=torch.uint8).pin_memory()
    card = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    to_card = _seconds(lambda: card.copy_(host, non_blocking=True), device)
    to_host = _seconds(lambda: host.copy_(card, non_blocking=True), device)
    rates = size_bytes / to_card / 1e9, size_bytes / to_host / 1e9
    return {"host_to_device_gb_per_s": rates[0], "device_to_host_gb_per_s": rates[1]}


def _all_reduce(device: Any, size_bytes: int, ranks: int) -> float:
    """Bus bandwidth of an all-reduce in GB/s, in the convention of nccl-tests."""
    import torch
    import torch.distributed

    tensor = torch.zeros(size_bytes // 2, dtype=torch.bfloat16, device=device)
    one_s = _seconds(lambda: torch.distributed.all_reduce(tensor), device)
    return 2 * (ranks - 1) / ranks * size_bytes / one_s / 1e9


def _seconds(act: Callable[[], Any], device: Any) -> float:
    """Seconds of one turn: the best of a few groups of turns, after a warm-up."""
    import torch

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    act()
    best = float("inf")
    for _ in range(BEST_OF):
        wait()
        begin = time.perf_counter()
        for _ in range(TURNS):
            act()
        wait()
        best = min(best, (time.perf_counter() - begin) / TURNS)
    return best
