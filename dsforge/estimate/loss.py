"""The loss at the output head: whole logits or chunks of them, and what it needs, in bytes.

A plain loss holds the logits of a whole micro batch. The chunked one of `dsforge train`
(`train/model/answer_loss.py`) asks the head for the loss of a chunk of tokens at a time and makes
the gradients on the way; Liger's and DeepSpeed's fused losses are of that kind. The size of a
chunk is decided here, for the trainer too, so that what is priced is what runs.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from dsforge.constraints.trainer import holds_whole_logits, is_split
from dsforge.engines import BY_NAME
from dsforge.estimate.activations import FLOAT_BYTES, element_bytes
from dsforge.specs import ModelSpec, Workload
from dsforge.strategy import Execution, Loss, Strategy
from dsforge.traced import Constant, counted, maximum, named

CHUNK_BYTES = 2**27  # of fp32 logits; smaller ones make matrix products too thin for a GPU
LEAST_ROWS = 256
SOFTMAX_COPIES = 2  # float32 logits and their log-softmax, alive at once
BESIDE = "per logit, in addition to the logit in the compute type; from the engine's loss"
SOFTMAX = "per token of a chunk: float32 logits and their log-softmax (train/loss.py)"
ROW = "hidden state of a token and its gradient (train/loss.py)"
CHUNK = "a chunk of logits, and the float32 gradient sum of the output head (train/loss.py)"
# `grad_weight += torch.mm(...).float()` of Liger's ops/fused_linear_cross_entropy.py.
FUSED_SUM = "gradient of the head, the product of a chunk, and its float32 copy (Liger)"
FUSED_LOSS_BYTES = 8  # of a chunk of tokens so small that its logits are as wide as the layer
# Of `dsforge train`'s chunks, counted in 16 bits: logits written, cast (6), softmax (8), its
# exponential (8), slope scaled (8), cast (6), read by two products (4).
CHUNKED_LOGIT_BYTES = 42.0
FUSED_LOGIT_BYTES = 6.0  # each logit, forward and backward, in one fused pass
FP32_SUM_BYTES = Constant(
    8.0, "sum_bytes", "bytes", "estimate/loss.py: gradient sums are read and written in float32"
)


class Chunks(NamedTuple):
    """How the loss of a micro batch is cut: so many rows (tokens) a chunk, or all in one."""

    rows: int
    one: int  # up to so many rows are one chunk


def chunks_of(vocab_size: int, hidden_size: int, *, trained: bool) -> Chunks:
    """The chunks of a head.

    Several chunks sum a trained weight's gradient in float32. Each reads and writes that sum, so
    its rows are at least a quarter of the hidden size; and it needs more than the logits of few
    tokens, so that up to half the hidden size beyond a chunk all rows are one.
    """
    rows = maximum(LEAST_ROWS, CHUNK_BYTES // (FLOAT_BYTES * vocab_size))
    if not trained:
        return Chunks(named(rows, "chunk_rows", "tokens"), rows)
    rows = named(maximum(rows, hidden_size // 4), "chunk_rows", "tokens")
    return Chunks(rows, named(rows + hidden_size // 2, "one_chunk_rows", "tokens"))


def loss_of(model: ModelSpec, strategy: Strategy) -> Loss:
    """How the loss of a strategy is computed."""
    return loss_under(model, strategy.runs_as, split=is_split(strategy.layout))


def loss_under(model: ModelSpec, execution: Execution, *, split: bool) -> Loss:
    """How an engine computes the loss: as `execution` says, else its default.

    The default is chunked where the engine can and the model allows it, as `dsforge train` does;
    scripts of others hold whole logits, as Hugging Face's trainers do.

    `split`: the output layer is one of AutoTP or of a pipeline.
    """
    if execution.loss is not None:
        return execution.loss
    if execution.software == "others":
        return "plain"
    return "chunked" if _may_chunk(model, execution, split=split) else "plain"


def _may_chunk(model: ModelSpec, execution: Execution, *, split: bool) -> bool:
    """Whether an engine has a chunked loss, and the model allows it."""
    return BY_NAME[execution.trainer].chunks_loss and not holds_whole_logits(model, split=split)


def may_be_chunked(model: ModelSpec, strategy: Strategy) -> bool:
    """Whether others may have chunked a loss of which nothing is stated (Liger's kernels)."""
    run = strategy.runs_as
    if run.loss is not None or run.software != "others":
        return False
    return _may_chunk(model, run, split=is_split(strategy.layout))


class HeadBytes(NamedTuple):
    """Memory at the loss, bytes: a function of the tokens of a micro batch on the rank.

    In the backward pass the softmax comes first, then the product that is the weight's gradient:
    the larger of both moments counts. Beyond `one_chunk` tokens logits grow no more.
    """

    token: float  # of each token, at either moment
    fixed: float = 0.0
    softmax: float = 0.0  # of each token of the only chunk
    product: float = 0.0  # of each token of the only chunk, later
    weight: float = 0.0  # the gradient that it gives
    one_chunk: float = inf
    many: float = 0.0  # of several chunks, whatever their number

    def at(self, tokens: float) -> float:
        """Bytes at so many tokens."""
        found = self.fixed + tokens * self.token
        if tokens > self.one_chunk:
            return found + self.many
        return found + maximum(tokens * self.softmax, tokens * self.product + self.weight)


NO_HEAD = HeadBytes(0.0)


def head_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> HeadBytes:
    """The memory of the loss on a rank that has the head.

    Logits of a reference come and go before backward begins: beside logits and log-softmax of the
    policy they need no more than the gradients do later (TRL `DPOTrainer.compute_ref_log_probs`).
    """
    if not workload.has_head:
        return NO_HEAD
    return _head_bytes(model, workload, strategy, loss_of(model, strategy))


def least_head_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> HeadBytes | None:
    """The memory of the other loss that scripts of others may have; none: the loss is known."""
    if not workload.has_head or not may_be_chunked(model, strategy):
        return None
    return _head_bytes(model, workload, strategy, "chunked")


def _head_bytes(model: ModelSpec, workload: Workload, strategy: Strategy, kind: Loss) -> HeadBytes:
    """The memory of one kind of loss on a rank that has the head."""
    size = element_bytes(workload)
    weights = 1.0 * model.vocab_size * model.embedding_size
    gradient = size * weights if workload.trains_head else 0.0
    gradient = named(gradient, "head_gradient_bytes", "bytes", "weight of the output head")
    if kind == "chunked":
        return _chunked(model, size, gradient)
    if kind == "fused":
        fixed = 0.0
        if workload.trains_head:
            fixed = (2.0 * size + FLOAT_BYTES) * weights
            fixed = named(fixed, "fused_sum_bytes", "bytes", FUSED_SUM)
        return HeadBytes(model.hidden_size * (size + FUSED_LOSS_BYTES), fixed)
    logits = logit_token_bytes(model, workload, strategy)
    if strategy.engine.head_gradient_in_buffer:
        return HeadBytes(0.0, softmax=logits)
    # Gradients of the logits in the compute type, twice: their cast is not done with.
    return HeadBytes(0.0, 0.0, logits, 2.0 * size * model.vocab_size, gradient)


def logit_token_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> float:
    """Bytes per token of whole logits at the peak of the loss.

    `chunked_output` (torchtune): logits and their gradient in the compute type.
    """
    run, size, kind = strategy.runs_as, element_bytes(workload), loss_of(model, strategy)
    cut = strategy.layout.tensor_parallel_size if strategy.engine.head_sharded else 1
    if kind == "chunked_output":
        return named(2 * size * model.vocab_size / cut, "logit_token_bytes", "bytes")
    beside = strategy.engine.loss_bytes(run, size)
    beside = counted(beside, "loss_bytes", "bytes", of=size, why=BESIDE)
    return named((size + beside) * model.vocab_size / cut, "logit_token_bytes", "bytes")


def _chunked(model: ModelSpec, size: int, gradient: float) -> HeadBytes:
    """Rows of hidden states with their gradient; logits of a chunk; the gradient of the weight.

    Several chunks: its sum in float32, beside a chunk's softmax. Read in
    `train/model/answer_loss.py`, measured in tests/engine/test_loss_memory.py.
    """
    width, words = model.embedding_size, model.vocab_size
    chunks = chunks_of(words, width, trained=gradient > 0)
    softmax = named(SOFTMAX_COPIES * FLOAT_BYTES * words, "logit_token_bytes", "bytes", SOFTMAX)
    many = chunks.rows * softmax + FLOAT_BYTES * gradient / size
    return HeadBytes(
        token=named(2.0 * size * width, "loss_row_bytes", "bytes", ROW),
        softmax=softmax,
        product=size * words,
        weight=gradient,
        one_chunk=chunks.one,
        many=named(many, "chunk_bytes", "bytes", CHUNK),
    )


def logit_bytes(execution: Execution, loss: Loss) -> float:
    """Bytes that move for one logit, forward and backward."""
    if loss == "chunked":
        return CHUNKED_LOGIT_BYTES
    if execution.kernels == "compiled" or loss not in ("plain", "softmax"):
        return FUSED_LOGIT_BYTES
    return BY_NAME[execution.trainer].logit_traffic_bytes


def summed_bytes(size: int) -> float:
    """Bytes that a chunk moves for each trained weight: its float32 sum, the product to add."""
    return FP32_SUM_BYTES + (2.0 * size if size < FLOAT_BYTES else 0.0)
