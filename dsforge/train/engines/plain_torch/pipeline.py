"""Pipeline stages through torch.distributed.pipelining: parts of the model, schedule, steps.

A stage is the whole transformers model with empty modules in the places of what other stages hold.
So its parameters keep their names, and masks, positions and rotary embeddings come from the
model's own code. Stages exchange hidden states of one fixed shape: batches are padded to the
sequence length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsforge.constraints.trainer import ANATOMIES
from dsforge.train.data.samples import IGNORED, Sample, collate
from dsforge.train.run.step import Stepper, without_answer


class Elsewhere(torch.nn.Module):
    """The place of a part that another stage holds: hidden states pass."""

    def forward(self, hidden: Any, *_: Any, **__: Any) -> Any:
        """The same hidden states."""
        return hidden


class Stage(torch.nn.Module):
    """What a rank computes: tokens or hidden states in, hidden states or logits out."""

    def __init__(self, model: Any, index: int, stages: int) -> None:
        super().__init__()
        keep_own(model, index, stages)
        self.model = model
        self.is_first, self.is_last = index == 0, index == stages - 1

    def forward(self, inputs: Any) -> Any:
        """One micro batch."""
        given = {"input_ids" if self.is_first else "inputs_embeds": inputs}
        hidden = self.model.base_model(use_cache=False, **given).last_hidden_state
        return self.model.get_output_embeddings()(hidden) if self.is_last else hidden


def own_layers(layers: int, index: int, stages: int) -> range:
    """The decoder layers of a stage: equally many, the rest on the first stages."""
    each, rest = divmod(layers, stages)
    begin = index * each + min(index, rest)
    return range(begin, begin + each + (index < rest))


def keep_own(model: Any, index: int, stages: int) -> None:
    """Leave in a model what a stage holds, and empty modules in the other places."""
    anatomy, base = ANATOMIES[model.config.model_type], model.base_model
    layers = getattr(base, anatomy.layers)
    for number in set(range(len(layers))) - set(own_layers(len(layers), index, stages)):
        layers[number] = Elsewhere()
    for name in (anatomy.embedding, *anatomy.entry) if index > 0 else ():
        setattr(base, name, Elsewhere())
    if index < stages - 1:
        setattr(base, anatomy.norm, Elsewhere())
        model.set_output_embeddings(Elsewhere())


@dataclass(slots=True)
class Pipeline:
    """The schedules of a stage, for training and for validation."""

    training: Any
    validation: Any
    stage: Stage
    group: Any
    length: int
    scale: float = 1.0  # of the loss, set before each step

    def run(self, schedule: Any, tokens: Any, labels: Any) -> float:
        """Summed loss of some micro batches on the last stage, else 0."""
        losses: list[Any] = []
        inputs = (tokens,) if self.stage.is_first else ()
        last = {"target": labels, "losses": losses} if self.stage.is_last else {}
        act = schedule.step if schedule is self.training else schedule.eval
        act(*inputs, **last, **({} if act == schedule.eval else {"return_outputs": False}))
        return float(sum(loss.detach() for loss in losses)) / self.scale if losses else 0.0

    def loss(self, logits: Any, labels: Any) -> Any:
        """The scaled loss of a micro batch: the sum over its answers."""
        wanted = labels[:, 1:]
        counted = wanted != IGNORED
        cross_entropy = torch.nn.functional.cross_entropy
        found = cross_entropy(logits[:, :-1][counted].float(), wanted[counted], reduction="sum")
        return found * self.scale


def made_pipeline(
    stage: Any, mesh: Any, shape: tuple[int, int, int], *, device: Any, kind: Any
) -> Pipeline:
    """The schedules of a stage; `shape`: rows and length of a micro batch, micro batches.

    `kind` is the type of hidden states.
    """
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rows, length, count = shape
    group = mesh.get_group()
    config = stage.model.config.get_text_config()
    hidden = torch.empty(rows, length, config.hidden_size, dtype=kind, device="meta")
    tokens = torch.empty(rows, length, dtype=torch.int64, device="meta")
    logits = torch.empty(rows, length, config.vocab_size, dtype=kind, device="meta")

    def of_stage() -> Any:
        return PipelineStage(
            stage,
            mesh.get_local_rank(),
            mesh.size(),
            device,
            input_args=(tokens if stage.is_first else hidden.clone().requires_grad_(),),
            output_args=(logits if stage.is_last else hidden.clone().requires_grad_(),),
            group=group,
        )

    made = Pipeline(None, None, stage, group, length)
    made.training = Schedule1F1B(of_stage(), count, loss_fn=made.loss, scale_grads=False)
    made.validation = ScheduleGPipe(of_stage(), 1, loss_fn=made.loss)
    return made


class PipelineStepper(Stepper):
    """A Stepper whose engine takes all micro batches of a step at once."""

    def _passes(self, micro_batches: Sequence[Sequence[Sample]], scale: float) -> float:
        """The summed loss on ranks of the last stage, after the step of the optimizer."""
        pipeline = self.engine.pipeline
        pipeline.scale = scale * self.engine.loss_scale
        tokens, labels = self._padded([s for samples in micro_batches for s in samples])
        part = pipeline.run(pipeline.training, tokens, labels)
        self.engine.optimizer_step()
        return float(part / self.place.copies)

    def evaluate(self, samples: Sequence[Sample], micro_batch_size: int) -> float:
        """Mean loss per answer token over all samples; all ranks make equally many passes."""
        from dsforge.train.parallel.agreement import summed

        pipeline, replicas, total = self.engine.pipeline, self.place.replicas, 0.0
        pipeline.scale = 1.0
        self.engine.eval()
        with torch.no_grad():
            for start in range(0, len(samples), micro_batch_size * replicas):
                first = start + self.place.replica * micro_batch_size
                own = list(samples[first : first + micro_batch_size])
                own += [without_answer(samples[0])] * (micro_batch_size - len(own))
                total += pipeline.run(pipeline.validation, *self._padded(own))
        (loss_sum,) = summed(total / self.place.copies)
        return float(loss_sum / sum(sample.targets for sample in samples))

    def _padded(self, samples: Sequence[Sample]) -> tuple[Any, Any]:
        """Tokens and labels of samples, each as long as the sequence length."""
        batch = collate(samples, self.pad_token, least=self.engine.pipeline.length)
        device = self.engine.device
        return (torch.from_numpy(a).to(device) for a in (batch.tokens, batch.labels))  # type: ignore[return-value]
