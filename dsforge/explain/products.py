"""Seconds of a layer and of the head on one micro batch: every product, attention, the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dsforge.estimate import lines as roofline
from dsforge.estimate import rates as held
from dsforge.estimate.flops import Product, attention_context, attention_products, mlp_products
from dsforge.estimate.lines import Setting, setting_of
from dsforge.estimate.loss import chunks_of, loss_of
from dsforge.estimate.quantised import NF4_BYTES, layer_quantised_elements
from dsforge.explain.links import MEASURED
from dsforge.explain.sheet import Line, Sheet
from dsforge.plan import Plan

RATES = "estimate/rates.py: fitted over all published rows"
ROOFLINE = "estimate/lines.py: FLOPs at the sustained rate, plus bytes at the memory bandwidth"


def take_rates(sheet: Sheet, plan: Plan) -> Setting:
    """Rates that the card holds over a step, and passes over the products."""
    gpu, setting = plan.cluster.gpu, setting_of(plan.cluster.gpu, plan.workload, plan.strategy)
    sheet.give(
        RATES,
        step_share=held.STEP_SHARE,
        power_knee=held.POWER_KNEE,
        power_fall=held.POWER_FALL,
        bandwidth_share=held.BANDWIDTH_SHARE,
    )
    sheet.give(RATES, "s", kernel_s=setting.rates.kernel_s)
    sheet.give("backward passes: 2, with frozen weights 1", backward_passes=setting.backward)
    sheet.give(
        f"recompute {plan.strategy.recompute}: share of products and of scores computed again",
        repeated=setting.repeated,
        repeated_scores=setting.repeated_scores,
    )
    attention = setting.rates.attention / setting.rates.wide_products
    sheet.give(
        f"{RATES}; fused attention of {setting.execution.trainer}", attention_share=attention
    )
    lines = tuple(_rates(bool(gpu.power_w), gpu.matmul_efficiency, sheet))
    sheet.work_out("rates of the card", lines)
    sheet.check("products_flops", setting.rates.products, MEASURED)
    sheet.check("wide_products_flops", setting.rates.wide_products, MEASURED)
    sheet.check("memory_rate", setting.rates.bandwidth, MEASURED)
    sheet.work_out("rates of the card", tuple(_following()))
    return setting


def _rates(power_known: bool, efficiency: float, sheet: Sheet) -> Iterator[Line]:
    share = "matmul_efficiency * step_share"
    if power_known:
        density = "peak_16bit_flops * matmul_efficiency / power_w"
        yield Line("flops_per_watt", "FLOP/s/W", density, f"{RATES}; clocks fall beyond the knee")
        dense = sheet.values["peak_16bit_flops"] * efficiency / sheet.values["power_w"]
        if dense > sheet.values["power_knee"]:
            share += " * (power_knee / flops_per_watt) ** power_fall"
    yield Line("sustained_share", "share", share, RATES)
    yield Line("products_flops", "FLOP/s", "sustained_share * peak_flops", RATES)
    wide = "min(products_flops, sustained_share * peak_16bit_flops)"
    yield Line("wide_products_flops", "FLOP/s", wide, f"{RATES}; products that stay in 16 bits")
    yield Line("memory_rate", "bytes/s", "memory_bytes_per_s * bandwidth_share", RATES)


def _following() -> Iterator[Line]:
    """What rests on those rates, measured or not."""
    yield Line("attention_flops", "FLOP/s", "wide_products_flops * attention_share", RATES)
    yield Line("passes", "", "1 + backward_passes + repeated", "forward, backward, recomputation")


def take_layer(sheet: Sheet, plan: Plan, setting: Setting, *, moe_layer: bool) -> None:
    """Seconds of one layer without its collectives: `dense_layer_s` or `moe_layer_s`."""
    model, kind = plan.model, "moe" if moe_layer else "dense"
    products = [("attention", p) for p in attention_products(model)]
    products += [("mlp", p) for p in mlp_products(model, moe_layer)]
    named = {
        (f"{kind}_{part}_{index}", product): count
        for index, ((part, product), count) in enumerate(Counter(products).items(), start=1)
    }
    lines, sums = [], []
    for (name, product), count in named.items():
        _give_product(sheet, name, product, count=count)
        lines.append(_product(name, "products_flops", quantised=_quantised(setting)))
        sums.append(f"{name}_s")
    sheet.give(ROOFLINE, "bytes", quantise_bytes=roofline.QUANTISE_BYTES)
    elements = " + ".join(f"{name}_count * {name}_weight" for (name, _) in named)
    lines.append(Line(f"{kind}_product_elements", "elements", elements, "weights of the products"))
    _give_rest(sheet, plan, setting, moe_layer=moe_layer)
    lines += _rest(kind, moe_layer=moe_layer, fp32=setting.execution.gradients == "fp32")
    if setting.dequantise_bytes:
        lines[-1] = _with_dequantised(sheet, plan, lines[-1], moe_layer=moe_layer)
    parts = (*sums, "attention_scores_s", f"{kind}_rest_s", f"{kind}_weights_s")
    lines.append(Line(f"{kind}_layer_s", "s", " + ".join(parts), "sum of its parts"))
    sheet.work_out("compute of a micro batch", tuple(lines))


def _quantised(setting: Setting) -> bool:
    return setting.rates.products > setting.rates.wide_products


def _give_product(sheet: Sheet, name: str, product: Product, *, count: int) -> None:
    cut = product.inputs if product.narrow == product.inputs else product.outputs
    source = f"a token's vector times ({product.inputs}, {product.outputs}), estimate/flops.py"
    sheet.give(
        source,
        "elements",
        **{
            f"{name}_weight": product.elements,
            f"{name}_cut": cut,
            f"{name}_sides": product.inputs + product.outputs,
        },
    )
    sheet.give(source, **{f"{name}_count": count})


def _product(name: str, rate: str, *, quantised: bool, tp: str = "tp") -> Line:
    """All passes of a product that tensor ranks share."""
    size = "(element_bytes + quantise_bytes)" if quantised else "element_bytes"
    sides = f"({name}_sides - {name}_cut + {name}_cut / {tp})"
    once = f"kernel_s + element_bytes * {name}_weight / {tp} / memory_rate"
    token = f"2 * {name}_weight / {tp} / {rate} + {size} * {sides} / memory_rate"
    formula = f"{name}_count * passes * ({once} + micro_tokens * ({token}))"
    return Line(f"{name}_s", "s", formula, ROOFLINE)


def _give_rest(sheet: Sheet, plan: Plan, setting: Setting, *, moe_layer: bool) -> None:
    model, fused = plan.model, setting.fused
    norm = roofline.NORM if fused or model.norm != "rmsnorm" else roofline.EAGER_RMSNORM
    gated = roofline.GATED if fused else roofline.EAGER_GATED
    activation = gated if model.gated_mlp else roofline.PLAIN
    rotary = roofline.ROTARY if fused else roofline.EAGER_ROTARY
    rotary = rotary if model.position == "rope" else (0.0, 0.0)
    source = "estimate/lines.py: elements read and written for one element, by kernel"
    for index, way in enumerate(("forward", "backward")):
        sheet.give(
            source,
            **{
                f"norm_{way}": norm[index],
                f"activation_{way}": activation[index],
                f"rotary_{way}": rotary[index],
            },
        )
    sheet.give(source, residual=roofline.RESIDUAL, permuted=roofline.PERMUTED)
    sheet.give("sequence parallel: ranks that share activations", rim_ranks=setting.cut)
    context = attention_context(model, plan.workload.sequence_length)
    sheet.give("tokens that one token attends to, mean (estimate/flops.py)", context=context)
    width = 2 * model.attention_heads * model.head_size
    if model.mla is not None:
        sizes = model.mla.nope_head_size + model.mla.rope_head_size + model.mla.v_head_size
        width = model.attention_heads * sizes
    sheet.give("queries times keys, scores times values", "elements", score_width=width)
    passes = roofline.ATTENTION_BACKWARD
    sheet.give("backward of attention in forwards (Dao 2022)", attention_backward=passes)
    sheet.give("gradient sums are read and written in float32", "bytes", sum_bytes=8)
    if moe_layer and model.moe is not None:
        matrices = 3 if model.gated_mlp else 2
        elements = matrices * model.hidden_size * model.moe.expert_ffn_hidden_size
        sheet.give("one routed expert", "elements", expert_elements=elements)


def _rest(kind: str, *, moe_layer: bool, fp32: bool) -> list[Line]:
    """Attention over the sequence, what is bound by memory, weights that wait."""
    scores = "micro_tokens * (1 + repeated_scores + attention_backward)"
    scores += " * 2 * score_width * context / tp / attention_flops"
    inner = "ffn_hidden_size"
    if moe_layer:
        inner = "(experts_per_token * expert_ffn_hidden_size + shared_ffn_hidden_size)"
    lines = [Line("attention_scores_s", "s", scores, "flash attention at its own rate")]
    for way in ("forward", "backward"):
        moved = f"norms_per_layer * hidden_size / rim_ranks * (residual + norm_{way})"
        moved += f" + {inner} / tp * activation_{way}"
        moved += f" + (attention_heads + kv_heads) * head_size / tp * rotary_{way}"
        moved += " + experts_per_token * hidden_size * permuted" if moe_layer else ""
        lines.append(Line(f"{kind}_moved_{way}", "elements", moved, ROOFLINE))
    rest = f"{kind}_moved_forward * (1 + repeated) + {kind}_moved_backward"
    rest = f"micro_tokens * element_bytes * ({rest}) / memory_rate"
    lines.append(Line(f"{kind}_rest_s", "s", rest, "norms, activation, rotary, residuals"))
    lines.append(Line(f"{kind}_weights_s", "s", *_weights(kind, moe_layer=moe_layer, fp32=fp32)))
    return lines


def _weights(kind: str, *, moe_layer: bool, fp32: bool) -> tuple[str, str]:
    """Experts that no token of ours passes are read too; sums of gradients in float32."""
    idle = "max(0, experts / ep - experts_per_token) * expert_elements" if moe_layer else "0"
    read = f"passes * element_bytes * {idle}"
    if fp32:
        read += f" + sum_bytes * ({kind}_product_elements + {idle})"
    return f"({read}) / tp / memory_rate", "idle experts are read; gradients are summed in float32"


def _with_dequantised(sheet: Sheet, plan: Plan, weights: Line, *, moe_layer: bool) -> Line:
    """The line of weights that wait, with the frozen ones in 4 bits."""
    packed = f"{'moe' if moe_layer else 'dense'}_quantised_elements"
    elements = layer_quantised_elements(plan.model, moe_layer=moe_layer)
    sheet.give("estimate/quantised.py: matrices of a layer in 4 bits", **{packed: elements})
    sheet.give("read in 4 bits, written in the compute precision", "bytes", nf4_bytes=NF4_BYTES)
    moved = f"passes * (nf4_bytes + element_bytes) * {packed} / tp / memory_rate"
    return weights._replace(
        formula=f"{weights.formula} + {moved}", source=f"{weights.source}; matrices dequantised"
    )


def take_head(sheet: Sheet, plan: Plan, setting: Setting) -> None:
    """Seconds of the output head and the loss."""
    model, run = plan.model, setting.execution
    engine = run.trainer == "deepspeed"
    product = Product(model.hidden_size, model.vocab_size, model.vocab_size)
    _give_product(sheet, "head", product, count=1)
    loss = loss_of(model, plan.strategy)
    moved = roofline.logit_bytes(run, loss)
    source = f"estimate/lines.py: bytes moved for each logit, the loss being {loss}"
    sheet.give(source, "bytes", logit_moved_bytes=moved)
    tp = "1" if engine else "tp"
    line = _product("head", "wide_products_flops", quantised=False, tp=tp)
    formula = line.formula.replace("head_count * passes", "(1 + backward_passes)")
    formula += f" + micro_tokens * logit_moved_bytes * vocab_size / {tp} / memory_rate"
    if loss == "chunked" and plan.workload.method == "full":
        formula += _summed(sheet, plan)
    sheet.work_out("compute of a micro batch", (line._replace(formula=formula),))


def _summed(sheet: Sheet, plan: Plan) -> str:
    """What several chunks add: each reads and writes the sum of the head's gradient."""
    model = plan.model
    chunks = chunks_of(model.vocab_size, model.embedding_size, trained=True)
    if sheet.values["micro_tokens"] <= chunks.one:
        return ""
    moved = roofline.summed_bytes(int(sheet.values["element_bytes"]))
    source = "estimate/lines.py: bytes that a chunk of the loss moves for each weight of the head"
    sheet.give(source, "bytes", summed_bytes=moved)
    sheet.give("estimate/loss.py: tokens of a chunk", "tokens", chunk_rows=chunks.rows)
    share = "micro_tokens / chunk_rows"
    return f" + {share} * summed_bytes * vocab_size * embedding_size / memory_rate"
