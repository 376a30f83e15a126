"""Plan -> artifacts. Templates decide wording and order, this package decides values."""

from __future__ import annotations

import json
from pathlib import Path

from jinja2 import Environment

from dsforge.artifacts import Artifact
from dsforge.errors import RenderError
from dsforge.plan import Plan, Priced
from dsforge.render.deepspeed import zero_context, zero_template
from dsforge.render.engine import check_folder, render_text, template_environment
from dsforge.render.environment import DeepspeedEnvContext, environment_variables
from dsforge.render.job import DS_CONFIG, train_context
from dsforge.render.launch import hostfile_context, pretrain_context, script_context
from dsforge.render.megatron import ArgsContext, megatron_arguments
from dsforge.render.report import report_context

__all__ = ["render"]


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
    chosen = deepspeed_choice(plan)
    files = (
        *_deepspeed(made, plan, chosen),
        *_megatron(made, plan),
        *_launch(made, plan, train=chosen is not None),
    )
    substitute = chosen if plan.strategy.back_end == "megatron" else None
    report = report_context(
        plan, substitute=substitute, written=frozenset(file.path for file in files)
    )
    return (
        Artifact("plan.json", plan.to_json() + "\n"),
        Artifact("PLAN.md", render_text(made, "report/PLAN.md.j2", report)),
        *files,
    )


def deepspeed_choice(plan: Plan) -> Priced | None:
    """What ds_config.json holds: the choice, or under Megatron the fastest variant that fits.

    Where none fits it is the one that needs the least memory; none where no variant is legal.
    """
    if plan.strategy.back_end == "deepspeed":
        return plan.choice
    priced = [v.priced for v in plan.variants if v.priced and v.name != "megatron"]
    fitting = [p for p in priced if p.fits]
    if fitting:
        return min(fitting, key=lambda p: p.time.step_s.likely)
    return min(priced, key=lambda p: p.memory.reserved_bytes.likely, default=None)


def _deepspeed(made: Environment, plan: Plan, chosen: Priced | None) -> tuple[Artifact, ...]:
    """The chosen ds_config and every legal variant."""
    configs = [] if chosen is None else [(DS_CONFIG, chosen)]
    configs += [
        (f"deepspeed/{variant.name}.json", variant.priced)
        for variant in plan.variants
        if variant.priced is not None and variant.name != "megatron"
    ]
    return tuple(Artifact(path, _ds_config(made, plan, priced)) for path, priced in configs)


def _ds_config(made: Environment, plan: Plan, priced: Priced) -> str:
    """The text of one ds_config. Raises RenderError where the template makes no JSON."""
    name = zero_template(priced.strategy)
    text = render_text(made, name, zero_context(plan, priced))
    try:
        json.loads(text)
    except ValueError as error:
        raise RenderError(f"template {name} does not make JSON: {error}") from error
    return text


def _megatron(made: Environment, plan: Plan) -> tuple[Artifact, ...]:
    """Arguments and script of Megatron-LM, where the plan has a Megatron strategy."""
    priced = [plan.choice] if plan.strategy.back_end == "megatron" else []
    priced += [v.priced for v in plan.variants if v.name == "megatron" and v.priced]
    if not priced:
        return ()
    strategy = priced[0].strategy
    arguments = ArgsContext(megatron_arguments(plan, strategy))
    script = render_text(made, "megatron/pretrain.sh.j2", pretrain_context(plan, strategy))
    return (
        Artifact("megatron/args.txt", render_text(made, "megatron/args.txt.j2", arguments)),
        Artifact("megatron/pretrain.sh", script, executable=True),
    )


def _launch(made: Environment, plan: Plan, *, train: bool) -> tuple[Artifact, ...]:
    """Hosts and environment, and where there is a ds_config what starts it."""
    cluster = plan.cluster
    hosts = render_text(made, "env/hostfile.j2", hostfile_context(cluster))
    variables = DeepspeedEnvContext(environment_variables(plan))
    environment = render_text(made, "env/deepspeed_env.j2", variables)
    both = (
        Artifact("hostfile", hosts),
        Artifact(".deepspeed_env", environment, private=True),
    )
    if not train:
        return both
    scripts = tuple(
        Artifact(f"launch/{name}", render_text(made, f"launch/{name}.j2", context), executable=True)
        for name, context in (
            ("deepspeed.sh", script_context(cluster)),
            ("torchrun.sh", script_context(cluster)),
            ("slurm.sbatch", script_context(cluster, in_slurm=True)),
        )
    )
    job = Artifact("train.yaml", render_text(made, "train.yaml.j2", train_context(plan)))
    return (*both, *scripts, job)
