"""The time of one step, worked out term by term."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.estimate import offload as copies
from dsforge.estimate import time as clock
from dsforge.estimate import traffic, ulysses
from dsforge.estimate.comm import ALONE, hop_spread, spread
from dsforge.estimate.compute import layer_host_s
from dsforge.estimate.frame import Frame
from dsforge.estimate.lines import Setting
from dsforge.estimate.spread import Spread
from dsforge.estimate.work import pace
from dsforge.explain.exchanges import name_of, take_exchanges
from dsforge.explain.links import MEASURED, take_channel
from dsforge.explain.products import take_head, take_layer, take_rates
from dsforge.explain.sheet import Line, Sheet
from dsforge.plan import Plan
from dsforge.strategy import GRADIENTS_SHARDED, Strategy

CUT = "estimate/cut.py: layers of the stages"


def take_time(sheet: Sheet, plan: Plan, frame: Frame) -> None:
    """Figures of every time term and of the step."""
    setting = take_rates(sheet, plan)
    _take_channels(sheet, plan, frame)
    _take_micro_batch(sheet, plan, frame, setting)
    take_exchanges(sheet, plan, frame)
    _take_terms(sheet, plan, frame)


def _take_channels(sheet: Sheet, plan: Plan, frame: Frame) -> None:
    """The groups of ranks that talk at all."""
    layout, links, cluster = plan.strategy.layout, frame.links, plan.cluster
    tp, pp = layout.tensor_parallel_size, layout.pipeline_parallel_size
    second = plan.strategy.hpz_partition_size > 1
    groups = {
        "tensor": (links.tensor, 1),
        "context": (links.context, tp),
        "data": (links.shards, tp),
        "group": (links.updates if second else ALONE, tp),
        "expert": (links.expert, tp),
        "expert_data": (
            links.expert_shards if links.expert.ranks > 1 else ALONE,
            tp * layout.expert_parallel_size,
        ),
    }
    for name, (link, stride) in groups.items():
        if link.ranks > 1:
            take_channel(sheet, name, link, spread(cluster, link.ranks, stride))
    if pp > 1:
        slowest = hop_spread(cluster, pp, layout.shard_ranks * tp)
        take_channel(sheet, "pipeline", links.pipeline, slowest)
        take_channel(sheet, "neighbour", links.neighbours, Spread(2, 2, 1, 1))


def _take_micro_batch(sheet: Sheet, plan: Plan, frame: Frame, setting: Setting) -> None:
    """One micro batch on the slowest stage."""
    model, found = plan.model, pace(frame, plan.strategy)
    slow = found.slowest(sheet.values["micro_tokens"])
    sheet.give(
        CUT,
        "layers",
        slowest_dense_layers=slow.dense_layers,
        slowest_moe_layers=slow.moe_layers,
        slowest_layers=slow.layers,
        slowest_heads=int(slow.has_head),
        all_dense_layers=model.layers - model.moe_layers,
        all_moe_layers=model.moe_layers,
    )
    host_s = layer_host_s(plan.cluster, plan.workload, plan.strategy, setting.passes)
    sheet.give("estimate/compute.py: the host launches a layer's kernels", "s", host_layer_s=host_s)
    take_layer(sheet, plan, setting, moe_layer=False)
    if model.moe_layers:
        take_layer(sheet, plan, setting, moe_layer=True)
    take_head(sheet, plan, setting)
    sheet.work_out("compute of a micro batch", tuple(_inside(sheet, plan, setting)))
    sheet.work_out("compute of a micro batch", tuple(_stages(moe=bool(model.moe_layers))))


def _inside(sheet: Sheet, plan: Plan, setting: Setting) -> Iterator[Line]:
    """Collectives inside a layer: of tensor, context and expert ranks."""
    strategy, found = plan.strategy, []
    one = "hidden_size * element_bytes"
    if "tensor_ranks" in sheet.values:
        found.append("tensor_layer_s")
        rounds = 6 if strategy.recompute == "full" else 4
        why = "two all-reduces in forward, two in backward (Megatron-LM, figure 4)"
        share = f"(tensor_ranks - 1) / tensor_ranks * {one} / tensor_rate"
        sent = f"micro_tokens * 2 * {share} / tensor_reduce_share"
        formula = f"{rounds} * (tensor_tree_s + {sent})"
        if strategy.sequence_parallel:
            why = f"{why}, as gathers and scatters; inputs are gathered again"
            gathered = f"{rounds + 2} * (tensor_round_s + micro_tokens * {share})"
            scattered = f"micro_tokens * {share} / tensor_scatter_share"
            formula = f"{gathered} + {rounds} * (tensor_round_s + {scattered})"
        yield Line("tensor_layer_s", "s", formula, why)
    if "context_ranks" in sheet.values:
        found.append("context_layer_s")
        yield _context(strategy)
    yield Line("layer_collectives_s", "s", " + ".join(found) or "0", "sum of its parts")
    if "expert_ranks" in sheet.values and "moe_layer_s" in sheet.values:
        found.append("expert_layer_s")
        share = f"(expert_ranks - 1) / expert_ranks * experts_per_token * {one} / expert_rate"
        formula = f"4 * (expert_round_s + micro_tokens * {share} / expert_exchange_share)"
        yield Line("expert_layer_s", "s", formula, "tokens to their experts and back, twice")
    if "moe_layer_s" in sheet.values:
        why = "sum of its parts, in a layer with experts"
        yield Line("moe_collectives_s", "s", " + ".join(found) or "0", why)


def _context(strategy: Strategy) -> Line:
    """The ranks of a sequence: Megatron's ring, or Ulysses."""
    if strategy.back_end != "deepspeed":
        keys = "2 * kv_heads * head_size / tp * element_bytes * (context_ranks - 1)"
        formula = f"1.5 * (context_round_s + micro_tokens * {keys} / context_rate)"
        return Line("context_layer_s", "s", formula, "keys and values around the ring, half hidden")
    passes, messages = ulysses.passes(strategy), ulysses.messages(strategy)
    width = "2 * (attention_heads + max(kv_heads, context_ranks)) * head_size"
    share = "(context_ranks - 1) / context_ranks / (context_rate * context_exchange_share)"
    sent = f"{passes} * micro_tokens * {width} * element_bytes * {share}"
    why = "Ulysses: queries, keys, values to the ranks of their heads, the output back"
    return Line("context_layer_s", "s", f"{messages} * context_round_s + {sent}", why)


def _stages(*, moe: bool) -> Iterator[Line]:
    """The slowest stage, and the mean of all."""
    why = "no faster than the host launches it"
    layer = "max(dense_layer_s + layer_collectives_s, host_layer_s)"
    yield Line("layer_s", "s", layer, why)
    slowest, inside = "slowest_dense_layers * layer_s", "slowest_dense_layers * layer_collectives_s"
    every = "all_dense_layers * layer_s"
    if moe:
        layer = "max(moe_layer_s + moe_collectives_s, host_layer_s)"
        yield Line("expert_stage_layer_s", "s", layer, f"a layer with experts: {why}")
        slowest += " + slowest_moe_layers * expert_stage_layer_s"
        inside += " + slowest_moe_layers * moe_collectives_s"
        every += " + all_moe_layers * expert_stage_layer_s"
    yield Line("slowest_stage_s", "s", f"{slowest} + slowest_heads * head_s", f"{CUT}: slowest")
    yield Line("mean_stage_s", "s", f"({every} + head_s) / pp", f"{CUT}: mean of all stages")
    yield Line("micro_collectives_s", "s", inside, "inside its layers")
    compute = "slowest_stage_s - micro_collectives_s"
    yield Line("micro_compute_s", "s", compute, "one micro batch on the slowest stage")


def _take_terms(sheet: Sheet, plan: Plan, frame: Frame) -> None:
    lines = [Line("compute_s", "s", "accumulation_steps * micro_compute_s", "every micro step")]
    parts = ["accumulation_steps * micro_collectives_s"]
    for exchange in traffic.exchanges(frame, plan.strategy):
        often = "accumulation_steps * " if exchange.every_micro_step else ""
        parts.append(f"{often}{name_of(exchange)}_exposed_s")
    if "pipeline_ranks" in sheet.values:
        parts.append("sends_exposed_s")
    why = "inside layers, gradients and weights, between stages"
    if plan.strategy.zero_stage >= GRADIENTS_SHARDED and plan.strategy.back_end == "deepspeed":
        why += "; ZeRO stage 2 and 3 reduce in every micro step"
    lines.append(Line("communication_s", "s", " + ".join(parts), why))
    why = "1F1B (Narayanan et al. 2021, section 2.2)"
    lines.append(Line("bubble_s", "s", "(pp - 1) / virtual_stages * mean_stage_s", why))
    lines += _offload(sheet, plan)
    lines += _optimizer(sheet, plan)
    sheet.work_out("time by term", tuple(lines))
    _take_step(sheet)


def _offload(sheet: Sheet, plan: Plan) -> Iterator[Line]:
    """Copies to the host and to the disk."""
    strategy, cluster = plan.strategy, plan.cluster
    if not strategy.offloads:
        yield Line("offload_s", "s", "0", "nothing is offloaded")
        return
    gpu, source = cluster.gpu, "estimate/offload.py"
    if gpu.measured is not None and gpu.measured.host_copy_bytes_per_s is not None:
        sheet.give(MEASURED, "bytes/s", host_link=gpu.measured.host_copy_bytes_per_s)
        sheet.give("what was measured counts in full", "share", link_share=1.0)
    else:
        sheet.give(f"{gpu.name}: {gpu.source}", "bytes/s", host_link=gpu.host_link_bytes_per_s)
        sheet.give(f"{source}: of the rating", "share", link_share=copies.LINK_SHARE)
    sheet.give(source, "share", copies_hidden=copies.HIDDEN)
    once, each, disk_once, disk = _offloaded_bytes(strategy)
    rate = "(1 - copies_hidden) / (host_link * link_share)"
    formula = f"({once} + accumulation_steps * ({each})) * {rate}"
    if cluster.nvme is not None and "nvme" in (
        strategy.offload_optimizer,
        strategy.offload_parameters,
    ):
        nvme = cluster.nvme
        sheet.give(
            "disk of the cluster file",
            "bytes/s",
            disk_read=nvme.read_bytes_per_s,
            disk_write=nvme.write_bytes_per_s,
        )
        both = "gpus_per_node * (1 / disk_read + 1 / disk_write) / 2"
        formula += f" + ({disk_once} + accumulation_steps * ({disk})) * {both}"
    why = f"{source}: PCIe both ways, hidden in part; all ranks of a node share the disk"
    yield Line("offload_s", "s", formula, why)


def _offloaded_bytes(strategy: Strategy) -> tuple[str, str, str, str]:
    """Bytes over PCIe once a step and in each micro step, and the same of the disk."""
    once = each = disk_once = disk = "0"
    if strategy.offload_optimizer != "none":
        once = each = "element_bytes * pace_trained_shard"
        if strategy.offload_optimizer == "nvme":
            state = "(master_bytes + moments * moment_bytes + 2)"
            disk_once = f"2 * pace_trained_shard * {state}"
    if strategy.offload_parameters != "none":
        passes = 3 if strategy.recompute == "full" else 2
        weights = f"{passes} * element_bytes * pace_shard"
        each = weights if each == "0" else f"{each} + {weights}"
        disk = weights if strategy.offload_parameters == "nvme" else "0"
    return once, each, disk_once, disk


def _optimizer(sheet: Sheet, plan: Plan) -> Iterator[Line]:
    sheet.give(
        "estimate/time.py: gradient norm, clipping, Python", "s", overhead_s=clock.STEP_OVERHEAD_S
    )
    shard = "pace_trained_shard"
    if plan.strategy.runs_as.offload_ratio < 1:
        shard += " * offloaded_share"
    formula = "overhead_s + (2 * pace_optimizer_state + 8 * pace_trained_parameters) / memory_rate"
    if plan.strategy.offload_optimizer != "none" and plan.cluster.cpu_adam_per_s is not None:
        sheet.give(f"{MEASURED}: parameters a second", node_adam=plan.cluster.cpu_adam_per_s)
        formula += f" + {shard} * gpus_per_node / node_adam"
    elif plan.strategy.offload_optimizer != "none":
        sheet.give(
            "estimate/offload.py: parameters a second of CPU Adam (ops/adam benchmark)",
            adam_per_core=copies.ADAM_PER_CORE,
            adam_per_node=copies.ADAM_PER_NODE,
        )
        sheet.give("cluster", cpu_cores=plan.cluster.cpu_cores)
        rate = "min(adam_per_core * cpu_cores, adam_per_node) / gpus_per_node"
        formula += f" + {shard} / ({rate})"
    yield Line("optimizer_s", "s", formula, "states read and written, gradients, weights")


def _take_step(sheet: Sheet) -> None:
    source = "estimate/time.py: 80 % of published steps lie within"
    for index, end in ((0, "low"), (1, "high")):
        sheet.give(source, **{f"compute_error_{end}": clock.COMPUTE_ERROR[index]})
        sheet.give(source, **{f"communication_error_{end}": clock.COMMUNICATION_ERROR[index]})
    sure, unsure = "compute_s + optimizer_s", "communication_s + bubble_s + offload_s"
    lines = [Line("step_likely", "s", f"{sure} + {unsure}", "sum of the terms")]
    for end in ("low", "high"):
        formula = f"({sure}) * compute_error_{end} + ({unsure}) * communication_error_{end}"
        lines.append(Line(f"step_{end}", "s", formula, source))
    sheet.work_out("time in all", tuple(lines))
