"""`dsforge estimate`: the price of one strategy; what is not given is chosen and shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.flags import Flags, Sections, to_request, with_flags, with_verbose
from dsforge.cli.show import numbered, save, show_json
from dsforge.cli.text import show

if TYPE_CHECKING:
    from dsforge.plan import Plan, Request
    from dsforge.planner.inverse import Found

# What --find looks for, and the flags that would fix it.
SOUGHT = {
    "micro-batch": ("micro_batch",),
    "seq-len": ("seq_len",),
    "gpus": ("nodes", "hostfile"),
    "model": ("model",),
}
USUAL_NODE = 8  # accelerators
ANY_MODEL = "7b"  # stands for the model that is looked for while the rest is read


@click.command(cls=Sections)
@with_flags
@click.option(
    "--find",
    type=click.Choice(tuple(SOUGHT)),
    metavar="WHAT",
    help="The largest micro-batch, seq-len or model that fits, or the fewest gpus.",
)
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Timeline of a step for Perfetto to write."
)
@click.option(
    "--ds-config", type=click.Path(path_type=Path), help="Your own ds_config.json, as it is."
)
@click.option(
    "--exact",
    is_flag=True,
    help="Memory simulated tensor by tensor, by phase of a step: Llama, Mistral and Qwen2 under "
    "DeepSpeed's ZeRO with AdamW; others are refused.",
)
@with_verbose
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def estimate(
    *,
    flags: Flags,
    find: str | None,
    trace: Path | None,
    ds_config: Path | None,
    exact: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Predict memory and step time of one strategy.

    What no flag fixes is chosen and shown. A strategy that does not fit is an answer, not an error.
    With --find the question is inverted: how much of one thing fits. With --ds-config the ZeRO
    stage, offload, buffer and batch sizes come from the file; flags override it. With --exact a
    step of the strategy is simulated as well: memory by phase and owner.
    """
    if find is not None:
        _refuse_beside_find({"--trace": trace, "--ds-config": ds_config, "--exact": exact})
        _find(flags, find, verbose=verbose, as_json=as_json)
        return
    request = to_request(flags, ds_config)
    _predict(request, trace=trace, exact=exact, verbose=verbose, as_json=as_json)


def _predict(
    request: Request, *, trace: Path | None, exact: bool, verbose: bool, as_json: bool
) -> None:
    """Price one strategy; with --exact simulate it."""
    from dsforge.planner import appraise
    from dsforge.planner.remedies import remedies

    if exact:
        from dsforge.cli.exact import exact_lines, exact_of, with_plain_loss

        request = with_plain_loss(request)
    plan = appraise(request)
    simulated = exact_of(plan) if exact else None
    found = () if plan.choice.fits else remedies(request, plan.choice)
    if trace is not None:
        from dsforge.explain.trace import step_trace

        save(trace, step_trace(plan))
    if as_json:
        from dsforge.document import estimate_document

        document = estimate_document(plan, found, exact=simulated)
        show_json(document.model_dump(mode="json"))
        return
    _show(plan, numbered(found), verbose=verbose)
    if simulated is not None:
        show(exact_lines(plan, simulated))


def _show(plan: Plan, ways: list[str], *, verbose: bool) -> None:
    """The figures with their terms, and the ways to make it fit; all tables where asked for."""
    from dsforge.cli.brief import defaults, every_reason, head, screen, term_lines

    if not verbose:
        below = term_lines(plan)
        lines = screen(plan, below=lambda most: below[:most], last=[*ways, *defaults(plan)])
        show(lines)
        return
    from dsforge.cli.priced import console, terms

    show([*head(plan), *ways, ""])
    console().print(terms(plan))
    show(["", *every_reason(plan.choice.reasons)])


def _refuse_beside_find(asked: dict[str, Path | bool | None]) -> None:
    """Raise where something of one strategy is asked for and --find looks for one."""
    for name, value in asked.items():
        if value:
            raise click.UsageError(
                f"{name} is of one strategy, --find looks for one: leave out one."
            )


def _find(flags: Flags, sought: str, *, verbose: bool, as_json: bool) -> None:
    """Answer an inverse question."""
    for field in SOUGHT[sought]:
        if getattr(flags, field) is not None:
            name = "--" + field.replace("_", "-")
            raise click.UsageError(f"{name} fixes what --find {sought} looks for: leave one out.")
    found = _answer(to_request(_open(flags, sought)), sought)
    if as_json:
        from dsforge.document import InverseDocument, estimate_document

        priced = estimate_document(found.plan)
        document = InverseDocument.model_construct(answer=found.answer, estimate=priced)
        show_json(document.model_dump(mode="json"))
        return
    from dsforge.cli.brief import defaults, every_reason, head
    from dsforge.cli.priced import answer, neighbours

    reasons = found.plan.choice.reasons
    last = every_reason(reasons) if verbose else defaults(found.plan)
    lines = [*answer(found), "", *head(found.plan), "", *neighbours(found), "", *last]
    show(lines)


def _open(flags: Flags, sought: str) -> Flags:
    """The flags with something in the place of what is looked for, so that the rest can be read."""
    if sought == "model" and flags.spec is None:
        return flags._replace(model=ANY_MODEL)
    said = flags.spec or flags.cluster or flags.gpus_per_node
    return flags._replace(gpus_per_node=USUAL_NODE) if sought == "gpus" and not said else flags


def _answer(request: Request, sought: str) -> Found:
    """The answer to one question."""
    from dsforge.planner import inverse

    if sought == "micro-batch":
        return inverse.largest_micro_batch(request)
    if sought == "seq-len":
        return inverse.longest_sequence(request)
    if sought == "gpus":
        return inverse.fewest_gpus(request)
    from dsforge import catalog
    from dsforge.reading.sizes import llama_like

    known = tuple(catalog.model(name) for name in catalog.model_names())
    return inverse.largest_model(request, known, llama_like)
