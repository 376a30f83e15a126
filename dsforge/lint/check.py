"""RULES: every rule, in the order in which a file is read; and what they find in a case."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import NamedTuple

from dsforge.lint.case import Case, Hit, Rule, Severity
from dsforge.lint.reading.document import Document, Edit, Kind, Loc
from dsforge.lint.rules import (
    accelerate,
    batch,
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

RULES: tuple[Rule, ...] = (
    *syntax.RULES,
    *keys.RULES,
    *values.RULES,
    *batch.RULES,
    *precision.RULES,
    *zero.RULES,
    *offload.RULES,
    *optimizer.RULES,
    *engines.RULES,
    *costs.RULES,
    *model_rules.RULES,
    *cluster_rules.RULES,
    *hostfile.RULES,
    *env_file.RULES,
    *megatron.RULES,
    *accelerate.RULES,
    *train_job.RULES,
)
MOST_HITS = 50  # of one rule in one file
LONGEST_PATH = 120


class Finding(NamedTuple):
    """One place in one file that breaks a rule, with the way out and the edits that make it."""

    rule: str
    severity: Severity
    file: str
    line: int
    column: int
    path: str
    message: str
    fix: str
    edits: tuple[Edit, ...] = ()


@cache
def rules_of(kind: Kind, *, model: bool, cluster: bool) -> tuple[Rule, ...]:
    """The rules for one kind of file, without those that ask for a model or cluster not given."""
    idle = (() if model else model_rules.RULES) + (() if cluster else cluster_rules.RULES)
    names = {rule.id for rule in idle}
    return tuple(rule for rule in RULES if kind in rule.kinds and rule.id not in names)


def findings(case: Case) -> tuple[Finding, ...]:
    """What every rule finds in a case, by line.

    Of a text that could not be read to its end only what stopped the reading.
    """
    document = case.document
    unread = any(flaw.rule in ("json-syntax", "yaml-syntax", "too-deep") for flaw in document.flaws)
    rules = syntax.RULES if unread else _rules(case)
    found = [
        _finding(document, rule, hit)
        for rule in rules
        for hit in islice(rule.find(case), MOST_HITS)
    ]
    return tuple(sorted(found, key=lambda f: (f.line, f.column)))


def _rules(case: Case) -> tuple[Rule, ...]:
    model, cluster = case.model is not None, case.cluster is not None
    return rules_of(case.document.kind, model=model, cluster=cluster)


def _finding(document: Document, rule: Rule, hit: Hit) -> Finding:
    offset = document.offset(hit.loc) if hit.offset is None else hit.offset
    line, column = document.position(offset)
    edits = hit.edits if rule.fixable else ()
    path = dotted(hit.loc)
    message, fix = _printable(hit.message), _printable(hit.fix)
    return Finding(rule.id, rule.severity, document.name, line, column, path, message, fix, edits)


def _printable(text: str) -> str:
    """The text with a mark for each character of the file that a terminal or editor would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def dotted(loc: Loc) -> str:
    """A location as people write it, without control characters: `fp16.loss_scale`."""
    return ascii(".".join(str(part) for part in loc))[1:-1][:LONGEST_PATH]
