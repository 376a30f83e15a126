"""Constants that the predictor fits: which they are, and other values in their place."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from dsforge.engines import ENGINES
from dsforge.traced import Constant
from dsforge.units import Interval

ROOMS = ("dsforge.estimate", "dsforge.planner", "dsforge.engines", "dsforge.validate")
NOTHING = 1e-6  # a wait that nobody has seen, as a share of the present one

# Every fitted constant: its module, and its value where nothing is known of it.
ESTIMATE: dict[str, dict[str, float | None]] = {
    "estimate.rates": {
        "STEP_SHARE": 1.0,
        "POWER_KNEE": None,
        "POWER_FALL": 0.0,
        "BANDWIDTH_SHARE": 1.0,
        "KERNEL_S": 0.0,
        "CUDNN_SHARE": 1.0,
        "FLASH2_SHARE": 1.0,
        "FLASH2_FALL": 0.0,
        "HALF_LENGTH": None,
        "DETERMINISTIC_SHARE": 1.0,
    },
    "estimate.layer_time": {
        "QUANTISE_BYTES": 0.0,
        "UNFUSED_SHARE": 1.0,
        "SELECTIVE_SHARE": 0.5,
    },
    "estimate.traffic": {
        "GRADIENT_OVERLAP": 0.0,
        "GATHER_OVERLAP": 1.0,
        "NEVER_HIDDEN": 0.0,
        "MESSAGE_BYTES": None,
    },
    "estimate.activation_traffic": {
        "PIPELINE_EXPOSED": 1.0,
        "INTERLEAVED_EXPOSED": 1.0,
        "PIPELINE_OVERLAP": 1.0,
        "OVERLAPPED_TENSOR": 0.0,
    },
    "estimate.comm": {"CONGESTION": 0.0},
    "estimate.time": {"STEP_OVERHEAD_S": 0.0},
    "estimate.offload": {"LINK_SHARE": 1.0, "COPIES_SHOWN": 1.0},
    "estimate.memory": {"CONTEXT": 0.0, "SLACK": 1.0, "LOOSE": 1.0, "CHURN": 0.0, "WORKSPACE": 0.0},
    "engines.megatron": {"LAYER_HOST_S": 0.0, "LOGIT_TRAFFIC_BYTES": None},
    "engines.fsdp": {"LOGIT_TRAFFIC_BYTES": None},
    "engines.torchtune": {"LOGIT_TRAFFIC_BYTES": None},
    "engines.deepspeed": {
        "HOOK_S": 0.0,
        "FAR_HOP_S": 0.0,
        "NEVER_HIDDEN": 0.0,
        "LOGIT_TRAFFIC_BYTES": None,
    },
    "engines.nanotron": {
        "LOGIT_TRAFFIC_BYTES": None,
        "LAYER_HOST_S": 0.0,
        "TENSOR_HOST_S": 0.0,
        "PIPELINE_HOST_S": 0.0,
        "RANK_WAIT_S": 0.0,
        "FAR_WAIT_S": 0.0,
        "SEND_S": 0.0,
        "STALL_S": 0.0,
        "TENSOR_STALLS": 0.0,
    },
}


class Fitted(NamedTuple):
    """A constant, and where it is."""

    name: str  # module.NAME
    value: Any
    neutral: float | None  # none: stays as it is

    @property
    def is_share(self) -> bool:
        """Whether more than 1 has no meaning."""
        return self.neutral == 1.0 and self.size < 1.0

    @property
    def size(self) -> float:
        """The value; of an interval the likely one."""
        return float(self.value.likely if isinstance(self.value, Interval) else self.value)

    def times(self, factor: float) -> Any:
        """The constant, a factor larger."""
        factor = min(factor, 1 / self.size) if self.is_share else factor
        return scaled(self.value, factor)

    @property
    def forgotten(self) -> Any:
        """The constant where nothing is known of it."""
        if self.neutral is None:
            return self.value
        return scaled(self.value, max(self.neutral / self.size, NOTHING))


def scaled(value: Any, factor: float) -> Any:
    """A constant a factor larger, with its name."""
    if isinstance(value, Interval):
        return Interval(*(scaled(end, factor) for end in (value.low, value.likely, value.high)))
    if isinstance(value, Constant):
        return Constant(value * factor, value.name, value.unit, value.source)
    return float(value) * factor


def constants() -> list[Fitted]:
    """Every fitted constant."""
    return [
        Fitted(f"{module}.{name}", getattr(import_module(f"dsforge.{module}"), name), neutral)
        for module, names in ESTIMATE.items()
        for name, neutral in names.items()
    ]


def bindings(value: Any) -> Iterator[tuple[Any, str]]:
    """Where an object is named: modules of the package, and facts of engines."""
    places = [m for n, m in sys.modules.items() if n.startswith("dsforge.") and m is not None]
    for place in (*places, *ENGINES):
        yield from ((place, name) for name, held in vars(place).items() if held is value)


@contextmanager
def holding(changes: Mapping[int, tuple[Any, Any]]) -> Iterator[None]:
    """The predictor with other values in the place of some objects."""
    found = [
        (place, name, old, new) for old, new in changes.values() for place, name in bindings(old)
    ]
    try:
        for place, name, _, new in found:
            set_in(place, name, new)
        forget()
        yield
    finally:
        for place, name, old, _ in found:
            set_in(place, name, old)
        forget()


def set_in(place: Any, name: str, value: Any) -> None:
    """A name bound anew; engines are frozen."""
    object.__setattr__(place, name, value)


def caches() -> Iterator[Any]:
    """Caches of results that rest on constants."""
    kind = type(lru_cache(scaled))
    loaded = [module for name, module in sys.modules.items() if name.startswith(ROOMS)]
    places = [*loaded, *(c for m in loaded for c in vars(m).values() if isinstance(c, type))]
    return (found for place in places for found in vars(place).values() if type(found) is kind)


def forget() -> None:
    """Empty them."""
    for cache in list(caches()):
        cache.cache_clear()
