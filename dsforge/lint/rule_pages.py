"""The rules of lint as pages: one in full, and all as Markdown."""

from __future__ import annotations

from dsforge.findings import Rule
from dsforge.lint.check import RULES
from dsforge.lint.checked_file import CheckedFile

KIND_NAMES: dict[str, str] = {
    "ds_config": "DeepSpeed config",
    "hostfile": "Hostfile",
    "env": "`.deepspeed_env`",
    "megatron": "Megatron arguments",
    "accelerate": "Accelerate YAML",
    "train": "`train.yaml`",
    "unknown": "Any file",
}


def explained(rule: Rule[CheckedFile]) -> str:
    """Everything that is known about a rule."""
    kinds = ", ".join(KIND_NAMES[kind] for kind in rule.scope)
    fix = "yes" if rule.fixable else "no"
    return (
        f"{rule.id} ({rule.severity}; {kinds})\n{rule.title}\n\n{rule.why}\n\n"
        f"evidence: {rule.evidence}\nrepaired by --fix: {fix}\n"
    )


def page() -> str:
    """The page of all rules, as Markdown."""
    head = "# Rules of `dsforge lint`\n\nMade by `python scripts/lint_rules.py`; "
    head += f"{len(RULES)} rules. `error`: the run stops, or does not do what the file sets.\n"
    head += "`warning`: the run works, but slower, with more memory or at a risk. `info`: worth "
    "knowing. An asterisk: `--fix` repairs it.\n"
    parts = [head]
    for kind, name in KIND_NAMES.items():
        rules = [rule for rule in RULES if _chapter(rule) == kind]
        parts.append(f"\n## {name}\n\n| Rule | | What | Why | Evidence |\n|---|---|---|---|---|\n")
        parts += [_row(rule) for rule in rules]
    return "".join(parts)


def _chapter(rule: Rule[CheckedFile]) -> str:
    """The kind under which the page lists a rule."""
    return rule.scope[0] if len(rule.scope) == 1 else "unknown"


def _row(rule: Rule[CheckedFile]) -> str:
    star = "*" if rule.fixable else ""
    cells = (f"`{rule.id}`{star}", rule.severity, rule.title, rule.why, rule.evidence)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
