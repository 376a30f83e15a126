"""Parameters that one rank holds, from the shape of the model."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.estimate.params import NORM_VECTORS, lora_parameters, parameter_counts
from dsforge.estimate.quantised import quantised_elements
from dsforge.estimate.states import Load, shares
from dsforge.explain.sheet import Line, Sheet
from dsforge.plan import Plan
from dsforge.specs import ModelSpec

COUNT = "estimate/params.py: exact, equal to what transformers builds"
NF4 = "estimate/quantised.py, nf4 with double quantisation (Dettmers et al. 2023)"
CUT = "estimate/shard.py: tensor ranks share matrices, stages share layers"


def take_parameters(sheet: Sheet, plan: Plan, load: Load) -> None:
    """Figures up to what one rank of a stage holds and trains, and ZeRO's shards of it."""
    model, stage = plan.model, load.stage
    _give_counts(sheet, model)
    sheet.give(
        "the pipeline stage that is explained",
        stage_layers=stage.layers,
        stage_moe_layers=stage.moe_layers,
        has_embedding=int(stage.has_embedding),
        has_head=int(stage.has_head),
        holds_head_copy=int(stage.has_head and model.tied_embeddings and not stage.has_embedding),
    )
    group = shares(plan.strategy)
    sheet.give(
        "ranks over which ZeRO shards: dp x cp, for experts dp x cp / ep",
        "ranks",
        shard_ranks=group.shared,
        expert_shard_ranks=group.experts,
    )
    sheet.work_out("parameters", tuple(_lines(plan, sheet)))


def _give_counts(sheet: Sheet, model: ModelSpec) -> None:
    counts = parameter_counts(model)
    dense = next((layer for layer in counts.layers if not layer.experts), None)
    sparse = next((layer for layer in counts.layers if layer.experts), None)
    attention = counts.layers[0].attention
    if model.mla is None:
        matrices = model.hidden_size * 2 * (model.attention_heads + model.kv_heads)
        extras = attention - matrices * model.head_size
        sheet.give(f"{COUNT}: biases, norms of queries and keys", attention_extras=extras)
    else:
        sheet.give(f"{COUNT}: latent attention", attention_parameters=attention)
    sheet.give("model", norm_vectors=NORM_VECTORS[model.norm])
    if dense is not None:
        sheet.give(f"{COUNT}: biases of the MLP", mlp_bias_parameters=_mlp_biases(model))
        sheet.give("model", mlp_matrices=3 if model.gated_mlp else 2)
    if sparse is not None:
        sheet.give(
            f"{COUNT}: shared experts, router, routed experts of a MoE layer",
            shared_expert_parameters=sparse.mlp,
            router_parameters=sparse.router,
            routed_expert_parameters=sparse.experts,
        )
    around = counts.embedding + counts.position_embedding + counts.other
    words = model.vocab_size * model.embedding_size
    sheet.give(
        f"{COUNT}: positions, segments, projections, embedding norm",
        other_embedding_parameters=around - words,
    )
    sheet.give(
        f"{COUNT}: final norm, head bias; a tied head has no matrix of its own",
        after_head_parameters=counts.head_bias + counts.final_norm,
        untied_head=int(counts.head > 0),
    )


def _mlp_biases(model: ModelSpec) -> int:
    if not model.mlp_bias:
        return 0
    return (2 if model.gated_mlp else 1) * model.ffn_hidden_size + model.hidden_size


def _lines(plan: Plan, sheet: Sheet) -> Iterator[Line]:
    """Figures of one rank."""
    model = plan.model
    if model.mla is None:
        matrices = "hidden_size * 2 * (attention_heads + kv_heads) * head_size"
        why = f"{COUNT}: query, key, value, output"
        yield Line("attention_parameters", "elements", f"{matrices} + attention_extras", why)
    yield Line("norm_parameters", "elements", "norms_per_layer * norm_vectors * hidden_size", COUNT)
    layer = []
    if "mlp_matrices" in sheet.values:
        mlp = "mlp_matrices * hidden_size * ffn_hidden_size + mlp_bias_parameters"
        yield Line("mlp_parameters", "elements", mlp, COUNT)
        dense = "attention_parameters + norm_parameters + mlp_parameters"
        yield Line("dense_layer_parameters", "elements", dense, COUNT)
        layer.append("(stage_layers - stage_moe_layers) * dense_layer_parameters")
    if model.moe is not None:
        sparse = "attention_parameters + norm_parameters + shared_expert_parameters"
        sparse += " + router_parameters"
        yield Line("moe_layer_parameters", "elements", sparse, f"{COUNT}; without routed experts")
        layer.append("stage_moe_layers * moe_layer_parameters")
    yield from _around(layer)
    yield from _held(plan, sheet)


def _around(layer: list[str]) -> Iterator[Line]:
    words = "vocab_size * embedding_size"
    yield Line("embedding_parameters", "elements", f"{words} + other_embedding_parameters", COUNT)
    head = f"untied_head * {words} + after_head_parameters"
    yield Line("head_parameters", "elements", head, COUNT)
    whole = " + ".join((*layer, "has_embedding * embedding_parameters"))
    whole += f" + has_head * head_parameters + holds_head_copy * {words}"
    yield Line("shared_parameters", "elements", f"ceil(({whole}) / tp)", CUT)


def _held(plan: Plan, sheet: Sheet) -> Iterator[Line]:
    """Held, trained, and the shards of both."""
    model, experts = plan.model, "0"
    if model.moe is not None:
        experts = "ceil(stage_moe_layers * routed_expert_parameters / (tp * ep))"
    yield Line("expert_parameters", "elements", experts, CUT)
    trained, trained_experts, adapters = "shared_parameters", "expert_parameters", ""
    if plan.workload.method == "lora" and plan.workload.lora is not None:
        count = lora_parameters(model, plan.workload.lora)
        sheet.give(f"adapters of rank {plan.workload.lora.rank}: {COUNT}", lora_parameters=count)
        share = "ceil(lora_parameters * stage_layers / (layers * tp))"
        yield Line("adapter_parameters", "elements", share, CUT)
        trained, trained_experts, adapters = "adapter_parameters", "0", " + adapter_parameters"
    if plan.workload.in_4_bits:
        sheet.give(f"{NF4}: linear layers but the head", quantised_total=quantised_elements(model))
        share = "quantised_total * stage_layers // (layers * tp)"
        yield Line("quantised_parameters", "elements", share, CUT)
    held = f"shared_parameters + expert_parameters{adapters}"
    yield Line("held_parameters", "elements", held, "all that a rank would hold whole")
    all_trained = f"{trained} + {trained_experts}"
    yield Line("trained_parameters", "elements", all_trained, "those with a gradient")
    zero = "ZeRO (Rajbhandari et al. 2020): each rank keeps its share"
    shard = f"(shared_parameters{adapters}) / shard_ranks + expert_parameters / expert_shard_ranks"
    yield Line("shard_parameters", "elements", shard, zero)
    shard = f"{trained} / shard_ranks + {trained_experts} / expert_shard_ranks"
    yield Line("trained_shard_parameters", "elements", shard, zero)
