"""Findings and rules as people, programs and code hosts want them."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from dsforge.errors import DsforgeError
from dsforge.findings import SEVERITIES, Finding, Rule, worst_first

Rules = Mapping[str, Rule[Any]]  # by id

SARIF_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
GITHUB_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def with_fix(finding: Finding) -> str:
    """The message and, behind it, the way out."""
    return finding.message + (f"; {finding.fix}" if finding.fix else "")


def as_lines(found: Iterable[Finding], *, nowhere: str = "") -> list[str]:
    """Each finding with its fix on a line of its own, errors first.

    `nowhere` stands for the place of one that concerns neither a file nor a host.
    """
    lines: list[str] = []
    for finding in worst_first(found):
        where = ", ".join(finding.hosts) or finding.file or nowhere
        place = f"{where}: " if where else ""
        lines.append(f"{finding.severity}: {place}{finding.message} [{finding.rule}]")
        lines += [f"  fix: {finding.fix}"] if finding.fix else []
    return lines


def as_brief(found: Iterable[Finding], _rules: Rules) -> str:
    """One line for each finding, as compilers write it: place, severity, message, way out, rule."""
    return "".join(_line(finding) for finding in found)


def as_text(found: Iterable[Finding], rules: Rules) -> str:
    """As brief, and below the first finding of each rule why it is one and how that is known."""
    said: set[str] = set()
    lines = []
    for finding in found:
        lines.append(_line(finding))
        if finding.rule not in said:
            rule = rules[finding.rule]
            lines.append(f"    {rule.why}\n    evidence: {rule.evidence}\n")
        said.add(finding.rule)
    return "".join(lines)


def row(finding: Finding, *where: str) -> dict[str, Any]:
    """A finding in JSON documents; `where` names the fields that say where it is."""
    names = ("rule", "severity", *where, "message", "fix")
    return {name: getattr(finding, name) for name in names}


def as_json(found: Iterable[Finding], rules: Rules) -> str:
    """The document `{"findings": [...]}`; each with the reason and evidence of its rule."""
    rows = [
        row(finding, "file", "line", "column", "path")
        | {"why": rules[finding.rule].why, "evidence": rules[finding.rule].evidence}
        for finding in found
    ]
    return json.dumps({"findings": rows}, indent=2) + "\n"


def as_github(found: Iterable[Finding], _rules: Rules) -> str:
    """Workflow commands, which GitHub shows beside the lines of a change."""
    lines = []
    for f in found:
        place = f"file={_property(f.file)},line={f.line},col={f.column},title={f.rule}"
        lines.append(f"::{GITHUB_COMMANDS[f.severity]} {place}::{_escaped(with_fix(f))}\n")
    return "".join(lines)


def as_sarif(found: Iterable[Finding], rules: Rules) -> str:
    """A SARIF 2.1.0 log with one run."""
    results = [_result(finding) for finding in found]
    named = {result["ruleId"] for result in results}
    described = [_described(rule) for rule in rules.values() if rule.id in named]
    driver = {"name": "dsforge lint", "rules": described}
    run = {"tool": {"driver": driver}, "results": results}
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


WRITERS = {"text": as_text, "json": as_json, "sarif": as_sarif, "github": as_github}


def summary(found: Iterable[Finding]) -> str:
    """`2 errors, 1 warning, 3 infos`, without what there is none of; `nothing found`."""
    severities = [finding.severity for finding in found]
    counts = {name: severities.count(name) for name in SEVERITIES}
    words = [counted(number, name) for name, number in counts.items() if number]
    return ", ".join(words) or "nothing found"


def counted(number: int, word: str) -> str:
    """`1 error`, `2 errors`; an `info` is an uncountable one."""
    return f"{number} {word}" + ("" if number == 1 or word == "info" else "s")


def listed(rules: Iterable[Rule[Any]]) -> str:
    """Every rule on a line: id, severity, what it finds."""
    rules = tuple(rules)
    width = max(len(rule.id) for rule in rules)
    return "".join(f"{r.id:{width}}  {r.severity:8} {r.title}\n" for r in rules)


def check_known(names: Iterable[str], known: Container[str], command: str) -> None:
    """Raise DsforgeError, with the nearest rule, where one does not exist."""
    for name in names:
        if name not in known:
            near = get_close_matches(name, list(known), n=1)  # type: ignore[call-overload]
            hint = f"did you mean `{near[0]}`?" if near else f"`{command} --rules` lists them"
            raise DsforgeError(f"unknown rule {name[:60]!a}", hint)


def _line(finding: Finding) -> str:
    place = f"{finding.file}:{finding.line}:{finding.column}"
    return f"{place}: {finding.severity}: {with_fix(finding)} [{finding.rule}]\n"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _result(finding: Finding) -> dict[str, Any]:
    region = {"startLine": finding.line, "startColumn": finding.column}
    artifact = {"uri": finding.file.replace("\\", "/")}
    location = {"physicalLocation": {"artifactLocation": artifact, "region": region}}
    return {
        "ruleId": finding.rule,
        "level": SARIF_LEVELS[finding.severity],
        "message": {"text": with_fix(finding)},
        "locations": [location],
    }


def _described(rule: Rule[Any]) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why} Evidence: {rule.evidence}"},
        "defaultConfiguration": {"level": SARIF_LEVELS[rule.severity]},
    }
