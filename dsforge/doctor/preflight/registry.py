"""CHECKS: every check, in the order in which a launch meets what they look at."""

from __future__ import annotations

from dsforge.doctor.preflight import (
    devices,
    environment,
    fabric,
    install,
    network,
    ops,
    reach,
    room,
)
from dsforge.doctor.preflight.case import Case, Check, Finding

CHECKS: tuple[Check, ...] = (
    *reach.CHECKS,
    *install.CHECKS,
    *devices.CHECKS,
    *network.CHECKS,
    *fabric.CHECKS,
    *environment.CHECKS,
    *room.CHECKS,
    *ops.CHECKS,
)


def findings(case: Case) -> tuple[Finding, ...]:
    """What every check finds in a case, in the order of the checks."""
    return tuple(
        Finding(
            check.id, check.column, hit.severity or check.severity, hit.hosts, hit.message, hit.fix
        )
        for check in CHECKS
        for hit in check.hits(case)
    )
