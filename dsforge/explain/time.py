"""The time of one step, worked out term by term."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.estimate import offload as copies
from dsforge.estimate import time as clock
from dsforge.estimate import traffic
from dsforge.estimate.comm import ALONE
from dsforge.estimate.compute import layer_host_s
from dsforge.estimate.frame import Frame
from dsforge.estimate.lines import Setting
from dsforge.estimate.schedule import stages
from dsforge.explain.links import MEASURED, take_channel
from dsforge.explain.products import take_head, take_layer, take_rates
from dsforge.explain.sheet import Line, Sheet
from dsforge.plan import Plan
from dsforge.strategy import FULLY_SHARDED, GRADIENTS_SHARDED, Strategy

FITTED = "estimate/traffic.py: fitted over all published rows"
SCHEDULE = "estimate/schedule.py: layers of the stages"
EXPOSED = "what is not hidden beside compute; never less than a share"


def take_time(sheet: Sheet, plan: Plan, frame: Frame) -> None:
    """Figures of every time term and of the step."""
    setting = take_rates(sheet, plan)
    _take_channels(sheet, plan, frame)
    _take_micro_batch(sheet, plan, setting)
    sheet.work_out("collectives outside the layers", tuple(_exchanges(sheet, plan, frame)))
    _take_terms(sheet, plan, frame)


def _take_channels(sheet: Sheet, plan: Plan, frame: Frame) -> None:
    """The groups of ranks that talk at all."""
    layout, links = plan.strategy.layout, frame.links
    tp, cp, dp = (
        layout.tensor_parallel_size,
        layout.context_parallel_size,
        layout.data_parallel_size,
    )
    groups = {
        "tensor": (links.tensor, 1),
        "context": (links.context, tp),
        "data": (links.shards, tp),
        "group": (links.updates if plan.strategy.hpz_partition_size > 1 else ALONE, tp),
        "expert": (links.expert, tp * cp),
        "pipeline": (links.pipeline, dp * cp * tp),
    }
    for name, (link, stride) in groups.items():
        if link.ranks > 1:
            take_channel(sheet, plan, name, link, stride=stride)


def _take_micro_batch(sheet: Sheet, plan: Plan, setting: Setting) -> None:
    """One micro batch on the slowest stage."""
    split = stages(
        plan.model, plan.strategy.layout.pipeline_parallel_size, setting.execution.trainer
    )
    sheet.give(
        SCHEDULE,
        "layers",
        body_layers=split.body,
        last_layers=split.last,
        mean_layers=split.mean,
    )
    sheet.give(f"{SCHEDULE}; share of them with experts", moe_share=split.moe_share)
    host_s = layer_host_s(plan.cluster, plan.workload, plan.strategy, setting.passes)
    sheet.give("estimate/compute.py: the host launches a layer's kernels", "s", host_layer_s=host_s)
    take_layer(sheet, plan, setting, moe_layer=False)
    if split.moe_share:
        take_layer(sheet, plan, setting, moe_layer=True)
    take_head(sheet, plan, setting)
    sheet.work_out("compute of a micro batch", tuple(_inside(sheet, plan, setting)))
    sheet.work_out("compute of a micro batch", tuple(_stages(sheet, moe=bool(split.moe_share))))
    body, last = sheet.values["body_s"], sheet.values["last_s"]
    slowest = "last_layers" if last >= body else "body_layers"
    sheet.work_out("compute of a micro batch", tuple(_slowest(slowest)))


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
        keys = "2 * kv_heads * head_size / tp * element_bytes * (context_ranks - 1)"
        formula = f"1.5 * (context_round_s + micro_tokens * {keys} / context_rate)"
        yield Line("context_layer_s", "s", formula, "keys and values around the ring, half hidden")
    if "expert_ranks" in sheet.values and "moe_layer_s" in sheet.values:
        found.append("moe_share * expert_layer_s")
        share = f"(expert_ranks - 1) / expert_ranks * experts_per_token * {one} / expert_rate"
        formula = f"4 * (expert_round_s + micro_tokens * {share} / expert_exchange_share)"
        yield Line("expert_layer_s", "s", formula, "tokens to their experts and back, twice")
    yield Line("layer_collectives_s", "s", " + ".join(found) or "0", "sum of its parts")


def _stages(sheet: Sheet, *, moe: bool) -> Iterator[Line]:
    layer = "dense_layer_s"
    layer += " + moe_share * (moe_layer_s - dense_layer_s)" if moe else ""
    why = "no faster than the host launches it"
    yield Line("layer_s", "s", f"max({layer} + layer_collectives_s, host_layer_s)", why)
    yield Line("body_s", "s", "body_layers * layer_s", f"{SCHEDULE}: fullest stage without head")
    yield Line("last_s", "s", "last_layers * layer_s + head_s", f"{SCHEDULE}: stage with the head")
    mean = "mean_layers * layer_s + head_s / pp"
    yield Line("mean_stage_s", "s", mean, f"{SCHEDULE}: mean of all stages")


def _slowest(layers: str) -> Iterator[Line]:
    yield Line("slowest_layers", "layers", layers, f"{SCHEDULE}: of the slower stage")
    yield Line(
        "micro_collectives_s", "s", "slowest_layers * layer_collectives_s", "inside its layers"
    )
    compute = "max(body_s, last_s) - micro_collectives_s"
    yield Line("micro_compute_s", "s", compute, "one micro batch on the slowest stage")


def _name(exchange: str) -> str:
    return exchange.replace(",", "").replace("-", "_").replace(" ", "_")


def _exchanges(sheet: Sheet, plan: Plan, frame: Frame) -> Iterator[Line]:
    """Seconds on the wire of gradients and weights, and what of them shows."""
    strategy = plan.strategy
    sheet.give(FITTED, never_hidden=traffic.NEVER_HIDDEN)
    found = traffic.exchanges(frame, strategy)
    if found:
        yield from _payloads(sheet, plan)
    for exchange in found:
        name = _name(exchange.name)
        sheet.give(
            f"{FITTED}; share of a micro batch's compute that may hide it",
            **{f"{name}_hiding": exchange.hidden_share},
        )
        yield Line(f"{name}_s", "s", _wire(name), "estimate/traffic.py, read in the engine")
        shown = f"max({name}_s - {name}_hiding * micro_compute_s, never_hidden * {name}_s)"
        yield Line(f"{name}_exposed_s", "s", shown, EXPOSED)
    yield from _between(sheet, strategy)


def _payloads(sheet: Sheet, plan: Plan) -> Iterator[Line]:
    strategy, engine = plan.strategy, plan.strategy.back_end == "deepspeed"
    held = "the rank with the most parameters"
    size = "element_bytes" if engine else "4"
    run, size_of_weight = strategy.runs_as, "element_bytes"
    if strategy.zero_stage == FULLY_SHARDED and run.quantized_gradients:
        size = f"{traffic.QUANTIZED_GRADIENT}"
    if strategy.zero_stage == FULLY_SHARDED and run.quantized_weights:
        size_of_weight = f"{traffic.QUANTIZED_WEIGHT}"
    yield Line("gradient_bytes", "bytes", f"{size} * pace_trained_parameters", held)
    yield Line("weight_bytes", "bytes", f"{size_of_weight} * pace_held_parameters", held)
    yield Line("updated_bytes", "bytes", "element_bytes * pace_trained_parameters", held)
    if strategy.zero_stage == FULLY_SHARDED:
        gathers = 3 if strategy.recompute == "full" else 2
        sheet.give("forward, backward, recomputation: weights gathered for each", gathers=gathers)
        return
    sheet.give(FITTED, "bytes", message_bytes=traffic.MESSAGE_BYTES)
    message = "element_bytes * reduce_bucket_size" if engine else "message_bytes"
    yield Line("bucket_bytes", "bytes", message, "one message")


def _wire(name: str) -> str:
    share = "(data_ranks - 1) / data_ranks"
    messages = "max(1, {} / bucket_bytes)"
    return {
        "gradients_all_reduced": f"2 * gradient_bytes * {share} / (data_rate * data_reduce_share)"
        f" + {messages.format('gradient_bytes')} * data_tree_s",
        "gradients_scattered": f"gradient_bytes * {share} / (data_rate * data_scatter_share)"
        f" + {messages.format('gradient_bytes')} * data_round_s",
        "updated_weights_gathered": f"updated_bytes * {share} / data_rate"
        f" + {messages.format('updated_bytes')} * data_round_s",
        "weights_gathered_in_groups_gradients_scattered": "gathers * weight_bytes"
        " * (group_ranks - 1) / group_ranks / group_rate"
        f" + gradient_bytes * {share} / (data_rate * data_scatter_share)"
        " + slowest_layers * (gathers * group_round_s + data_round_s)",
        "weights_gathered_from_all_ranks": "weight_bytes * pace_trained_parameters"
        f" / pace_held_parameters * {share} / data_rate"
        " + slowest_layers * data_round_s",
        "weights_gathered_gradients_scattered": "(gathers * weight_bytes"
        f" + gradient_bytes / data_scatter_share) * {share} / data_rate"
        " + slowest_layers * (gathers + 1) * data_round_s",
    }[name]


def _between(sheet: Sheet, strategy: Strategy) -> Iterator[Line]:
    """One send between pipeline stages."""
    if "pipeline_ranks" not in sheet.values:
        return
    sheet.give(f"{FITTED}; of sends between stages", send_exposed=traffic.PIPELINE_EXPOSED)
    cut = " / tp" if strategy.sequence_parallel else ""
    sent = f"micro_tokens * hidden_size * element_bytes{cut} / pipeline_rate"
    formula = f"send_exposed * (pipeline_round_s + {sent})"
    yield Line("send_s", "s", formula, "activations of a micro batch to the next stage")


def _take_terms(sheet: Sheet, plan: Plan, frame: Frame) -> None:
    lines = [Line("compute_s", "s", "accumulation_steps * micro_compute_s", "every micro step")]
    parts = ["accumulation_steps * micro_collectives_s"]
    for exchange in traffic.exchanges(frame, plan.strategy):
        often = "accumulation_steps * " if exchange.every_micro_step else ""
        parts.append(f"{often}{_name(exchange.name)}_exposed_s")
    if "pipeline_ranks" in sheet.values:
        parts.append("2 * virtual_stages * accumulation_steps * send_s")
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
        once = each = "element_bytes * trained_shard_parameters"
        if strategy.offload_optimizer == "nvme":
            state = "(master_bytes + moments * moment_bytes + 2)"
            disk_once = f"2 * trained_shard_parameters * {state}"
    if strategy.offload_parameters != "none":
        passes = 3 if strategy.recompute == "full" else 2
        weights = f"{passes} * element_bytes * shard_parameters"
        each = weights if each == "0" else f"{each} + {weights}"
        disk = weights if strategy.offload_parameters == "nvme" else "0"
    return once, each, disk_once, disk


def _optimizer(sheet: Sheet, plan: Plan) -> Iterator[Line]:
    sheet.give(
        "estimate/time.py: gradient norm, clipping, Python", "s", overhead_s=clock.STEP_OVERHEAD_S
    )
    formula = "overhead_s + (2 * pace_optimizer_state + 8 * pace_trained_parameters) / memory_rate"
    if plan.strategy.offload_optimizer != "none" and plan.cluster.cpu_adam_per_s is not None:
        sheet.give(f"{MEASURED}: parameters a second", node_adam=plan.cluster.cpu_adam_per_s)
        formula += " + trained_shard_parameters * gpus_per_node / node_adam"
    elif plan.strategy.offload_optimizer != "none":
        sheet.give(
            "estimate/offload.py: parameters a second of CPU Adam (ops/adam benchmark)",
            adam_per_core=copies.ADAM_PER_CORE,
            adam_per_node=copies.ADAM_PER_NODE,
        )
        sheet.give("cluster", cpu_cores=plan.cluster.cpu_cores)
        rate = "min(adam_per_core * cpu_cores, adam_per_node) / gpus_per_node"
        formula += f" + trained_shard_parameters / ({rate})"
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
