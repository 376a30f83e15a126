"""Templates of targets and their contexts agree, and values are escaped as each file needs."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from folders import CLUSTERS, plan_on
from jinja2 import nodes
from target_cases import CASES, plan_of
from template_trees import ALL, outputs, parsed, undeclared

from dsforge.errors import RenderError
from dsforge.render.engine import template_environment, word
from dsforge.targets import BY_NAME, TARGETS
from dsforge.targets.target import FOLDER

OWN = [name for name in ALL if name.startswith(f"{FOLDER}/")]
WHOLE = {"text"}  # the field of templates that are one text, made by a template before
ESCAPES = {
    ".sh.j2": {"sh"},
    ".sbatch.j2": {"sh"},
    ".yaml.j2": {"yaml", "json"},
    ".yml.j2": {"yaml", "json"},
    ".json.j2": {"json"},
    ".toml.j2": {"json"},
    ".py.j2": {"py", "json"},
}


@cache
def contexts() -> dict[str, type[Any]]:
    """The context of each template of a target, over many plans."""
    plans = [(case.program, plan_of(case)) for case in CASES]
    for target in TARGETS:
        if target.kind == "launcher":
            plans += [(target.name, plan_on(cluster)) for cluster in CLUSTERS.values()]
    found: dict[str, type[Any]] = {}
    for name, plan in plans:
        with suppress(RenderError):  # a launcher that has no such accelerator
            for file in BY_NAME[name].files(plan):
                template = f"{FOLDER}/{name}/{file.template or file.name}.j2"
                found[template] = type(file.context)
    return found


def test_every_template_is_written_for_some_plan() -> None:
    """No template is left over."""
    assert set(contexts()) == set(OWN)


@pytest.mark.parametrize("name", OWN)
def test_a_template_knows_its_variables(name: str) -> None:
    """It expects nothing but the fields of its context, each of which some template uses."""
    made, context = template_environment(), contexts()[name]
    users = [other for other, own in contexts().items() if own is context]
    used = set().union(*(undeclared(made, other) for other in users))

    assert undeclared(made, name) <= set(context._fields)
    assert used == set(context._fields)


@pytest.mark.parametrize("name", [n for n in OWN if not n.endswith("args.txt.j2")])
def test_a_value_of_a_target_is_escaped(name: str) -> None:
    """The last filter is one for the kind of the file, or allows names and numbers alone."""
    wanted = next(found for ending, found in ESCAPES.items() if name.endswith(ending))
    template = parsed(template_environment(), name)
    if undeclared(template_environment(), name) == WHOLE:
        return
    for part in outputs(template):
        is_comma = isinstance(part, nodes.CondExpr) and isinstance(part.expr1, nodes.Const)
        escaped = isinstance(part, nodes.Filter) and part.name in {*wanted, "word", "line"}
        assert is_comma or escaped, f"{name}:{part.lineno}"


@pytest.mark.parametrize("text", ["", "a b", "a;b", "a\nb", "$(a)", "-a", '"a', "a'", "{a}"])
def test_a_word_is_a_name(text: str) -> None:
    """What a language could read as something else is refused."""
    with pytest.raises(RenderError):
        word(text)
