"""Findings in the shapes that people, programs, code hosts and the documentation want."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from dsforge.lint.case import Rule
from dsforge.lint.check import RULES, Finding
from dsforge.lint.reading.document import Kind

BY_ID = {rule.id: rule for rule in RULES}
LEVELS = {"error": "error", "warning": "warning", "info": "note"}
COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
KIND_NAMES: dict[Kind, str] = {
    "ds_config": "DeepSpeed config",
    "hostfile": "Hostfile",
    "env": "`.deepspeed_env`",
    "megatron": "Megatron arguments",
    "accelerate": "Accelerate YAML",
    "train": "`train.yaml`",
    "unknown": "Any file",
}


def as_brief(found: Iterable[Finding]) -> str:
    """One line for each finding: place, severity, message, way out, rule."""
    return "".join(_line(f) for f in found)


def as_text(found: Iterable[Finding]) -> str:
    """As brief, and below the first finding of each rule why it is one and how that is known."""
    said: set[str] = set()
    lines = []
    for finding in found:
        lines.append(_line(finding))
        if finding.rule not in said:
            rule = BY_ID[finding.rule]
            lines.append(f"    {rule.why}\n    evidence: {rule.evidence}\n")
        said.add(finding.rule)
    return "".join(lines)


def as_json(found: Iterable[Finding]) -> str:
    """The document `{"findings": [...]}`; each with the reason and evidence of its rule."""
    keys = ("rule", "severity", "file", "line", "column", "path", "message", "fix")
    rows = [
        {key: getattr(f, key) for key in keys}
        | {"why": BY_ID[f.rule].why, "evidence": BY_ID[f.rule].evidence}
        for f in found
    ]
    return json.dumps({"findings": rows}, indent=2) + "\n"


def as_github(found: Iterable[Finding]) -> str:
    """Workflow commands, which GitHub shows beside the lines of a change."""
    lines = []
    for f in found:
        place = f"file={_property(f.file)},line={f.line},col={f.column},title={f.rule}"
        lines.append(f"::{COMMANDS[f.severity]} {place}::{_escaped(_said(f))}\n")
    return "".join(lines)


def as_sarif(found: Iterable[Finding]) -> str:
    """A SARIF 2.1.0 log with one run."""
    results = [_result(f) for f in found]
    named = {result["ruleId"] for result in results}
    rules = [_described(rule) for rule in RULES if rule.id in named]
    driver = {"name": "dsforge lint", "rules": rules}
    run = {"tool": {"driver": driver}, "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


SHAPES = {"text": as_text, "json": as_json, "sarif": as_sarif, "github": as_github}


def summary(found: Iterable[Finding], files: int) -> str:
    """`2 errors, 1 warning in 3 files`."""
    counts = dict.fromkeys(LEVELS, 0)
    for finding in found:
        counts[finding.severity] += 1
    words = [_counted(n, name) for name, n in counts.items() if n and name != "info"]
    words += [f"{counts['info']} info"] if counts["info"] else []
    return f"{', '.join(words) or 'nothing found'} in {_counted(files, 'file')}"


def explained(rule: Rule) -> str:
    """Everything that is known about a rule."""
    kinds = ", ".join(KIND_NAMES[kind] for kind in rule.kinds)
    fix = "yes" if rule.fixable else "no"
    return (
        f"{rule.id} ({rule.severity}; {kinds})\n{rule.title}\n\n{rule.why}\n\n"
        f"evidence: {rule.evidence}\nrepaired by --fix: {fix}\n"
    )


def listed() -> str:
    """Every rule on a line."""
    return "".join(f"{r.id:26} {r.severity:8} {r.title}\n" for r in RULES)


def page() -> str:
    """The page of all rules, as Markdown."""
    head = "# Rules of `dsforge lint`\n\nMade by `python scripts/lint_rules.py`; "
    head += f"{len(RULES)} rules. `error`: it stops, or does something else than the file says.\n"
    head += (
        "`warning`: it runs, at a price. `info`: worth knowing. An asterisk: `--fix` repairs it.\n"
    )
    parts = [head]
    for kind, name in KIND_NAMES.items():
        rules = [rule for rule in RULES if _chapter(rule) == kind]
        parts.append(f"\n## {name}\n\n| Rule | | What | Why | Evidence |\n|---|---|---|---|---|\n")
        parts += [_row(rule) for rule in rules]
    return "".join(parts)


def _chapter(rule: Rule) -> Kind:
    """The kind under which the page lists a rule."""
    return rule.kinds[0] if len(rule.kinds) == 1 else "unknown"


def _row(rule: Rule) -> str:
    star = "*" if rule.fixable else ""
    cells = (f"`{rule.id}`{star}", rule.severity, rule.title, rule.why, rule.evidence)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _line(finding: Finding) -> str:
    return f"{_place(finding)}: {finding.severity}: {_said(finding)} [{finding.rule}]\n"


def _place(finding: Finding) -> str:
    return f"{finding.file}:{finding.line}:{finding.column}"


def _said(finding: Finding) -> str:
    return finding.message + (f"; {finding.fix}" if finding.fix else "")


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


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
        "level": LEVELS[finding.severity],
        "message": {"text": _said(finding)},
        "locations": [location],
    }


def _described(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why} Evidence: {rule.evidence}"},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
    }
