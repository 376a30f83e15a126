"""The memory of the fullest rank, worked out term by term."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.estimate import activations as saved
from dsforge.estimate import memory as ledger
from dsforge.estimate.frame import Frame
from dsforge.estimate.quantised import BLOCK, NF4_BYTES, largest_matrix_elements
from dsforge.estimate.states import MOMENT_BYTES, MOMENTS, Load, shares, sums_beside, tiles_of
from dsforge.estimate.ulysses import saved_width
from dsforge.explain.loss import give_loss, logit_lines
from dsforge.explain.parameters import NF4
from dsforge.explain.sheet import Line, Sheet
from dsforge.plan import Plan
from dsforge.strategy import FULLY_SHARDED, GRADIENTS_SHARDED, Strategy
from dsforge.units import Interval

STATES = "estimate/states.py, read in the engine: stage_1_and_2.py, stage3.py, Megatron's optimizer"
LAYER = "estimate/activations.py: tensors that the modules save, counted one by one"
PEAK = "estimate/memory.py: the fullest of four moments of a step"
COUNTERS = (
    "estimate/memory.py: constants fitted on published peaks (benchmarks/published/memory.md)"
)


def explained_load(frame: Frame, plan: Plan) -> Load:
    """What a rank of the fullest pipeline stage carries."""
    peaks = [
        print_.at(plan.strategy.batching) for print_ in ledger.footprints(frame, plan.strategy)
    ]
    sizes = [peak.fixed_bytes + peak.moving_bytes for peak in peaks]
    return frame.loads[sizes.index(max(sizes))]


def take_memory(sheet: Sheet, plan: Plan, load: Load) -> None:
    """Figures of every memory term and of the three counters."""
    _give_states(sheet, plan)
    if plan.strategy.runs_as.offload_ratio < 1:
        trained = shares(plan.strategy).of_trainable(load.held)
        tiles, offloaded = tiles_of(plan.strategy, trained, load.buckets)
        source = f"{STATES}: whole sub-groups of the optimizer, offload_optimizer.ratio"
        sheet.give(source, "share", offloaded_share=offloaded / tiles)
    sheet.work_out("states", tuple(_states(plan)))
    _give_activations(sheet, plan, load)
    sheet.work_out("activations", tuple(_token_bytes(plan, load)))
    give_loss(sheet, plan)
    sheet.work_out("memory at its peak", tuple(_moments(plan, sheet.values["micro_tokens"])))
    sheet.work_out("memory by term", tuple(_terms(sheet, plan)))
    _give_counters(sheet, plan)
    sheet.work_out("memory in all", tuple(_counters()))


def _give_states(sheet: Sheet, plan: Plan) -> None:
    run, work = plan.strategy.runs_as, plan.workload
    master = 0 if work.precision == "fp32" or not run.master_weights else 4
    source = f"{work.optimizer} and its type ({STATES})"
    sheet.give(
        source,
        master_bytes=master,
        moments=MOMENTS[work.optimizer],
        moment_bytes=MOMENT_BYTES[run.moments],
    )
    if work.in_4_bits:
        sheet.give(f"{NF4}: of an element, its scales included", "bytes", nf4_bytes=NF4_BYTES)


def _states(plan: Plan) -> Iterator[Line]:
    """Weights, gradients, optimizer state after sharding and offload."""
    strategy, stage = plan.strategy, plan.strategy.zero_stage
    engine = strategy.back_end == "deepspeed"
    off, off_too = strategy.offload_optimizer != "none", strategy.offload_parameters != "none"
    held = "shard_parameters" if stage == FULLY_SHARDED else "held_parameters"
    weights = "0" if off_too else f"element_bytes * {held}"
    if strategy.hpz_partition_size > 1:
        weights += " + element_bytes * held_parameters / hpz_partition_size"
    if plan.workload.in_4_bits:
        weights += " - (element_bytes - nf4_bytes) * quantised_parameters"
    yield Line("kept_weights", "bytes", weights, f"{STATES}{_away(strategy.offload_parameters)}")
    shared = engine and stage >= GRADIENTS_SHARDED
    trained = "trained_shard_parameters" if shared else "trained_parameters"
    wide, flat = strategy.runs_as.gradients == "fp32", sums_beside(plan.workload, strategy)
    summed = "(element_bytes + 4)" if flat else "4" if wide else "element_bytes"
    gradients = f"{summed} * {trained}"
    stays = wide and stage == GRADIENTS_SHARDED and plan.workload.precision != "fp32"
    gradients = "0" if off and shared and not stays else gradients
    partial = off and strategy.runs_as.offload_ratio < 1
    gradients = f"4 * {trained} * (1 - offloaded_share)" if partial else gradients
    why = f"{STATES}{_away(strategy.offload_optimizer if shared else 'none')}"
    yield Line("kept_gradients", "bytes", gradients, why)
    owned = "trained_shard_parameters" if stage >= 1 else "trained_parameters"
    state = f"(master_bytes + moments * moment_bytes) * {owned}"
    state = f"{state} * (1 - offloaded_share)" if partial else "0" if off else state
    why = f"{STATES}{_away(strategy.offload_optimizer)}"
    yield Line("kept_optimizer_state", "bytes", state, why)
    copied = f"min({owned}, sub_group_size)" if stage == FULLY_SHARDED else owned
    none = off or flat or not engine or plan.workload.precision == "fp32"
    copy = "0" if none else f"4 * {copied}"
    why = f"{STATES}: float32 gradients exist while the engine's optimizer steps"
    yield Line("step_gradients", "bytes", copy, why)


def _away(place: str) -> str:
    return "" if place == "none" else f"; here they are on {place}"


def _give_activations(sheet: Sheet, plan: Plan, load: Load) -> None:
    model, strategy, run = plan.model, plan.strategy, plan.strategy.runs_as
    widths = saved.KERNELS[run.kernels]
    copies = widths.gated if model.gated_mlp else widths.plain
    if run.kernels == "eager" and model.activation in saved.COMPOSED:
        copies += saved.COMPOSED_STEPS
    norms = widths.norm if model.norm == "rmsnorm" else widths.layer_norm
    if norms > saved.KERNELS["fused"].norm and plan.workload.precision == "fp32":
        norms -= 1
    heads = model.attention_heads
    heads += model.attention_heads + model.kv_heads if model.qk_norm == "head" else 0
    each = widths.norm - 1 if model.qk_norm is not None and model.mla is None else 0
    sheet.give(LAYER, mlp_copies=copies, norm_copies=norms, query_norm_copies=each)
    sheet.give(f"{LAYER}: float32 statistics", statistic_heads=heads)
    split = strategy.sequence_parallel and strategy.layout.tensor_parallel_size > 1
    sheet.give(
        "estimate/activations.py: gradients at work in a layer",
        inner_gradients=2 if model.gated_mlp else 1,
        rim_gradients=3 if split else 1,
    )
    sheet.give("the pipeline stage that is explained", later_stages=load.stage.later)
    if model.mla is not None:
        mla = model.mla
        width = (
            model.attention_heads * 2 * (mla.nope_head_size + mla.rope_head_size + mla.v_head_size)
        )
        width += mla.kv_rank + (mla.q_rank or 0)
        sheet.give(f"{LAYER}: latent attention", attention_width=width)


def _token_bytes(plan: Plan, load: Load) -> Iterator[Line]:
    """Bytes of one token: saved by a layer, kept under recomputation, at work, logits."""
    model, strategy = plan.model, plan.strategy
    if model.mla is None:
        width = "2 * (attention_heads + kv_heads) * head_size"
        width += " + query_norm_copies * (attention_heads + kv_heads) * head_size"
        if saved_width(model, strategy):
            width += " + (attention_heads + 2 * (max(kv_heads, cp) - kv_heads)) * head_size"
        why = f"{LAYER}: queries, keys, values, output"
        yield Line("attention_width", "elements", width, why)
    yield Line("rim_width", "elements", "norms_per_layer * hidden_size * norm_copies", LAYER)
    beside = "4 * (statistic_heads / tp + norms_per_layer)"
    yield Line("statistic_bytes", "bytes", beside, f"{LAYER}: float32 numbers of norms and softmax")
    kinds = {
        "dense_layer": "mlp_copies * ffn_hidden_size",
        "moe_layer": "experts_per_token * (expert_ffn_hidden_size * mlp_copies + 2 * hidden_size)"
        " + mlp_copies * shared_ffn_hidden_size + experts",
    }
    if model.moe is None:
        kinds.pop("moe_layer")
    for kind, mlp in kinds.items():
        inner = f"attention_width + {mlp}"
        whole = f"rim_width + ({inner}) / tp"
        if strategy.sequence_parallel:
            whole = f"(rim_width + {inner}) / tp"
        yield Line(f"{kind}_bytes", "bytes", f"element_bytes * ({whole}) + statistic_bytes", LAYER)
        yield Line(f"{kind}_kept_bytes", "bytes", *_kept(strategy, kind))
    yield from _stage_bytes(plan, load)


def _kept(strategy: Strategy, kind: str) -> tuple[str, str]:
    """What outlives forward: all, or under full recomputation the layer's input."""
    if strategy.recompute != "full":
        return f"{kind}_bytes", f"recompute {strategy.recompute}: flash attention keeps no scores"
    cut = " / tp" if strategy.sequence_parallel else ""
    return f"element_bytes * hidden_size{cut}", "recompute full keeps the input of a layer"


def _stage_bytes(plan: Plan, load: Load) -> Iterator[Line]:
    """Bytes of one token on the whole stage."""
    kept = "(stage_layers - stage_moe_layers) * dense_layer_kept_bytes"
    kept += " + stage_moe_layers * moe_layer_kept_bytes" if load.stage.moe_layers else ""
    yield Line("saved_token_bytes", "bytes", kept, "all layers of the stage")
    width = "experts_per_token * expert_ffn_hidden_size" if plan.model.moe else "ffn_hidden_size"
    work = f"element_bytes * (inner_gradients * {width} / tp + rim_gradients * hidden_size)"
    if plan.strategy.recompute != "none":
        kind = "moe_layer" if load.stage.moe_layers else "dense_layer"
        work += f" + {kind}_bytes - {kind}_kept_bytes"
    why = "estimate/memory.py: gradients of one layer, and what it computes again"
    yield Line("working_token_bytes", "bytes", work, why)


def _moments(plan: Plan, micro_tokens: float) -> Iterator[Line]:
    """The four moments of which the fullest is the peak."""
    strategy = plan.strategy
    alive = "1"
    if strategy.layout.pipeline_parallel_size > 1:
        alive = "min(accumulation_steps, later_stages + 1)"
        if strategy.virtual_stages > 1:
            ahead = "(2 * later_stages + (virtual_stages - 1) * pp + 1) / virtual_stages"
            alive = f"min(accumulation_steps, {ahead})"
    why = "1F1B keeps one for each later stage (Narayanan et al. 2021, section 2.2)"
    yield Line("micro_batches_alive", "", alive, why)
    lasting = (
        strategy.gradient_accumulation_steps > 1
        or strategy.runs_as.gradients == "fp32"
        or strategy.zero_stage == FULLY_SHARDED
    )
    why = "they outlive a micro step where there are several, or the engine keeps its buffer"
    yield Line("early_gradients", "bytes", "kept_gradients" if lasting else "0", why)
    alive = "micro_tokens * saved_token_bytes * micro_batches_alive"
    yield Line("saved_activations", "bytes", alive, PEAK)
    yield Line("working_set", "bytes", "micro_tokens * working_token_bytes", PEAK)
    yield from logit_lines(plan, micro_tokens)
    for name, formula in MOMENTS_OF_A_STEP.items():
        yield Line(name, "bytes", formula, PEAK)
    yield Line("fullest_moment", "bytes", f"max({', '.join(MOMENTS_OF_A_STEP)})", PEAK)


MOMENTS_OF_A_STEP = {
    "at_the_loss": "early_gradients + saved_activations + logits_of_micro_batch",
    "with_a_layer_at_work": "early_gradients + saved_activations + working_set",
    "at_the_end_of_backward": "kept_gradients + working_set",
    "at_the_optimizer_step": "kept_gradients + step_gradients",
}


def _terms(sheet: Sheet, plan: Plan) -> Iterator[Line]:
    """The terms of the ledger at that moment."""
    moment = max(MOMENTS_OF_A_STEP, key=lambda name: sheet.values[name])
    gradients, activations, logits = {
        "at_the_loss": ("early_gradients", "saved_activations", "logits_of_micro_batch"),
        "with_a_layer_at_work": ("early_gradients", "saved_activations + working_set", "0"),
        "at_the_end_of_backward": ("kept_gradients", "working_set", "0"),
        "at_the_optimizer_step": ("kept_gradients + step_gradients", "0", "0"),
    }[moment]
    why = f"the fullest moment is {moment.replace('_', ' ')}"
    on_cpu = plan.cluster.gpu.is_cpu
    sheet.give(
        "estimate/memory.py, WORKSPACE: cuBLAS and small tensors",
        "bytes",
        workspace_bytes=0.0 if on_cpu else ledger.WORKSPACE,
    )
    if plan.workload.in_4_bits:
        largest = largest_matrix_elements(plan.model)
        sheet.give(f"{NF4}: one is dequantised at a time", "elements", largest_matrix=largest)
        sheet.give(f"{NF4}: elements that share a float32 scale then", scale_block=BLOCK)
    yield Line("weights", "bytes", "kept_weights", why)
    yield Line("gradients", "bytes", gradients, why)
    yield Line("optimizer_state", "bytes", "kept_optimizer_state", why)
    yield Line("activations", "bytes", activations, why)
    yield Line("logits", "bytes", logits, why)
    yield Line("buffers", "bytes", _buffers(plan), "estimate/memory.py: buckets, gathered weights")


def _buffers(plan: Plan) -> str:
    if plan.workload.in_4_bits:
        return f"{_engine_buffers(plan)} + largest_matrix * (element_bytes + 4 / scale_block)"
    return _engine_buffers(plan)


def _engine_buffers(plan: Plan) -> str:
    strategy, stage = plan.strategy, plan.strategy.zero_stage
    alone = strategy.layout.shard_ranks == 1 and stage < FULLY_SHARDED
    if strategy.back_end != "deepspeed" or stage == 0 or alone:
        return "workspace_bytes"
    reduce = "reduce_buckets * reduce_bucket_size * element_bytes + workspace_bytes"
    if stage < FULLY_SHARDED:
        return reduce
    gathered = "min(held_parameters, max_live_parameters + prefetch_bucket_size)"
    return f"{reduce} + element_bytes * ({gathered} + norms_per_layer * hidden_size * layers)"


def _give_counters(sheet: Sheet, plan: Plan) -> None:
    on_cpu, strategy = plan.cluster.gpu.is_cpu, plan.strategy
    context: Interval = ledger.CPU_CONTEXT if on_cpu else ledger.CONTEXT
    source = f"{COUNTERS}; device context, NCCL, cuBLAS"
    for end in ("low", "likely", "high"):
        sheet.give(source, "bytes", **{f"context_{end}": getattr(context, end)})
        sheet.give(COUNTERS, **{f"slack_{end}": getattr(ledger.SLACK, end)})
    churns = strategy.zero_stage == FULLY_SHARDED and strategy.back_end == "deepspeed"
    sheet.give(f"{COUNTERS}; ZeRO stage 3 fragments the allocator", churns=int(churns))
    sheet.give(COUNTERS, states_error=ledger.STATES_ERROR, activation_error=ledger.ACTIVATION_ERROR)


COUNTED = (("low", " - spread_bytes", 0), ("likely", "", 1), ("high", " + spread_bytes", 2))


def _counters() -> Iterator[Line]:
    yield Line("framework", "bytes", "context_likely", COUNTERS)
    fixed, moving = "weights + gradients + optimizer_state + buffers", "activations + logits"
    yield Line("fixed_bytes", "bytes", fixed, "what no batch changes")
    yield Line("moving_bytes", "bytes", moving, "what grows with the micro batch")
    spread = "states_error * fixed_bytes + activation_error * moving_bytes"
    yield Line("spread_bytes", "bytes", spread, COUNTERS)
    for end, sign, churn in COUNTED:
        allocated = f"fixed_bytes + moving_bytes{sign}"
        yield Line(f"allocated_{end}", "bytes", allocated, "torch.cuda.max_memory_allocated")
        reserved = f"allocated_{end} * slack_{end} + {churn} * churns * buffers"
        yield Line(f"reserved_{end}", "bytes", reserved, "torch.cuda.max_memory_reserved")
        device = f"reserved_{end} + context_{end}"
        yield Line(f"device_{end}", "bytes", device, "what nvidia-smi shows")
