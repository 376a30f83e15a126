"""Optimizer steps as the engine takes them: micro step by micro step, or a whole schedule at once.

A pipeline mixes passes of its micro batches. Its forward is what comes before the first backward
pass (the pipeline fills), its backward goes to the end of the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from deepspeed.runtime.pipe.engine import TENSOR_META_SIZE, PipelineEngine
from deepspeed.runtime.pipe.schedule import BackwardPass

from dsforge.rehearse.fake_gpu import DEVICE
from dsforge.specs import Reference
from dsforge.train.model.answer_loss import LossHead, Targets, answer_log_probabilities
from dsforge.train.model.source import has_two_sides
from dsforge.train.parallel.ulysses import stretch_width

# Micro steps of one step that are run: the second of them finds gradients to add to, and so do all
# others but the last, which reduces them.
MICRO_STEPS = 3
Phase = Callable[[str], AbstractContextManager[None]]


class Samples(NamedTuple):
    """What each micro batch is made of."""

    tokens: int  # of a sample
    head: LossHead | None = None  # the output layer, where the loss is made in chunks
    reference: Reference | None = None  # of DPO, whose samples are pairs

    def loss(self, engine: Any) -> torch.Tensor:
        """The loss of a micro batch: every token is one of an answer.

        Ulysses gives a rank a stretch of each sample, and wants to be told where its tokens stand.
        """
        if self.reference is not None:
            return self._preference(engine)
        ranks, length = engine.sequence_parallel_size, self.tokens
        if ranks > 1:
            length = stretch_width(length, ranks)
        shape = engine.train_micro_batch_size_per_gpu(), length
        tokens = torch.empty(shape, dtype=torch.long, device=DEVICE)
        inputs = {"input_ids": tokens}
        if has_two_sides(engine.module.config):
            inputs["decoder_input_ids"] = torch.empty_like(tokens)  # an answer as long as a prompt
        if ranks > 1:
            inputs["position_ids"] = torch.empty_like(tokens)
        if self.head is None:
            return engine(**inputs, labels=tokens).loss
        every = tokens.flatten()
        self.head.targets = Targets(torch.empty_like(every), every)
        try:
            return engine(**inputs).logits
        finally:
            self.head.targets = None

    def _preference(self, engine: Any) -> torch.Tensor:
        """The loss of pairs, as `train/run/preference_step.py` computes it."""
        pairs = engine.train_micro_batch_size_per_gpu()
        tokens = torch.empty((2 * pairs, self.tokens), dtype=torch.long, device=DEVICE)
        every = tokens[:, 1:].flatten()
        targets = Targets(torch.empty_like(every), every)
        before = torch.empty(2 * pairs, device=DEVICE)
        if self.reference == "adapters_off":
            with torch.no_grad(), engine.module.disable_adapter():
                before = answer_log_probabilities(engine(input_ids=tokens).logits, targets)
        gained = answer_log_probabilities(engine(input_ids=tokens).logits, targets) - before
        return torch.nn.functional.softplus(gained[pairs:] - gained[:pairs]).sum()


def take_step(engine: Any, phase: Phase, samples: Samples, *, first: bool) -> None:
    """One optimizer step, phase by phase; one micro step is enough for the first."""
    prefix = "first_" if first else ""
    if isinstance(engine, PipelineEngine):
        _scheduled(engine, phase, samples.tokens, prefix)
    else:
        _micro_steps(engine, phase, samples, prefix)


def _micro_steps(engine: Any, phase: Phase, samples: Samples, prefix: str) -> None:
    total = engine.gradient_accumulation_steps()
    micro_steps = min(total, 1 if prefix else MICRO_STEPS)
    for micro_step in range(micro_steps):
        if micro_steps < total:
            engine.set_gradient_accumulation_boundary(micro_step == micro_steps - 1)
        last = micro_step == micro_steps - 1
        with phase(prefix + ("forward" if last else "accumulation")):
            loss = samples.loss(engine)
        with phase(prefix + ("backward" if last else "accumulation")):
            engine.backward(loss)
            del loss
        with phase(prefix + ("step" if last else "accumulation")):
            engine.step()


def _scheduled(engine: Any, phase: Phase, sequence_length: int, prefix: str) -> None:
    """The engine's own schedule of as many micro batches as fill the pipeline, and one more."""
    enough = 1 if prefix else engine.num_stages + 1
    engine.micro_batches = min(engine.gradient_accumulation_steps(), enough)
    shape = engine.train_micro_batch_size_per_gpu(), sequence_length
    engine._recv_tensor_meta = lambda _: _arriving(engine, shape)  # noqa: SLF001 - nobody sends it
    passes = _Passes(engine, phase, prefix)
    engine._INSTRUCTION_MAP = {  # noqa: SLF001 - the engine's table of what it can do
        kind: passes.told(kind, run)
        for kind, run in PipelineEngine._INSTRUCTION_MAP.items()  # noqa: SLF001
    }
    passes.enter("forward")
    engine.train_batch(_batches(shape))
    passes.leave()


class _Passes:
    """The phases of a schedule while its instructions run."""

    def __init__(self, engine: Any, phase: Phase, prefix: str) -> None:
        self.phase, self.prefix, self.name = phase, prefix, ""
        self.waiting = engine.micro_batches
        self.within: AbstractContextManager[None] | None = None

    def told(self, kind: type, run: Callable[..., None]) -> Callable[..., None]:
        """An instruction that says when the phase is another one."""

        def instruction(engine: Any, *args: Any, **options: Any) -> None:
            if kind is BackwardPass and self.name == "forward":
                self.enter("backward")
            run(engine, *args, **options)
            if kind is BackwardPass:
                self.waiting -= 1
                if not self.waiting:
                    self.enter("step")

        return instruction

    def enter(self, name: str) -> None:
        """Begin a phase and end the one before."""
        self.leave()
        self.name, self.within = name, self.phase(self.prefix + name)
        self.within.__enter__()

    def leave(self) -> None:
        """End the phase."""
        if self.within is not None:
            self.within.__exit__(None, None, None)
        self.within = None


def _batches(shape: tuple[int, int]) -> Iterator[Any]:
    """What the first and the last stage read: tokens, their labels, the weight of the loss."""
    while True:
        tokens = torch.empty(shape, dtype=torch.long, device="cpu")
        yield tokens, (tokens, torch.ones((), device="cpu"))


def _arriving(engine: Any, shape: tuple[int, int]) -> torch.Tensor:
    """The buffer that hidden states of the stage before arrive in, as the engine makes it."""
    torch.empty(TENSOR_META_SIZE, dtype=torch.int32, device=DEVICE)
    weights = next(engine.module.parameters())
    size = [*shape, engine.module.whole.config.hidden_size]
    return engine._allocate_or_extend_buffers(0, size, weights.dtype)  # noqa: SLF001
