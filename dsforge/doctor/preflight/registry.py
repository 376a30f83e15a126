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
    """What every check finds in a case, in the order of the checks.

    What is wrong on many hosts in the same words is one finding.
    """
    found: dict[tuple[str, ...], Finding] = {}
    for check in CHECKS:
        for hit in check.hits(case):
            severity = hit.severity or check.severity
            key = (check.id, severity, hit.message, hit.fix)
            before = found[key].hosts if key in found else ()
            hosts = (*before, *(host for host in hit.hosts if host not in before))
            found[key] = Finding(check.id, check.column, severity, hosts, hit.message, hit.fix)
    return tuple(found.values())
