"""Seconds of a layer and of the head as lines in the tokens of a micro batch.

Every product is a roofline: its FLOPs at the card's sustained rate, plus its bytes at the memory
bandwidth, so a thin one (small micro batch, large tensor parallelism) falls below the peak without
any fitted curve. The rest of a layer (norms, activation, residuals, rotary embedding) moves bytes,
more of them where each small operation is a kernel of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dsforge.constraints.trainer import is_split
from dsforge.engines import BY_NAME
from dsforge.estimate.activations import COMPOSED, element_bytes
from dsforge.estimate.adapters import adapted_matrices
from dsforge.estimate.dropout import dropped, dropped_width, inner_width
from dsforge.estimate.flops import (
    BACKWARD,
    backward_factor,
    layer_products,
    product_elements,
    reference_passes,
    score_flops,
)
from dsforge.estimate.linear_time import HeadTime, LinearTime
from dsforge.estimate.loss import FP32_SUM_BYTES, chunks_of, logit_bytes, loss_under, summed_bytes
from dsforge.estimate.params import adapter_sides
from dsforge.estimate.product import Product
from dsforge.estimate.quantised import dequantising_s, int8_token_bytes, layer_quantised_elements
from dsforge.estimate.rates import Rates, rates
from dsforge.estimate.recurrence import moved_elements, state_s
from dsforge.estimate.vision import tower_flops
from dsforge.execution import FLASH
from dsforge.specs import GpuSpec, LoraSpec, ModelSpec, Workload
from dsforge.strategy import Execution, Strategy
from dsforge.traced import Constant, counted, maximum, minimum, named

SOURCE = "estimate/layer_time.py"
AGAIN = "share of forward that recomputation repeats (1: all, 0: none)"
ATTENTION_BACKWARD = Constant(
    2.5,
    "attention_backward",
    "",
    f"{SOURCE}: five matrix products in backward for two in forward (Dao 2022)",
)
# Each score in 16 bits, forward and backward, where they are kept: fused softmax, or transformers'
# scale, mask, softmax in float32 and cast (14 elements each way), beside two and four in products.
SCORE_BYTES, EAGER_SCORE_BYTES = (13.0, 20.0), (32.0, 36.0)
UNFUSED_SHARE = 0.9  # of a product's rate: batched products of attention that keeps scores
# Dropout in one kernel: read, written, a mask of one byte; of vectors, and of kept scores.
DROPOUT = 2.5  # elements each way
TENSOR_CORE_SIDE = 8  # elements of 16 bits: 16 bytes (NVIDIA, matrix multiplication guide)
SELECTIVE_SHARE = 0.452  # of a layer's products, where every second one is computed again
QUANTISE_BYTES = Constant(
    0.5, "quantise_bytes", "bytes", f"{SOURCE}: per element cast for an 8-bit matrix product"
)
# Elements read and written for one element of a norm, an activation, a rotary embedding, in forward
# and backward: counted from one kernel for each, and from torch's separate operations
# (`tests/engine/test_kernels.py`). torch's own RMSNorm was one kernel from some version on: that of
# the published rows lies between.
NORM, EAGER_RMSNORM, MODULE_RMSNORM = (2.0, 3.0), (14.0, 24.0), (18.0, 46.0)
GATED, EAGER_GATED = (3.0, 5.0), (5.0, 8.0)
PLAIN, EAGER_COMPOSED = (2.0, 3.0), (18.0, 28.0)  # one kernel; transformers' `gelu_new`, in eight
ROTARY, EAGER_ROTARY = (2.0, 2.0), (10.0, 12.0)
RESIDUAL = Constant(3.0, "residual", "", f"{SOURCE}: elements read twice, written once")
PERMUTED = Constant(4.0, "permuted", "", f"{SOURCE}: read and written to an expert and back")


# Elements that an adapter moves for an element of its matrix's input or output, mean of both.
# Input: read by A 1; backward read 1, gradient written 1 and added 3. Output: written by B 1,
# scaled 2, added 3; backward scaled 2, read 2. A compiler joins scale and sum, and such sums.
ADAPTER, COMPILED_ADAPTER = (3.5, 4.5), (2.5, 4.0)
ADAPTER_DROPOUT = 1.25  # of the input alone, in each way: read, written, and a mask of one byte

SUMMED = "chunks of the loss read and write the sum of the head's gradient"
LOGIT = "bytes moved per logit, forward and backward"
KERNEL = "elements read and written per element, by kernel"
REST = "norms, activation, rotary embedding, residuals: memory-bound"
WEIGHTS = "weights of idle experts, float32 gradient sums, dequantisation of matrices"
ADAPTERS = "matrix products of the adapters"


class LayerTimes(NamedTuple):
    """Forward, backward and recomputation together."""

    layer: LinearTime
    moe_layer: LinearTime
    head: HeadTime


class Setting(NamedTuple):
    """What the lines depend on beside the model."""

    execution: Execution
    split: bool  # the head is a layer of AutoTP, or of a pipeline
    rates: Rates
    size: int  # bytes of an element
    sequence_length: int
    attended_length: int  # of a document in a packed sequence
    tp: int
    ep: int
    cut: int  # ranks that share activations outside the products
    backward: float  # passes
    trains_head: bool
    repeated: float  # share of the products computed again
    repeated_scores: float
    adapters: LoraSpec | None  # LoRA's, on frozen weights, which it has the format of
    dequantise_s: float  # of each quantised element in all passes
    reference: float = 0.0  # forward passes of a frozen reference
    has_head: bool = True

    @property
    def passes(self) -> float:
        """Matrix products of a step, in units of forward passes."""
        return named(1 + self.backward + self.repeated + self.reference, "passes")

    @property
    def ahead(self) -> float:
        """Forward passes of a layer: once, computed again, and of a reference."""
        return 1 + self.repeated + self.reference

    @property
    def stops_early(self) -> bool:
        """Whether the last product of a layer is not among those computed again.

        torch's non-reentrant checkpoints end when they have what was saved
        (`torch/utils/checkpoint.py`, `set_checkpoint_early_stop`, from 2.1 on).
        """
        return self.execution.early_stop and self.repeated == 1

    @property
    def fused(self) -> bool:
        """Whether norms, activations and rotary embeddings are one kernel each."""
        return self.execution.kernels != "eager"


def setting_of(gpu: GpuSpec, workload: Workload, strategy: Strategy) -> Setting:
    """The setting of a workload and a strategy on a card."""
    execution, layout = strategy.runs_as, strategy.layout
    repeated, scores = _repeated(strategy)
    tp, backward = layout.tensor_parallel_size, backward_factor(workload)
    repeated = counted(repeated, "repeated", "share", of=tp, why=AGAIN)
    held, reference = rates(gpu, workload.precision, execution), reference_passes(workload)
    return Setting(
        execution=execution,
        split=is_split(layout),
        rates=held,
        size=element_bytes(workload),
        sequence_length=workload.sequence_length,
        attended_length=workload.attended_length,
        tp=tp,
        ep=layout.expert_parallel_size,
        cut=tp if strategy.sequence_parallel else 1,
        backward=backward,
        trains_head=workload.trains_head,
        repeated=repeated,
        repeated_scores=counted(scores, "repeated_scores", "share", of=tp, why=AGAIN),
        adapters=workload.lora if workload.method == "lora" else None,
        dequantise_s=dequantising_s(
            gpu, workload, held.bandwidth, repeated=repeated + reference, backward=backward
        ),
        reference=reference,
        has_head=workload.has_head,
    )


def tower_s(model: ModelSpec, workload: Workload, setting: Setting) -> float:
    """Seconds of a vision tower for one token of a sample, beside the head."""
    flops = tower_flops(model, workload, repeated=setting.repeated)
    return named(flops / setting.rates.wide_products, "tower_token_s", "s") if flops else 0.0


@lru_cache(maxsize=4096)
def layer_times(model: ModelSpec, setting: Setting) -> LayerTimes:
    """A dense layer, a MoE layer (nothing where there is none) and the head."""
    sparse = _layer(model, setting, moe_layer=True) if model.moe else LinearTime(0.0, 0.0)
    return LayerTimes(_layer(model, setting, moe_layer=False), sparse, _head(model, setting))


def _repeated(strategy: Strategy) -> tuple[float, float]:
    """Shares of a layer's products and of its scores that are computed again in backward.

    Selective checkpointing repeats the scores (Megatron, Korthikanti et al. 2022), or every second
    product and not the scores (torchtitan, per-op).
    """
    if strategy.recompute != "selective":
        share = 1.0 if strategy.recompute == "full" else 0.0
        return share, share
    products = strategy.engine.selective == "every_other_product"
    return (SELECTIVE_SHARE, 0.0) if products else (0.0, 1.0)


def _product(name: str, product: Product, rate: float, *, setting: Setting, tp: int) -> LinearTime:
    """One pass of a product sharded over `tp` ranks: FLOPs at the rate, bytes at the bandwidth."""
    weight, sides = product.weight(name) / tp, product.sides(tp)
    bandwidth, size = setting.rates.bandwidth, setting.size
    size_in = size + QUANTISE_BYTES if rate > setting.rates.wide_products else size
    # Experts of a token are one grouped product; a layer of two kinds has a part of one.
    calls = minimum(1, product.times) if setting.fused else product.times
    fixed_s = setting.rates.kernel_s * calls / product.times + size * weight / bandwidth
    token_s = 2.0 * weight / rate + size_in * sides / bandwidth
    return LinearTime(
        named(fixed_s, f"{name}_fixed_s", "s"), named(token_s, f"{name}_token_s", "s")
    )


def _layer(model: ModelSpec, setting: Setting, *, moe_layer: bool) -> LinearTime:
    """One layer, forward, backward and recomputation."""
    passes, held, kind = setting.passes, setting.rates, "moe" if moe_layer else "dense"
    each = [
        (product.times, _product(name, product, held.products, setting=setting, tp=setting.tp))
        for name, product in layer_products(model, moe_layer=moe_layer).items()
    ]
    forward, backward = _moved_elements(model, setting, moe_layer=moe_layer)
    moved = setting.size * (forward * setting.ahead + backward)
    rest_s = named(moved / held.bandwidth, f"{kind}_rest_token_s", "s", REST)
    resident = _resident_bytes(model, setting, moe_layer=moe_layer)
    apart = setting.execution.expert_modules
    packed = layer_quantised_elements(model, moe_layer=moe_layer, expert_modules=apart)
    weights_s = resident / held.bandwidth + setting.dequantise_s * packed / setting.tp
    weights_s = named(weights_s, f"{kind}_weights_s", "s", WEIGHTS)
    adapters = _adapters(model, setting, moe_layer=moe_layer)
    products_s = sum(times * line.token_s for times, line in each)
    states_s = state_s(
        model, held.attention_of(setting.sequence_length), held.unaligned / 2, setting.ahead
    )
    fixed_s = passes * sum(times * line.fixed_s for times, line in each) + weights_s
    token_s = passes * products_s + attention_s(model, setting) + states_s + rest_s
    if setting.stops_early and not moe_layer:
        token_s = token_s - each[-1][1].token_s
    if setting.execution.tiled_mlp:  # the MLP is the last two products
        token_s += setting.repeated * sum(times * line.token_s for times, line in each[-2:])
    return LinearTime(
        named(fixed_s + adapters.fixed_s, f"{kind}_layer_fixed_s", "s", "of any number of tokens"),
        named(token_s + adapters.token_s, f"{kind}_layer_token_s", "s", "per token"),
    )


def _resident_bytes(model: ModelSpec, setting: Setting, *, moe_layer: bool) -> float:
    """Bytes that no token count changes: of idle experts, fp32 sums of gradients that there are."""
    weights, lora = 1.0 * product_elements(model, moe_layer=moe_layer), setting.adapters
    idle = 0.0
    if moe_layer and model.moe:
        matrices = 3 if model.gated_mlp else 2
        expert = matrices * model.hidden_size * model.moe.expert_ffn_hidden_size
        held = model.moe.experts / setting.ep
        idle = maximum(0.0, held - model.moe.experts_per_token) * expert
        idle = named(
            idle, "idle_expert_elements", "elements", "experts without tokens on this rank"
        )
    trained = weights + idle
    if lora is not None:
        trained = 1.0 * lora.rank * adapter_sides(model, lora, moe_layer=moe_layer)
    summed = FP32_SUM_BYTES * trained if setting.execution.gradients == "fp32" else 0.0
    return (setting.passes * setting.size * idle + summed) / setting.tp


def _adapters(model: ModelSpec, setting: Setting, *, moe_layer: bool) -> LinearTime:
    """Products of a layer's adapters, and the casts around products in int8; all passes.

    An adapter's products are thin: their bytes are among those that are bound by memory.
    """
    lora, held = setting.adapters, setting.rates
    if lora is None:
        return LinearTime(0.0, 0.0)
    ahead, kind = 1 + setting.repeated, "moe" if moe_layer else "dense"
    sides = adapter_sides(model, lora, moe_layer=moe_layer)
    flops = named(2.0 * lora.rank * sides, f"{kind}_adapter_flops", "FLOP", "of a token, forward")
    in_int8 = ahead * int8_token_bytes(model, lora, moe_layer=moe_layer)
    token_s = in_int8 / held.bandwidth + (ahead + BACKWARD) * flops / held.products
    fixed_s = (ahead + BACKWARD) * adapted_matrices(model, lora, moe_layer=moe_layer)
    fixed_s = fixed_s * held.kernel_s
    return LinearTime(
        named(fixed_s / setting.tp, f"{kind}_adapters_fixed_s", "s", ADAPTERS),
        named(token_s / setting.tp, f"{kind}_adapters_token_s", "s", ADAPTERS),
    )


def attention_s(model: ModelSpec, setting: Setting) -> float:
    """Seconds per token in the attention scores of one layer, all passes."""
    packed = setting.execution.attention in FLASH  # others compute all pairs
    length = setting.attended_length if packed else setting.sequence_length
    flops = score_flops(model, length) / setting.tp
    forward = 1 + setting.repeated_scores + setting.reference
    if setting.execution.attention == "masked":
        flops *= 2 if model.kind == "decoder" else 1  # the masked half is computed
    if setting.execution.attention != "eager":
        seconds = (forward + ATTENTION_BACKWARD) * flops / setting.rates.attention_of(length)
        return named(seconds, "attention_token_s", "s")
    scores = model.attentions * model.attention_heads / setting.tp * setting.sequence_length
    each = SCORE_BYTES if setting.fused else EAGER_SCORE_BYTES
    masked = 2 * DROPOUT if dropped(model, setting.execution).attention else 0.0
    moved = (forward * (each[0] + masked) + each[1] + masked) * scores * setting.size / 2
    whole = 2 * flops if model.kind == "decoder" else flops  # the masked half is computed
    aligned = model.mla is not None or model.head_size % TENSOR_CORE_SIDE == 0
    rate = setting.rates.wide_products if aligned else setting.rates.unaligned
    products = (forward + 2) * whole / (rate * UNFUSED_SHARE)
    return products + moved / setting.rates.bandwidth


def _moved_elements(model: ModelSpec, setting: Setting, *, moe_layer: bool) -> tuple[float, float]:
    """Elements that the memory-bound rest of a layer moves for one token: forward, backward."""
    fused, tp = setting.fused, setting.tp
    engine = BY_NAME[setting.execution.trainer]
    eager_norm = MODULE_RMSNORM if engine.norms_in_python else EAGER_RMSNORM
    norm = NORM if fused or model.norm != "rmsnorm" else eager_norm
    composed = model.activation in COMPOSED and not fused
    plain = EAGER_COMPOSED if composed else PLAIN
    activation = (GATED if fused else EAGER_GATED) if model.gated_mlp else plain
    rotary = (ROTARY if fused else EAGER_ROTARY) if model.position == "rope" else (0.0, 0.0)
    kind = "moe" if moe_layer else "dense"
    outer = model.norms_per_layer * model.hidden_size / setting.cut
    outer = named(outer, "norm_width", "elements", "vectors of the hidden size, per token")
    inner = _width(model, moe_layer=moe_layer) / tp
    inner = named(inner, f"{kind}_activation_width", "elements", "inside the MLP, per token")
    rotated = (model.attention_heads + model.kv_heads) * model.head_size / tp
    rotated = rotated * model.attentions if model.layer_mixers else rotated
    routed = model.moe.experts_per_token * model.hidden_size if moe_layer and model.moe else 0
    rotated = named(rotated, "rotary_width", "elements", "queries and keys, per token")
    rest = outer * RESIDUAL + routed * PERMUTED
    masked = dropped_width(model, setting.execution, moe_layer=moe_layer) / setting.cut
    rest += DROPOUT * (masked + inner_width(model, setting.execution, moe_layer=moe_layer) / tp)
    rest = named(rest, f"{kind}_residual_elements", "elements", "residuals, tokens sent to experts")
    of = model.hidden_size
    norm = _by_kernel("norm", norm, of)
    activation, rotary = _by_kernel("activation", activation, of), _by_kernel("rotary", rotary, of)
    beside = _adapter_elements(model, setting, moe_layer=moe_layer)
    moved = moved_elements(model)
    forward, backward = (
        beside[way]
        + moved[way]
        + rest
        + outer * norm[way]
        + inner * activation[way]
        + rotated * rotary[way]
        for way in (0, 1)
    )
    forward = named(forward, f"{kind}_moved_forward", "elements")
    return forward, named(backward, f"{kind}_moved_backward", "elements")


def _adapter_elements(
    model: ModelSpec, setting: Setting, *, moe_layer: bool
) -> tuple[float, float]:
    """Elements that LoRA's operations beside the frozen products move: forward, backward."""
    lora = setting.adapters
    if lora is None:
        return 0.0, 0.0
    sides = adapter_sides(model, lora, moe_layer=moe_layer) / setting.tp
    dropped = ADAPTER_DROPOUT if lora.dropout else 0.0
    each = COMPILED_ADAPTER if setting.execution.kernels == "compiled" else ADAPTER
    forward, backward = _by_kernel("adapter", each, model.hidden_size)
    return sides * (forward + dropped), sides * (backward + dropped)


def _by_kernel(name: str, elements: tuple[float, float], of: float) -> tuple[float, float]:
    """Elements that a kernel moves for one element, forward and backward, each with a name."""
    forward, backward = elements
    return (
        counted(forward, f"{name}_forward", "", of=of, why=KERNEL),
        counted(backward, f"{name}_backward", "", of=of, why=KERNEL),
    )


def _width(model: ModelSpec, *, moe_layer: bool) -> float:
    """Width of the MLP that one token passes."""
    if not moe_layer or model.moe is None:
        return model.ffn_hidden_size * model.dense_mlps
    routed = model.moe.experts_per_token * model.moe.expert_ffn_hidden_size
    return routed + model.moe.shared_ffn_hidden_size


def _head(model: ModelSpec, setting: Setting) -> HeadTime:
    """Output head and loss in 16 bits; a third of a logit's bytes move in forward passes."""
    if not setting.has_head:
        return HeadTime(LinearTime(0.0, 0.0))
    backward = maximum(setting.backward, BACKWARD if setting.trains_head else 0.0)
    passes, bandwidth = 1 + backward + setting.reference, setting.rates.bandwidth
    tp = setting.tp if BY_NAME[setting.execution.trainer].head_sharded else 1
    product = Product(model.hidden_size, model.vocab_size, model.vocab_size)
    line = _product("head_product", product, setting.rates.wide_products, setting=setting, tp=tp)
    loss = loss_under(model, setting.execution, split=setting.split)
    moved = counted(
        logit_bytes(setting.execution, loss), "logit_moved_bytes", "bytes", of=tp, why=LOGIT
    )
    loss_s = moved * (1 + setting.reference / 3) * model.vocab_size / tp / bandwidth
    loss_s = named(loss_s, "loss_token_s", "s", f"the loss is {loss}: bytes moved per logit")
    head = LinearTime(passes * line.fixed_s, passes * line.token_s + loss_s)
    if loss != "chunked" or not setting.trains_head:
        return HeadTime(head)
    chunks = chunks_of(model.vocab_size, model.embedding_size, trained=True)
    summed = summed_bytes(setting.size) * model.vocab_size * model.embedding_size
    summed_s = named(summed / chunks.rows / bandwidth, "summed_token_s", "s", SUMMED)
    return HeadTime(head, chunks.one, summed_s)
