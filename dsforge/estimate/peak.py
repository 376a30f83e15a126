"""The fullest moment of one pipeline stage: what stays, and what each token of a micro batch adds.

A step has four moments: the loss, a layer at work, the end of the backward pass, the optimizer
step. The one that takes most is the peak.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dsforge.estimate.loss import HeadBytes
from dsforge.estimate.states import States
from dsforge.strategy import Batching
from dsforge.traced import (
    TRACED,
    Constant,
    counted,
    label,
    maximum,
    minimum,
    named,
    plain,
)

MICRO_TOKENS = "tokens of a micro batch on one rank: context ranks share a sequence"
MOMENT = "one of four moments of a step; the largest is the peak"
SAVED = "saved from forward to backward, of all micro batches in flight"
WORKING = "gradients of one layer, and its recomputed activations"
UNEVEN = "micro batches in flight, with chunks of unequal length: a turn-by-turn count"
UNJOINED = "what backward and the step reserve together, beyond the fuller of them"
LOGITS = "at the softmax, or at the matrix product of the head's gradient"


class Peak(NamedTuple):
    """The terms of one stage at its fullest moment, as plain numbers."""

    weights: float
    gradients: float
    activations: float
    logits: float
    optimizer_state: float
    buffers: float
    moment: float  # gradients, activations and logits together
    churn: float  # what ZeRO stage 3 gathers and frees in pieces of every size
    errors: tuple[Constant, Constant]  # shares by which fixed and moving bytes may be off
    waiting: float = 0.0  # checkpoints in RAM
    spared: float = 0.0  # of the moment, if the loss is the other one that it may be
    loose: bool = False  # whose allocator meets samples of many lengths, for all that is known
    step_blocks: float = 0.0  # of the optimizer step, beside what backward has freed

    @property
    def fixed_bytes(self) -> float:
        """What no batch changes."""
        return self.weights + self.gradients + self.optimizer_state + self.buffers

    @property
    def moving_bytes(self) -> float:
        """What grows with the micro batch."""
        return self.activations + self.logits

    @property
    def total_bytes(self) -> float:
        """What the tensors take together."""
        return self.weights + self.optimizer_state + self.buffers + self.moment


class Footprint(NamedTuple):
    """One stage under any batching: what stays, and what each token of a micro batch adds."""

    kept: States
    buffers: float
    saved: float  # from forward to backward, all layers of the stage
    working: float  # a layer at work
    unpacked: float  # bytes of a layer's matrices that autograd keeps unpacked
    unpacked_layers: int  # layers that keep them from forward to backward; 0: the one at work
    head: HeadBytes
    least_head: HeadBytes | None  # of the other loss that it may be
    sample_tokens: float  # of one sample on one rank
    pipeline: int  # stages
    later: int  # stages behind it: it holds a micro batch for each
    chunks: tuple[int, ...]  # layers of each of its chunks
    lasting: bool  # gradients outlive a micro step even where there is one
    churns: bool
    loose: bool  # adapters in others' scripts, whose samples may have any length
    errors: tuple[Constant, Constant]  # shares by which fixed and moving bytes may be off
    waiting: float  # in RAM from forward to backward
    loaded: float  # a whole model beside the shard while weights are loaded
    step_blocks: float  # whole tensors of the optimizer step that no freed piece can hold

    def at(self, batching: Batching) -> Peak:
        """The fullest of four moments: the loss, a layer at work, end of backward, the step.

        Gradients outlive a micro step only where there are several, or where the engine keeps its
        buffer for ever (Megatron, ZeRO stage 3).
        """
        kept, tokens = self.kept, batching.micro_batch_size * self.sample_tokens
        saved, working = tokens * self.saved * self._in_flight(batching), tokens * self.working
        saved, working = self._with_unpacked(saved, working)
        logits = self.head.at(tokens)
        early = kept.gradients if self.lasting or batching.steps > 1 else 0.0
        at_loss, at_work = early + saved + logits, early + saved + working
        at_end, stepping = kept.gradients + working, kept.gradients + kept.step_gradients
        moment = max(at_loss, at_work, at_end, stepping)
        if tokens.__class__ is TRACED:
            label(tokens, "micro_tokens", "tokens", MICRO_TOKENS)
            _name_parts(saved, working, logits)
            moment = _fullest(at_loss, at_work, at_end, stepping)
        if moment == at_loss:
            parts = (early, saved, logits)
        elif moment == at_work:
            parts = (early, saved + working, 0.0)
        else:
            parts = (kept.gradients, working, 0.0) if moment == at_end else (stepping, 0.0, 0.0)
        buffers = self.buffers
        loading = self.loaded - kept.optimizer - buffers
        if self.loaded and loading > moment:
            moment, parts, buffers = loading, (0.0, 0.0, 0.0), buffers + loading
        blocks = self._unjoined((at_loss, at_work, at_end), moment)
        waiting = self._waiting(batching, tokens)
        found = self._peak(parts, buffers, moment, waiting=waiting, step_blocks=blocks)
        if self.least_head is None:
            return found
        least = early + saved + self.least_head.at(tokens)
        other = maximum(maximum(least, at_work), maximum(at_end, stepping))
        return found._replace(spared=maximum(0.0, found.moment - other))

    def _peak(
        self,
        parts: tuple[float, float, float],
        buffers: float,
        moment: float,
        *,
        waiting: float,
        step_blocks: float,
    ) -> Peak:
        """The terms at the fullest moment; `parts`: gradients, activations and logits of it."""
        return Peak(
            self.kept.weights,
            *parts,
            self.kept.optimizer,
            buffers,
            moment,
            churn=self.buffers if self.churns else 0.0,
            errors=self.errors,
            waiting=waiting,
            loose=self.loose,
            step_blocks=step_blocks,
        )

    def _waiting(self, batching: Batching, tokens: float) -> float:
        """Checkpoints that are in RAM meanwhile, bytes."""
        return tokens * self.waiting * self._in_flight(batching) if self.waiting else 0.0

    def _unjoined(self, backward: tuple[float, float, float], moment: float) -> float:
        """Bytes that the blocks of the step add to what the fullest moment takes."""
        if not self.step_blocks:
            return 0.0
        fullest = maximum(maximum(backward[0], backward[1]), backward[2])
        blocks = maximum(0.0, fullest + self.step_blocks - moment)
        return named(blocks, "unjoined_blocks", "bytes", UNJOINED)

    def _with_unpacked(self, saved: float, working: float) -> tuple[float, float]:
        """Saved and working bytes with the matrices that autograd keeps unpacked."""
        if not self.unpacked:
            return saved, working
        if self.unpacked_layers:
            return saved + self.unpacked_layers * self.unpacked, working
        return saved, working + self.unpacked

    def _in_flight(self, batching: Batching) -> float:
        """Micro batches in flight: 1F1B has one for each later stage.

        Interleaved, stage r of pp begins with 2 (pp - r - 1) + (v - 1) pp chunks forward and works
        on one more (Narayanan et al. 2021, section 2.2; Megatron's
        `get_num_warmup_microbatches`). Where its chunks differ, the fullest ones count.
        """
        pp, virtual = self.pipeline, batching.virtual_stages
        if pp == 1:
            return 1.0
        alive = self.later + 1.0
        if virtual > 1:
            alive = (2 * self.later + (virtual - 1) * pp + 1) / virtual
            if len(set(self.chunks)) > 1:
                later, steps = round(plain(self.later)), round(plain(batching.steps))
                uneven = interleaved(self.chunks, round(plain(pp)), later, steps)
                alive = counted(uneven, "chunks_alive", "", of=alive, why=UNEVEN)
        return named(minimum(batching.steps, alive), "micro_batches_alive")


@lru_cache(maxsize=1024)
def interleaved(chunks: tuple[int, ...], pp: int, later: int, steps: int) -> float:
    """Most layers in flight at once on a stage whose chunks differ, in its own number of layers.

    Chunks take turns by groups of `pp` micro batches, backward in the opposite order
    (`schedules.py` of Megatron-LM, `forward_backward_pipelining_with_interleaving`).
    """
    virtual = len(chunks)
    ahead = 2 * later + (virtual - 1) * pp + 1
    turns = min(steps * virtual, ahead + 2 * pp * virtual)  # after a round it repeats
    forward = [chunks[turn // pp % virtual] for turn in range(turns)]
    backward = [chunks[-1 - turn // pp % virtual] for turn in range(turns)]
    alive = most = sum(forward[:ahead])
    for more, done in zip(forward[ahead:], backward, strict=False):
        alive += more - done
        most = max(most, alive)
    return most / sum(chunks)


def _name_parts(saved: float, working: float, logits: float) -> None:
    """Name what the moments of a step consist of."""
    label(saved, "saved_activations", "bytes", SAVED)
    label(working, "working_set", "bytes", WORKING)
    label(logits, "logits_of_micro_batch", "bytes", LOGITS)


def _fullest(at_loss: float, at_work: float, at_end: float, stepping: float) -> float:
    """The largest of four moments, each with a name."""
    label(at_loss, "at_the_loss", "bytes", MOMENT)
    label(at_work, "with_a_layer_at_work", "bytes", MOMENT)
    label(at_end, "at_the_end_of_backward", "bytes", MOMENT)
    label(stepping, "at_the_optimizer_step", "bytes", MOMENT)
    return maximum(maximum(at_loss, at_work), maximum(at_end, stepping))
