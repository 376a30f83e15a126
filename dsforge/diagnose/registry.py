"""All rules, specific ones first: of two that match the same line the earlier one answers."""

from __future__ import annotations

from dsforge.diagnose.rule import Rule
from dsforge.diagnose.rules import (
    build,
    checkpoint,
    collective,
    config,
    data,
    environment,
    job,
    launcher,
    memory,
    numerics,
    remote,
    storage,
    unknown,
)

RULES: tuple[Rule, ...] = (
    *memory.RULES,
    *build.RULES,
    *config.RULES,
    *collective.RULES,
    *remote.RULES,
    *launcher.RULES,
    *numerics.RULES,
    *data.RULES,
    *checkpoint.RULES,
    *storage.RULES,
    *environment.RULES,
    *job.RULES,
    *unknown.RULES,
)
