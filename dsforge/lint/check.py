"""Checks a file with all rules, in the order in which they are listed here."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import islice

from dsforge.findings import Finding, Hit, Rule, collected
from dsforge.findings.writers import check_known
from dsforge.importing.marks import Loc
from dsforge.lint.checked_file import CheckedFile
from dsforge.lint.reading.document import Document, Kind
from dsforge.lint.rules import (
    accelerate,
    accelerate_values,
    batch,
    constraints,
    costs,
    env_file,
    hostfile,
    keys,
    megatron,
    offload,
    optimizer,
    parallelism_and_checkpoints,
    precision,
    syntax,
    train_job,
    values,
    zero,
)
from dsforge.lint.rules import cluster as cluster_rules
from dsforge.lint.rules import model as model_rules
from dsforge.lint.rules.constraints import FORMER_IDS

RULES: tuple[Rule[CheckedFile], ...] = collected(
    syntax,
    keys,
    values,
    constraints,
    batch,
    precision,
    zero,
    offload,
    optimizer,
    parallelism_and_checkpoints,
    costs,
    model_rules,
    cluster_rules,
    hostfile,
    env_file,
    megatron,
    accelerate,
    accelerate_values,
    train_job,
)
BY_ID = {rule.id: rule for rule in RULES}
NEEDS_MODEL = {rule.id for rule in collected(model_rules)}
NEEDS_CLUSTER = {rule.id for rule in collected(cluster_rules)}
OF_READING = collected(syntax)
MOST_HITS = 50  # of one rule in one file
LONGEST_PATH = 120


def current_ids(names: Iterable[str]) -> tuple[str, ...]:
    """The ids of rules, former ones replaced. Raises DsforgeError where a rule does not exist."""
    current = tuple(rule for name in names for rule in FORMER_IDS.get(name, (name,)))
    check_known(current, BY_ID, "dsforge lint")
    return current


@cache
def rules_of(kind: Kind, *, model: bool, cluster: bool) -> tuple[Rule[CheckedFile], ...]:
    """The rules for one kind of file, without those that ask for a model or cluster not given."""
    idle = (set() if model else NEEDS_MODEL) | (set() if cluster else NEEDS_CLUSTER)
    return tuple(rule for rule in RULES if kind in rule.scope and rule.id not in idle)


def findings(file: CheckedFile) -> tuple[Finding, ...]:
    """What every rule finds in a file, by line.

    Of a text that could not be read to its end only what stopped the reading.
    """
    document = file.document
    unread = any(flaw.rule in ("json-syntax", "yaml-syntax", "too-deep") for flaw in document.flaws)
    rules = OF_READING if unread else _rules(file)
    found = [
        _finding(document, rule, hit)
        for rule in rules
        for hit in islice(rule.find(file), MOST_HITS)
    ]
    return tuple(sorted(found, key=lambda f: (f.line, f.column)))


def _rules(file: CheckedFile) -> tuple[Rule[CheckedFile], ...]:
    model, cluster = file.model is not None, file.cluster is not None
    return rules_of(file.document.kind, model=model, cluster=cluster)


def _finding(document: Document, rule: Rule[CheckedFile], hit: Hit) -> Finding:
    offset = document.offset(hit.where) if hit.offset is None else hit.offset
    line, column = document.position(offset)
    return Finding(
        rule.id,
        hit.severity or rule.severity,
        _printable(hit.message),
        _printable(hit.fix),
        file=document.name,
        line=line,
        column=column,
        path=dotted(hit.where),
        edits=hit.edits if rule.fixable else (),
    )


def _printable(text: str) -> str:
    """The text with a mark for each character of the file that a terminal or editor would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def dotted(loc: Loc) -> str:
    """A location as people write it, without control characters: `fp16.loss_scale`."""
    return ascii(".".join(str(part) for part in loc))[1:-1][:LONGEST_PATH]
