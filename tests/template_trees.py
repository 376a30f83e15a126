"""Templates as syntax trees: what they expect and what they print."""

from __future__ import annotations

from jinja2 import Environment, meta, nodes

from dsforge.render.engine import template_root

ROOT = template_root()
ALL = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.j2"))
LITERALS = (nodes.Const, nodes.List, nodes.Tuple)


def parsed(made: Environment, name: str) -> nodes.Template:
    """The syntax tree of a template."""
    assert made.loader is not None
    return made.parse(made.loader.get_source(made, name)[0], name)


def undeclared(made: Environment, name: str) -> set[str]:
    """Variables that a template and its includes expect; those that it sets are not among them."""
    found = parsed(made, name)
    names = set(meta.find_undeclared_variables(found))
    for included in meta.find_referenced_templates(found):
        assert included is not None, f"{name} includes a computed name"
        names |= undeclared(made, included)
    return names - {own.target.name for own in found.find_all(nodes.Assign)}


def outputs(template: nodes.Template) -> list[nodes.Node]:
    """Every expression that a template prints."""
    printed = [part for output in template.find_all(nodes.Output) for part in output.nodes]
    return [part for part in printed if not isinstance(part, nodes.TemplateData)]


def is_literal(value: nodes.Node) -> bool:
    """Whether a value is written out: the parameter of an include."""
    return isinstance(value, LITERALS) and all(map(is_literal, value.iter_child_nodes()))
