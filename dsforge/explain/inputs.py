"""What a plan gives to every formula: sizes of model, cluster, workload and strategy."""

from __future__ import annotations

from dsforge.estimate.activations import element_bytes
from dsforge.estimate.rates import peak_flops
from dsforge.explain.sheet import Line, Sheet
from dsforge.plan import Plan

BATCH = (
    Line("world_size", "ranks", "dp * tp * pp * cp", "every rank has one place in the grid"),
    Line(
        "global_batch_size",
        "samples",
        "micro_batch_size * accumulation_steps * dp",
        "DeepSpeedConfig._batch_assertion; Megatron's num_microbatches_calculator",
    ),
    Line("tokens_per_step", "tokens", "global_batch_size * sequence_length", "definition"),
    Line(
        "micro_tokens",
        "tokens",
        "micro_batch_size * sequence_length / cp",
        "tokens of one micro batch on one rank: context ranks share a sequence",
    ),
)


def take_inputs(sheet: Sheet, plan: Plan) -> None:
    """Everything that stands in the plan, and the arithmetic of its batch."""
    _take_model(sheet, plan)
    _take_cluster(sheet, plan)
    strategy, layout = plan.strategy, plan.strategy.layout
    sheet.give("workload", "tokens", sequence_length=plan.workload.sequence_length)
    sheet.give("precision of the workload", "bytes", element_bytes=element_bytes(plan.workload))
    sheet.give(
        "strategy: layout",
        "ranks",
        dp=layout.data_parallel_size,
        tp=layout.tensor_parallel_size,
        pp=layout.pipeline_parallel_size,
        cp=layout.context_parallel_size,
        ep=layout.expert_parallel_size,
    )
    sheet.give("strategy", "samples", micro_batch_size=strategy.micro_batch_size)
    sheet.give(
        "strategy",
        hpz_partition_size=strategy.hpz_partition_size,
        accumulation_steps=strategy.gradient_accumulation_steps,
        virtual_stages=strategy.virtual_stages,
    )
    sheet.work_out("batch", BATCH)


def _take_model(sheet: Sheet, plan: Plan) -> None:
    model = plan.model
    source = f"model {model.name}"
    sheet.give(
        source,
        layers=model.layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        attention_heads=model.attention_heads,
        kv_heads=model.kv_heads,
        head_size=model.head_size,
        vocab_size=model.vocab_size,
        embedding_size=model.embedding_size,
        norms_per_layer=model.norms_per_layer,
    )
    if model.moe is not None:
        sheet.give(
            source,
            experts=model.moe.experts,
            experts_per_token=model.moe.experts_per_token,
            expert_ffn_hidden_size=model.moe.expert_ffn_hidden_size,
            shared_ffn_hidden_size=model.moe.shared_ffn_hidden_size,
        )


def _take_cluster(sheet: Sheet, plan: Plan) -> None:
    cluster, gpu = plan.cluster, plan.cluster.gpu
    sheet.give(
        "cluster", "nodes", nodes=cluster.nodes, nvlink_domain_nodes=cluster.nvlink_domain_nodes
    )
    sheet.give("cluster", "ranks", gpus_per_node=cluster.gpus_per_node)
    source = f"{gpu.name}: {gpu.source}"
    sheet.give(source, "bytes", gpu_memory_bytes=gpu.memory_bytes)
    sheet.give(source, "bytes/s", memory_bytes_per_s=gpu.memory_bytes_per_s)
    sheet.give(source, "share", matmul_efficiency=gpu.matmul_efficiency)
    sheet.give(
        source,
        "FLOP/s",
        peak_flops=peak_flops(gpu, plan.workload.precision),
        peak_16bit_flops=peak_flops(gpu, "bf16"),
    )
    if gpu.power_w is not None:
        sheet.give(source, "W", power_w=gpu.power_w)
