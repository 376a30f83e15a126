"""Plan -> artifacts. Templates decide wording and order, this package decides values."""

from __future__ import annotations

import json
from pathlib import Path

from jinja2 import Environment

from dsforge.artifacts import ANY_ENGINE, LAUNCHERS, Artifact
from dsforge.errors import RenderError
from dsforge.plan import Plan, Priced
from dsforge.programs import is_own
from dsforge.render.bundles import Bundle, bundles
from dsforge.render.deepspeed import zero_context, zero_template
from dsforge.render.engine import check_folder, render_text, template_environment
from dsforge.render.environment import DeepspeedEnvContext, environment_variables
from dsforge.render.job import DS_CONFIG, train_context
from dsforge.render.launch import (
    PRETRAIN,
    ScriptContext,
    hostfile_context,
    pretrain_context,
    script_context,
)
from dsforge.render.megatron import ArgsContext, megatron_arguments
from dsforge.render.report import report_context

__all__ = ["ds_config", "render"]


def render(plan: Plan, templates: Path | None = None) -> tuple[Artifact, ...]:
    """All files of the run folder, in a fixed order; `templates` is searched before our own.

    Raises RenderError where a template is wrong or its JSON does not parse.
    """
    if templates is None:
        return _rendered(template_environment(), plan)
    from dsforge.render.strangers import rendered_apart

    check_folder(templates)
    return rendered_apart(templates, lambda made: _rendered(made, plan))


def _rendered(made: Environment, plan: Plan) -> tuple[Artifact, ...]:
    """All files, by the templates of an Environment."""
    wanted = bundles(plan)
    files = (
        *_surroundings(made, plan),
        *(file for bundle in wanted for file in _bundle(made, plan, bundle)),
        *_compared(made, plan),
    )
    report = report_context(plan, wanted)
    return (
        Artifact("plan.json", plan.to_json() + "\n"),
        Artifact("PLAN.md", render_text(made, "report/PLAN.md.j2", report)),
        *files,
    )


def ds_config(plan: Plan, priced: Priced) -> str:
    """The ds_config of a strategy of a plan, by our own template."""
    return _ds_config(template_environment(), plan, priced)


def _bundle(made: Environment, plan: Plan, bundle: Bundle) -> tuple[Artifact, ...]:
    """The config of one strategy and the scripts that start it; of other programs `targets` has."""
    program = bundle.strategy.runs_as.program
    if program is not None:
        return _torch(made, plan, bundle) if is_own(program) else ()
    if bundle.strategy.back_end == "megatron":
        return _megatron(made, plan, bundle)
    return _deepspeed(made, plan, bundle)


def _deepspeed(made: Environment, plan: Plan, bundle: Bundle) -> tuple[Artifact, ...]:
    """ds_config, job and scripts of a strategy that DeepSpeed runs."""
    job = render_text(made, "train.yaml.j2", train_context(plan, bundle.strategy))
    return (
        Artifact(DS_CONFIG, _ds_config(made, plan, bundle.priced)),
        Artifact(bundle.train, job),
        *(
            _script(made, bundle, f"launch/{name}", script_context(plan.cluster, bundle))
            for name in LAUNCHERS
        ),
    )


def _torch(made: Environment, plan: Plan, bundle: Bundle) -> tuple[Artifact, ...]:
    """Job and scripts of a strategy that plain torch runs."""
    job = render_text(made, "train.yaml.j2", train_context(plan, bundle.strategy))
    context = script_context(plan.cluster, bundle)
    scripts = (_script(made, bundle, f"launch/{name}", context) for name in ANY_ENGINE)
    return (Artifact(bundle.train, job), *scripts)


def _megatron(made: Environment, plan: Plan, bundle: Bundle) -> tuple[Artifact, ...]:
    """Arguments and scripts of a strategy that Megatron-LM runs."""
    arguments = ArgsContext(megatron_arguments(plan, bundle.strategy))
    start = render_text(made, "megatron/pretrain.sh.j2", pretrain_context(plan, bundle))
    return (
        Artifact("megatron/args.txt", render_text(made, "megatron/args.txt.j2", arguments)),
        Artifact(PRETRAIN, start, executable=True),
        _script(made, bundle, "megatron/slurm.sbatch", script_context(plan.cluster, bundle)),
    )


def _script(made: Environment, bundle: Bundle, template: str, context: ScriptContext) -> Artifact:
    """A script of a bundle, in its folder."""
    path = bundle.script(template.partition("/")[2])
    return Artifact(path, render_text(made, f"{template}.j2", context), executable=True)


def _compared(made: Environment, plan: Plan) -> tuple[Artifact, ...]:
    """A ds_config for each legal way of sharding, to be compared with the others."""
    return tuple(
        Artifact(f"deepspeed/{variant.name}.json", _ds_config(made, plan, variant.priced))
        for variant in plan.variants
        if variant.priced is not None and variant.name != "megatron"
    )


def _ds_config(made: Environment, plan: Plan, priced: Priced) -> str:
    """The text of one ds_config. Raises RenderError where the template makes no JSON."""
    name = zero_template(priced.strategy)
    text = render_text(made, name, zero_context(plan, priced))
    try:
        json.loads(text)
    except ValueError as error:
        raise RenderError(f"template {name} does not make JSON: {error}") from error
    return text


def _surroundings(made: Environment, plan: Plan) -> tuple[Artifact, ...]:
    """Hosts and environment, which all scripts share."""
    hosts = render_text(made, "env/hostfile.j2", hostfile_context(plan.cluster))
    variables = DeepspeedEnvContext(environment_variables(plan))
    environment = render_text(made, "env/deepspeed_env.j2", variables)
    return (Artifact("hostfile", hosts), Artifact(".deepspeed_env", environment, private=True))
