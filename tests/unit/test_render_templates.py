"""Templates and their contexts agree; every value goes through the right filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plans
import pytest
from jinja2 import Environment, meta, nodes
from template_trees import ALL, ROOT, is_literal, outputs, parsed, undeclared

from dsforge.artifacts import LAUNCHERS
from dsforge.errors import RenderError
from dsforge.render import render
from dsforge.render.deepspeed import CONTEXTS as ZERO_CONTEXTS
from dsforge.render.engine import template_environment
from dsforge.render.environment import DeepspeedEnvContext
from dsforge.render.job import TrainContext
from dsforge.render.launch import HostfileContext, PretrainContext, ScriptContext
from dsforge.render.megatron import ArgsContext
from dsforge.render.report import ReportContext
from dsforge.report.pages import MarkdownContext, PageContext
from dsforge.targets.target import FOLDER
from dsforge.train.results.card import CardContext

CONTEXTS: dict[str, Any] = {
    **ZERO_CONTEXTS,
    "env/deepspeed_env.j2": DeepspeedEnvContext,
    "env/hostfile.j2": HostfileContext,
    **{f"launch/{name}.j2": ScriptContext for name in LAUNCHERS},
    "megatron/args.txt.j2": ArgsContext,
    "megatron/pretrain.sh.j2": PretrainContext,
    "megatron/slurm.sbatch.j2": ScriptContext,
    "report/PLAN.md.j2": ReportContext,
    "report/REPORT.html.j2": PageContext,
    "report/REPORT.md.j2": MarkdownContext,
    "results/model_card.md.j2": CardContext,
    "train.yaml.j2": TrainContext,
}
# What a value passes: `word` takes names and numbers only, `line` is for comments.
ESCAPES = {"sh", "json", "yaml", "py", "word", "line"}
SHELL = [
    name for name in ALL if name.startswith("launch/") or name.endswith((".sh.j2", ".sbatch.j2"))
]
JSON = [name for name in ALL if name.startswith("deepspeed/")]


@pytest.fixture(scope="module")
def made() -> Environment:
    """The environment of our own templates."""
    return template_environment()


def test_every_template_has_a_context_or_is_included() -> None:
    """No template is left over; those of targets are in tests/targets."""
    own = {name for name in ALL if "/include/" not in name and not name.startswith(f"{FOLDER}/")}

    assert own == set(CONTEXTS)


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_template_uses_exactly_its_context(made: Environment, name: str) -> None:
    """Its undeclared variables, includes counted, are the fields of its context."""
    assert undeclared(made, name) == set(CONTEXTS[name]._fields)


@pytest.mark.parametrize("name", [n for n in ALL if "/include/" in n])
def test_every_include_is_included(made: Environment, name: str) -> None:
    """No include is left over."""
    users = [n for n in ALL if name in set(meta.find_referenced_templates(parsed(made, n)))]

    assert users


@pytest.mark.parametrize(
    ("name", "wanted"), [(n, "sh") for n in SHELL] + [(n, "json") for n in [*JSON, "train.yaml.j2"]]
)
def test_every_value_is_filtered(made: Environment, name: str, wanted: str) -> None:
    """A value reaches a shell as one word, and JSON as JSON: the last filter says so."""
    for part in outputs(parsed(made, name)):
        assert isinstance(part, nodes.Filter), f"{name}:{part.lineno}"
        assert part.name in {wanted, "word"} or is_comment(name, part), f"{name}:{part.lineno}"


def is_comment(name: str, part: nodes.Filter) -> bool:
    """Whether a value is printed as one line of a comment."""
    line = (ROOT / name).read_text(encoding="utf-8").splitlines()[part.lineno - 1]
    return part.name == "line" and line.startswith("# ")


@pytest.mark.parametrize("name", ALL)
def test_a_template_computes_nothing(made: Environment, name: str) -> None:
    """No arithmetic, calls or defaults: wording and order, and literals for includes."""
    template = parsed(made, name)
    banned = (nodes.BinExpr, nodes.Call, nodes.Macro, nodes.Import, nodes.Compare)
    found = [n for n in template.find_all(banned) if not isinstance(n, (nodes.And, nodes.Or))]
    shifted = {block.filter.name for block in template.find_all(nodes.FilterBlock)}

    assert found == []
    assert all(is_literal(own.node) for own in template.find_all(nodes.Assign))
    assert {f.name for f in template.find_all(nodes.Filter)} <= ESCAPES | shifted
    assert shifted <= {"indent"}


def test_a_users_template_comes_before_ours(tmp_path: Path) -> None:
    """`--templates` replaces one file; all others stay ours."""
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed/zero3.json.j2").write_text('{"mine": {{ job.bf16 | json }}}\n')
    plan = plans.plan()

    ours = {a.path: a.text for a in render(plan)}
    theirs = {a.path: a.text for a in render(plan, tmp_path)}

    assert theirs.pop("deepspeed/zero3.json") == '{"mine": true}\n'
    assert theirs == {path: text for path, text in ours.items() if path in theirs}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ missing | json }}", "missing"),
        ("{{ job.nothing | json }}", "nothing"),
        ("{% if %}", "line 1"),
        ("{{ job.bf16 | upper_case }}", "upper_case"),
        ('{"a": 1,}', "JSON"),
    ],
    ids=["variable", "field", "syntax", "filter", "json"],
)
def test_a_wrong_template_is_named(tmp_path: Path, text: str, said: str) -> None:
    """The error says which template, and what is wrong with it."""
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed/zero3.json.j2").write_text(text)

    with pytest.raises(RenderError) as caught:
        render(plans.plan(), tmp_path)

    assert "zero3.json.j2" in caught.value.message
    assert said in caught.value.message


def test_a_template_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    """A typing error in `--templates` does not fall back to ours in silence."""
    with pytest.raises(RenderError, match="not a folder"):
        render(plans.plan(), tmp_path / "none")
