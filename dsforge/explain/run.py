"""Rates of the step, and what the token budget takes, worked out."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.estimate.run import run_steps
from dsforge.explain.sheet import Line, Sheet
from dsforge.plan import Plan

FLOPS = "estimate/flops.py: every product, attention over the sequence, the head"


def take_run(sheet: Sheet, plan: Plan) -> None:
    """Figures of speed, and of the run where there is a budget."""
    model = plan.model
    sheet.give(f"model {model.name}", "layers", model_moe_layers=model.moe_layers)
    sheet.work_out("speed", tuple(_speed(moe=model.moe_layers > 0)))
    steps, cluster = run_steps(plan.workload), plan.cluster
    if steps is None:
        return
    sheet.give("token budget of the workload over the tokens of a step", "steps", steps=steps)
    lines = [
        Line("days", "days", "steps * step_likely / 86400", "without interruptions"),
        Line("gpu_hours", "h", "steps * step_likely / 3600 * world_size", "definition"),
    ]
    if cluster.gpu.power_w is not None:
        why = "board power for the whole run; hosts, network and cooling (PUE) are not in it"
        lines.append(Line("energy_kwh", "kWh", "gpu_hours * power_w / 1000", why))
    if cluster.gpu_hour_price is not None:
        sheet.give("cluster", gpu_hour_price=cluster.gpu_hour_price)
        lines.append(
            Line("money", "", "gpu_hours * gpu_hour_price", "in the currency of the price")
        )
    sheet.work_out("the whole run", tuple(lines))


def _speed(*, moe: bool) -> Iterator[Line]:
    products = "layers * dense_product_elements"
    if moe:
        products = "(layers - model_moe_layers) * dense_product_elements"
        products += " + model_moe_layers * moe_product_elements"
    scores = "layers * 2 * score_width * context"
    layers = f"2 * ({products}) + {scores}"
    yield Line("layers_token_flops", "FLOP", layers, FLOPS)
    whole = "layers_token_flops + 2 * hidden_size * vocab_size"
    yield Line("forward_token_flops", "FLOP", whole, FLOPS)
    useful = "forward_token_flops * (1 + backward_passes) * tokens_per_step"
    yield Line("useful_step_flops", "FLOP", useful, "recomputation is not useful")
    again = f"repeated * (layers_token_flops - {scores}) + repeated_scores * {scores}"
    executed = f"useful_step_flops + ({again}) * tokens_per_step"
    yield Line("executed_step_flops", "FLOP", executed, "with what is computed again")
    yield Line("tokens_per_s", "tokens/s", "tokens_per_step / step_likely", "of the whole cluster")
    for name, flops in (("model", "useful"), ("hardware", "executed")):
        rate = f"{flops}_step_flops / step_likely / world_size"
        yield Line(f"{name}_flops_per_gpu", "FLOP/s", rate, "definition")
    yield Line("mfu", "share", "model_flops_per_gpu / peak_flops", "definition")
    yield Line("hfu", "share", "hardware_flops_per_gpu / peak_flops", "definition")
