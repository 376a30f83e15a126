"""Checking: every rule, in the order in which a file is read, and what they find in a case."""

from __future__ import annotations

from functools import cache
from itertools import islice

from dsforge.findings import Finding, Hit, Rule, collected
from dsforge.lint.case import Case
from dsforge.lint.reading.document import Document, Kind, Loc
from dsforge.lint.rules import (
    accelerate,
    batch,
    constraints,
    costs,
    engines,
    env_file,
    hostfile,
    keys,
    megatron,
    offload,
    optimizer,
    precision,
    syntax,
    train_job,
    values,
    zero,
)
from dsforge.lint.rules import cluster as cluster_rules
from dsforge.lint.rules import model as model_rules

RULES: tuple[Rule[Case], ...] = collected(
    syntax,
    keys,
    values,
    constraints,
    batch,
    precision,
    zero,
    offload,
    optimizer,
    engines,
    costs,
    model_rules,
    cluster_rules,
    hostfile,
    env_file,
    megatron,
    accelerate,
    train_job,
)
BY_ID = {rule.id: rule for rule in RULES}
NEEDS_MODEL = {rule.id for rule in collected(model_rules)}
NEEDS_CLUSTER = {rule.id for rule in collected(cluster_rules)}
OF_READING = collected(syntax)
MOST_HITS = 50  # of one rule in one file
LONGEST_PATH = 120


@cache
def rules_of(kind: Kind, *, model: bool, cluster: bool) -> tuple[Rule[Case], ...]:
    """The rules for one kind of file, without those that ask for a model or cluster not given."""
    idle = (set() if model else NEEDS_MODEL) | (set() if cluster else NEEDS_CLUSTER)
    return tuple(rule for rule in RULES if kind in rule.scope and rule.id not in idle)


def findings(case: Case) -> tuple[Finding, ...]:
    """What every rule finds in a case, by line.

    Of a text that could not be read to its end only what stopped the reading.
    """
    document = case.document
    unread = any(flaw.rule in ("json-syntax", "yaml-syntax", "too-deep") for flaw in document.flaws)
    rules = OF_READING if unread else _rules(case)
    found = [
        _finding(document, rule, hit)
        for rule in rules
        for hit in islice(rule.find(case), MOST_HITS)
    ]
    return tuple(sorted(found, key=lambda f: (f.line, f.column)))


def _rules(case: Case) -> tuple[Rule[Case], ...]:
    model, cluster = case.model is not None, case.cluster is not None
    return rules_of(case.document.kind, model=model, cluster=cluster)


def _finding(document: Document, rule: Rule[Case], hit: Hit) -> Finding:
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
