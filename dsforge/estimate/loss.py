"""The loss at the output head: which trainer holds whole logits, and what it needs, in bytes.

A plain loss holds the logits of a whole micro batch. The chunked one of `dsforge train`
(`train/model/answer_loss.py`) asks the head for the loss of a chunk of tokens at a time and makes
the gradients on the way; Liger's and DeepSpeed's fused losses are of that kind. The size of a
chunk is decided here, for the trainer too, so that what is priced is what runs.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from dsforge.constraints.trainer import holds_whole_logits, is_split
from dsforge.estimate.activations import FLOAT_BYTES, element_bytes
from dsforge.specs import ModelSpec, Workload
from dsforge.strategy import Execution, Loss, Strategy

CHUNK_BYTES = 2**27  # of fp32 logits; smaller ones make matrix products too thin for a GPU
LEAST_ROWS = 256
SOFTMAX_COPIES = 2  # float32 logits and their log-softmax, alive at once
# Logits in the compute type, float32 copy; then what the loss keeps beside them, in float32:
# Megatron in place: nothing; its fused kernel and nanotron: the softmax; torch: log-softmax, its
# gradient; without a compiler torchtitan's gradient in the compute type too.
LOSS_BYTES = {"megatron": 4, "nanotron": 8, "deepspeed": 12, "fsdp": 14, "torchtune": 12}
FUSED_LOSS_BYTES = 8  # of a chunk of tokens so small that its logits are as wide as the layer


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
    rows = max(LEAST_ROWS, CHUNK_BYTES // (FLOAT_BYTES * vocab_size))
    if not trained:
        return Chunks(rows, rows)
    rows = max(rows, hidden_size // 4)
    return Chunks(rows, rows + hidden_size // 2)


def loss_of(model: ModelSpec, strategy: Strategy) -> Loss:
    """How the loss of a strategy is computed."""
    return loss_under(model, strategy.runs_as, split=is_split(strategy.layout))


def loss_under(model: ModelSpec, execution: Execution, *, split: bool) -> Loss:
    """How software computes the loss; where nobody said, chunked as `dsforge train` does if it can.

    `split`: the output layer is one of AutoTP or of a pipeline.
    """
    if execution.loss is not None:
        return execution.loss
    whole = execution.trainer != "deepspeed" or holds_whole_logits(model, split=split)
    return "plain" if whole else "chunked"


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
        return found + max(tokens * self.softmax, tokens * self.product + self.weight)


NO_HEAD = HeadBytes(0.0)


def head_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> HeadBytes:
    """The memory of the loss on a rank that has the head."""
    kind, size = loss_of(model, strategy), element_bytes(workload)
    weights = float(model.vocab_size * model.embedding_size)
    gradient = size * weights if workload.method == "full" else 0.0
    if kind == "chunked":
        return _chunked(model, size, gradient)
    if kind == "fused":  # Liger: makes the head's gradient at once, then its copy
        return HeadBytes(model.hidden_size * (size + FUSED_LOSS_BYTES), 2.0 * size * weights)
    logits = logit_token_bytes(model, workload, strategy)
    if strategy.runs_as.trainer != "deepspeed":  # it goes straight into their buffers
        return HeadBytes(0.0, softmax=logits)
    # Gradients of the logits in the compute type, twice: their cast is not done with.
    return HeadBytes(0.0, 0.0, logits, 2.0 * size * model.vocab_size, gradient)


def logit_token_bytes(model: ModelSpec, workload: Workload, strategy: Strategy) -> float:
    """Bytes per token of whole logits at the peak of the loss.

    `chunked_output` (torchtune): logits and their gradient in the compute type. DeepSpeed's tensor
    parallelism leaves the head whole.
    """
    run, size, kind = strategy.runs_as, element_bytes(workload), loss_of(model, strategy)
    cut = 1 if run.trainer in ("deepspeed", "torchtune") else strategy.layout.tensor_parallel_size
    if kind == "chunked_output":
        return 2 * size * model.vocab_size / cut
    beside = LOSS_BYTES[run.trainer]
    if run.trainer == "megatron" and kind == "softmax":
        beside += FLOAT_BYTES
    if run.trainer == "fsdp" and run.kernels == "compiled":
        beside -= size
    return (size + beside) * model.vocab_size / cut


def _chunked(model: ModelSpec, size: int, gradient: float) -> HeadBytes:
    """Rows of hidden states with their gradient; logits of a chunk; the gradient of the weight.

    Several chunks: its sum in float32, beside a chunk's softmax. Read in
    `train/model/answer_loss.py`, measured in tests/engine/test_loss_memory.py.
    """
    width, words = model.embedding_size, model.vocab_size
    chunks = chunks_of(words, width, trained=gradient > 0)
    softmax, slope = float(SOFTMAX_COPIES * FLOAT_BYTES * words), float(size * words)
    many = chunks.rows * softmax + FLOAT_BYTES * gradient / size
    return HeadBytes(
        token=2.0 * size * width,
        softmax=softmax,
        product=slope,
        weight=gradient,
        one_chunk=float(chunks.one),
        many=many,
    )
