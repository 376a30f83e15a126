"""How fast the CPU multiplies and copies: measured with numpy, else rated from what /proc says.

numpy is no part of the core installation. Without it the products are rated: FLOPs that a core can
do per cycle by its vector unit, times the clock, times the share that a timed product reaches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from dsforge.preflight.remote.machine import ROOT, number, text

MATRIX, COPY_BYTES, TIMING_S = 64, 64 << 20, 0.15
# fp32 FLOPs a cycle of one core: two fused multiply-add units of that width (Intel 64 and IA-32
# Optimization Reference Manual, tables of the Skylake and Haswell ports; AMD's guides for Zen 2 to
# 5; Arm Neoverse V1 guide). Cores without FMA add and multiply in one 128-bit unit each.
FLOPS_PER_CYCLE = (("avx512f", 64), ("avx2", 32), ("asimd", 16), ("sse2", 8))
USUAL_HZ = 2.5e9  # base clock of most server cores
REACHED_SHARE = 0.5  # of that peak by a small product; logical cores may share a vector unit


class CpuSpeed(NamedTuple):
    """Rates of all cores together."""

    flops: float  # fp32 matrix products, FLOP/s
    bytes_per_s: float  # copy in RAM, read and written bytes
    note: str  # why the products were not measured; empty where they were


def cpu_speed(cores: int, root: Path = ROOT) -> CpuSpeed:
    """FLOP/s and bytes/s of the CPU; takes 0.3 s at most."""
    copied = _copied_bytes_per_s()
    if find_spec("numpy"):
        return CpuSpeed(cores * _measured_flops(), copied, "")
    note = "matrix products of the CPU are rated, not measured, because numpy is not installed"
    return CpuSpeed(cores * rated_flops(root), copied, note)


def rated_flops(root: Path = ROOT) -> float:
    """FLOP/s of fp32 products that one logical core reaches, by its vector unit and clock."""
    facts = text(root / "proc/cpuinfo")
    flags = set(facts.split())
    per_cycle = next((flops for name, flops in FLOPS_PER_CYCLE if name in flags), 8)
    khz = number(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    mhz = [float(line.partition(":")[2]) for line in facts.splitlines() if "cpu MHz" in line]
    clock = khz * 1e3 if khz else max(mhz) * 1e6 if mhz else USUAL_HZ
    return REACHED_SHARE * per_cycle * clock


def _measured_flops() -> float:
    """FLOP/s of fp32 products on one core.

    One core is timed and multiplied: BLAS runs so small a product in one thread, and a threaded one
    on a busy machine measures how its threads wait for each other, ten times too slow.
    """
    import numpy as np

    matrix = np.ones((MATRIX, MATRIX), dtype=np.float32)
    product = np.empty_like(matrix)
    return 2 * MATRIX**3 * _per_second(lambda: np.matmul(matrix, matrix, out=product))


def _copied_bytes_per_s() -> float:
    """Bytes read and written by a copy in RAM."""
    source, target = memoryview(bytearray(COPY_BYTES)), memoryview(bytearray(COPY_BYTES))

    def copy() -> None:
        target[:] = source

    return 2 * COPY_BYTES * _per_second(copy)


def _per_second(work: Callable[[], object]) -> float:
    """How often the work can be done in a second, by its fastest time: others use the CPU too."""
    work()
    end, fastest_s = time.perf_counter() + TIMING_S, float("inf")
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        fastest_s = min(fastest_s, time.perf_counter() - start)
    return 1 / fastest_s
