"""Settings that changed before a resume, put into the engine that was restored.

A checkpoint holds the learning rate, the weight decay and the like of the optimizer, and DeepSpeed
loads them over those of the config. What a person has changed since must win.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dsforge.train.checkpoints.run_identity import OPTIMIZER, RATE, Change

SCHEDULE = (RATE, "steps", "schedule", "warmup_steps", "minimum_learning_rate_ratio")


def retune(engine: Any, changes: Sequence[Change]) -> list[str]:
    """Lines that say what changed, after it took effect."""
    scheduler = engine.lr_scheduler
    groups = scheduler.optimizer.param_groups
    said = []
    for change in changes:
        kept = change.name.startswith(OPTIMIZER) and not _set(groups, change)
        said.append(f"{change} (it stays: no new value is given)" if kept else str(change))
        if change.name == RATE and isinstance(change.new, int | float):
            new, old = float(change.new), change.old
            scheduler.base_lrs = [new if rate == old else rate for rate in scheduler.base_lrs]
    if any(change.name in SCHEDULE for change in changes):
        for group, rate in zip(groups, scheduler.get_lr(), strict=True):
            group["lr"] = rate
    return said


def _set(groups: Sequence[dict[str, Any]], change: Change) -> bool:
    """Whether a setting of the optimizer has its new value now, or is none that it keeps."""
    name, new = change.name.removeprefix(OPTIMIZER), change.new
    if not any(name in group for group in groups):
        return True  # the engine was built with it
    if new is None:
        return False
    value = tuple(json.loads(new)) if isinstance(new, str) and new.startswith("[") else new
    for group in groups:
        if name in group:
            group[name] = value
    return True
