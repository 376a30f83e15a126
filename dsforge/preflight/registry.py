"""Checking: every check, in the order in which a launch meets what they look at."""

from __future__ import annotations

from dsforge.findings import Finding, Rule, collected
from dsforge.preflight.case import Case
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

CHECKS: tuple[Rule[Case], ...] = collected(
    hosts, install, devices, network, fabric, environment, capacity, ops
)
BY_ID = {check.id: check for check in CHECKS}


def column_of(finding: Finding) -> str:
    """The column of the table for a finding; what `lint` finds stands under `config`."""
    return BY_ID[finding.rule].scope[0] if finding.rule in BY_ID else "config"


def findings(case: Case) -> tuple[Finding, ...]:
    """What every check finds in a case, in the order of the checks.

    What is wrong on many hosts in the same words is one finding.
    """
    found: dict[tuple[str, ...], Finding] = {}
    for check in CHECKS:
        for hit in check.find(case):
            severity = hit.severity or check.severity
            key = (check.id, severity, hit.message, hit.fix)
            before = found[key].hosts if key in found else ()
            named = (*before, *(str(host) for host in hit.where if host not in before))
            found[key] = Finding(check.id, severity, hit.message, hit.fix, hosts=named)
    return tuple(found.values())
