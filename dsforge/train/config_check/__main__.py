"""The child: `python -m dsforge.train.config_check FOLDER N` reads 0.json to N-1.json.

It prints one line for each: `accepted` or `refused`. What a trainer fills in (`auto`) is left out,
as a trainer would have put a value there.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from dsforge.confine import EndedError, Limits, confined
from dsforge.train.config_check import ACCEPTED, REFUSED

LIMITS = Limits(seconds=20.0, memory_bytes=1 << 30, answer_bytes=1 << 10)
TOTAL, MICRO, STEPS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)


def on_one_rank(config: dict[str, Any]) -> dict[str, Any]:
    """The config with the batch of one rank, where any number of ranks fits the whole batch."""
    sizes = [config.get(key) for key in (TOTAL, MICRO, STEPS)]
    total, micro, steps = (size if type(size) is int and size > 0 else 1 for size in sizes)
    fits = MICRO in config and total % (micro * steps) == 0
    return {**config, TOTAL: micro * steps} if fits and TOTAL in config else config


def filled(config: dict[str, Any]) -> dict[str, Any]:
    """The config without values that a trainer fills in, and with a batch size."""
    return {
        key: filled(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if value != "auto"
    }


def reading(path: Path) -> bytes:
    """The verdict on one text."""
    import hjson
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.config_utils import dict_raise_error_on_duplicate_keys as once

    try:
        text = path.read_text(encoding="utf-8")
        config = filled(dict(hjson.loads(text, object_pairs_hook=once)))
        if TOTAL not in config and MICRO not in config:
            config[MICRO] = 1
        DeepSpeedConfig(on_one_rank(config))
    except Exception:  # whatever it is, every rank would end with it
        return REFUSED.encode()
    return ACCEPTED.encode()


def main() -> int:
    """Read every text, each in a fork of its own."""
    import deepspeed.runtime.config  # noqa: F401 - before the forks, which have little memory

    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    for number in range(count):
        try:
            verdict = confined(partial(reading, folder / f"{number}.json"), LIMITS).decode()
        except EndedError:
            verdict = REFUSED
        sys.stdout.write(f"\n{verdict}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
