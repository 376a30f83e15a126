"""Keys of a config that change memory or time and have no price, and keys that nobody reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dsforge.ds_config.config import DsConfig
from dsforge.ds_config.keys import BLOCKS, Treatment, treatment
from dsforge.errors import Problem

SWITCHES = ("enabled", "deepcompile")
WHEN: dict[str, Callable[[DsConfig], bool]] = {
    "": lambda _: True,
    "stage 1 or 2": lambda config: config.zero_stage in (None, 1, 2),
    "stage 3": lambda config: config.zero_stage in (None, 3),
    "stage 3 without Muon": lambda config: (
        config.zero_stage in (None, 3) and config.optimizer_name != "muon"
    ),
    "an offloaded optimizer": lambda config: config.offload_optimizer != "none",
    "NVMe": lambda config: config.swaps,
    "sequence parallelism": lambda config: config.sequence_parallel_size > 1,
    "tensor parallelism": lambda config: config.tensor_parallel_size > 1,
}


def unpriced(settings: Mapping[str, Any], config: DsConfig) -> tuple[Problem, ...]:
    """A problem for every key that changes memory or time and has no price."""
    return tuple(
        Problem(
            "ds-config-unpriced",
            f"`{path}` (={'on' if isinstance(value, Mapping) else str(value)[:60]}) is not "
            "supported by the estimate: "
            f"{treated.reason}",
            "remove it to estimate the rest",
        )
        for path, value, treated in _treatments(settings, "")
        if treated is not None and treated.kind == "refused"
        if WHEN[treated.when](config) and not _is_off(value, treated)
    )


def unknown(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Dotted paths of the keys that no release of DeepSpeed reads."""
    return tuple(path for path, _, treated in _treatments(settings, "") if treated is None)


def _treatments(
    values: Mapping[str, Any], above: str
) -> Iterator[tuple[str, object, Treatment | None]]:
    """Every key with its treatment; of a block whose keys differ in theirs, the keys."""
    for key, value in values.items():
        path = f"{above}.{key}" if above else str(key)
        if path not in BLOCKS:
            yield path, value, treatment(path)
        elif isinstance(value, Mapping):
            yield from _treatments(value, path)


def _is_off(value: object, treated: Treatment) -> bool:
    """Whether a value leaves the engine as it is priced."""
    if not isinstance(value, Mapping):
        absent = value in (None, "auto", []) or (value is False and treated.off is not True)
        return absent or value == treated.off
    if treated.by_presence:
        return value.get("enabled") is False or not any(value.values())
    return not _is_switched_on(value)


def _is_switched_on(block: Mapping[str, Any]) -> bool:
    """Whether a switch of a block, or of a block inside it, is on."""
    waiting = [block]
    while waiting:
        values = waiting.pop()
        if any(values.get(name) not in (None, False, "auto") for name in SWITCHES):
            return True
        waiting += [value for value in values.values() if isinstance(value, Mapping)]
    return False
