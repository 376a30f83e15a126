"""CHECKS: every check, in the order in which a launch meets what they look at."""

from __future__ import annotations

from dsforge.preflight.case import Case, Check, Finding
from dsforge.preflight.checks import (
    capacity,
    devices,
    environment,
    fabric,
    hosts,
    install,
    network,
    ops,
)

CHECKS: tuple[Check, ...] = (
    *hosts.CHECKS,
    *install.CHECKS,
    *devices.CHECKS,
    *network.CHECKS,
    *fabric.CHECKS,
    *environment.CHECKS,
    *capacity.CHECKS,
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
            named = (*before, *(host for host in hit.hosts if host not in before))
            found[key] = Finding(check.id, check.column, severity, named, hit.message, hit.fix)
    return tuple(found.values())
