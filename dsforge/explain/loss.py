"""The memory of the loss, worked out: whole logits, or those of a chunk of tokens."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.estimate.loss import LOSS_BYTES, SOFTMAX_COPIES, chunks_of, loss_of
from dsforge.explain.sheet import Line, Sheet
from dsforge.plan import Plan

LOSS = "estimate/loss.py"
READ = f"{LOSS}, read in train/model/answer_loss.py"


def give_loss(sheet: Sheet, plan: Plan) -> None:
    """What the formulas of the loss rest on."""
    model, strategy, engine = plan.model, plan.strategy, plan.strategy.back_end == "deepspeed"
    trained = plan.workload.method == "full"
    if loss_of(model, strategy) == "chunked":
        chunks = chunks_of(model.vocab_size, model.embedding_size, trained=trained)
        source = f"{READ}: tokens of a chunk; up to so many tokens are one"
        sheet.give(source, "tokens", chunk_rows=chunks.rows, one_chunk_rows=chunks.one)
        sheet.give(f"{READ}: float32 logits, log-softmax", softmax_copies=SOFTMAX_COPIES)
    else:
        source = f"{LOSS}, LOSS_BYTES: what the loss keeps beside the logits, in float32"
        ranks = 1 if engine else strategy.layout.tensor_parallel_size
        beside = LOSS_BYTES[strategy.runs_as.trainer]
        sheet.give(source, loss_bytes=beside, head_ranks=ranks)
    sheet.give("1 where the weights of the head are trained", head_trained=int(trained))


def logit_lines(plan: Plan, micro_tokens: float) -> Iterator[Line]:
    """Bytes of the logits of a micro batch at the loss."""
    model, strategy = plan.model, plan.strategy
    gradient = "head_trained * element_bytes * vocab_size * embedding_size"
    yield Line("head_gradient_bytes", "bytes", gradient, f"{LOSS}: of the weight of the head")
    if loss_of(model, strategy) == "chunked":
        yield from _chunked(plan, micro_tokens)
        return
    logits = "(element_bytes + loss_bytes) * vocab_size / head_ranks"
    yield Line("logit_token_bytes", "bytes", logits, f"{LOSS}: logits and loss")
    whole = "micro_tokens * logit_token_bytes"
    if strategy.back_end == "deepspeed":
        later = "micro_tokens * 2 * element_bytes * vocab_size + head_gradient_bytes"
        whole = f"max({whole}, {later})"
    why = f"{LOSS}: at the softmax, or at the product that is the gradient of the head"
    yield Line("logits_of_micro_batch", "bytes", f"has_head * {whole}", why)


def _chunked(plan: Plan, micro_tokens: float) -> Iterator[Line]:
    """Rows of hidden states with their gradient, and the logits of a chunk."""
    model = plan.model
    rows = "micro_tokens * 2 * element_bytes * embedding_size"
    yield Line("loss_rows", "bytes", rows, f"{READ}: hidden states and their gradient")
    copies = "softmax_copies * 4 * vocab_size"
    yield Line("logit_token_bytes", "bytes", copies, f"{READ}: of a token in a chunk")
    trained = plan.workload.method == "full"
    chunks = chunks_of(model.vocab_size, model.embedding_size, trained=trained)
    if micro_tokens > chunks.one:
        held = "chunk_rows * logit_token_bytes + head_gradient_bytes * 4 / element_bytes"
        why = f"{READ}: a chunk, beside the float32 sum of the gradient of the head"
    else:
        later = "micro_tokens * element_bytes * vocab_size + head_gradient_bytes"
        held = f"max(micro_tokens * logit_token_bytes, {later})"
        why = f"{READ}: one chunk, at its softmax or at the product that is the head's gradient"
    yield Line("logits_of_micro_batch", "bytes", f"has_head * (loss_rows + {held})", why)
