"""A Hugging Face decoder as DeepSpeed's PipelineModule: a sequence of pieces, split into stages.

Every piece runs the model's own forward with all but one part taken out, so masks, positions and
rotary embeddings are made by the model's own code. There is one piece per decoder layer: the model
may be split between any two, and a checkpoint has one file per layer, whatever the number of
stages.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import deepspeed.comm as dist
import torch
from deepspeed.pipe import PipelineModule, TiedLayerSpec
from deepspeed.runtime.utils import partition_balanced, partition_uniform

from dsforge.constraints.trainer import ANATOMIES, Anatomy
from dsforge.ds_config import BALANCED, Partition
from dsforge.train.parallel.modes import explicit_bounds
from dsforge.train.parallel.pipeline_step import scaled_loss

TIED = "embedding"  # DeepSpeed's key of the weights that the first and the last stage share


class Nothing(torch.nn.Module):
    """Replaces an embedding of positions that an earlier stage has added."""

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """A zero that fits every shape and type."""
        return torch.zeros((), device=positions.device)


class Decoder(torch.nn.Module):
    """Some layers of a base model, under its own forward."""

    def __init__(self, base: Any, anatomy: Anatomy, layers: Sequence[int], *, entry: bool) -> None:
        super().__init__()
        self.body = _without_layers(base, anatomy, entry=entry)
        kept = [getattr(base, anatomy.layers)[index] for index in layers]
        setattr(self.body, anatomy.layers, torch.nn.ModuleList(kept))
        if hasattr(base.config, "layer_types") and layers:
            self.body.config = copy.copy(base.config)
            self.body.config.layer_types = [base.config.layer_types[index] for index in layers]

    def forward(self, inputs: Any) -> Any:
        """Hidden states after these layers; positions of packed samples travel beside them."""
        hidden, *positions = inputs if isinstance(inputs, tuple) else (inputs,)
        given = {"position_ids": positions[0]} if positions else {}
        output = self.body(inputs_embeds=hidden, use_cache=False, **given).last_hidden_state
        return (output, *positions) if positions else output


class Embedding(torch.nn.Module):
    """Word vectors of the first stage."""

    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, inputs: Any) -> Any:
        """Hidden states of token ids."""
        return embed(self.embedding, inputs)


class Final(torch.nn.Module):
    """The last norm."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, inputs: Any) -> Any:
        """Normalised hidden states; nothing after them needs positions."""
        return self.norm(inputs[0] if isinstance(inputs, tuple) else inputs)


class Shared(TiedLayerSpec):
    """Word vectors that the head uses too; DeepSpeed sums the gradients of both ends."""

    def __init__(self, embedding: Any, forward: Any) -> None:
        super().__init__(TIED, type(embedding), forward_fn=forward)
        self.embedding = embedding

    def build(self, log: bool = False) -> Any:
        """The module that holds the weights; it is there already."""
        return self.embedding


def embed(embedding: Any, inputs: Any) -> Any:
    """Hidden states of token ids; positions of packed samples travel beside them."""
    if isinstance(inputs, tuple):
        return (embedding(inputs[0]), *inputs[1:])
    return embedding(inputs)


def project(embedding: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Logits by the word vectors themselves."""
    return torch.nn.functional.linear(hidden, embedding.weight)


def _without_layers(base: Any, anatomy: Anatomy, *, entry: bool) -> Any:
    """A base model that shares modules with another, without embedding, layers and norm."""
    body = copy.copy(base)
    body._modules = dict(base._modules)  # noqa: SLF001 - a shallow copy shares the registry
    setattr(body, anatomy.embedding, None)
    setattr(body, anatomy.norm, torch.nn.Identity())
    for name in () if entry else anatomy.entry:
        dropout = isinstance(getattr(base, name), torch.nn.Dropout)
        setattr(body, name, torch.nn.Identity() if dropout else Nothing())
    return body


class PipelineDecoder(PipelineModule):
    """The stages of a causal language model; this rank keeps the weights of its own stage."""

    def __init__(self, model: Any, stages: int, partition: Partition) -> None:
        anatomy = ANATOMIES[model.config.model_type]
        self._split = partition
        self._layers = len(getattr(model.base_model, anatomy.layers))
        self._before = 2 if anatomy.entry else 1
        # `named_parameters` names tied weights once, as transformers saves them.
        names = {id(p): name for name, p in model.named_parameters()}
        super().__init__(
            layers=_pieces(model, anatomy),
            num_stages=stages,
            loss_fn=scaled_loss,
            dynamic_shape=True,
        )
        self.names = [names[id(parameter)] for parameter in self.parameters()]
        own = {id(parameter) for parameter in self.parameters()}
        for module in model.modules():
            held = list(module.parameters(recurse=False))
            if held and not any(id(parameter) in own for parameter in held):
                module.to("meta")
        self._model = (model,)  # in a tuple: not a part of this stage
        for parameter in self.parameters():
            # Without it, gradients are clipped in fp32 by the norm of the first stage alone
            # (`runtime/utils.py`, `clip_grad_norm_`).
            parameter.model_parallel = not parameter.ds_pipe_replicated

    def _partition_layers(self, method: str = "") -> None:
        """Set the bounds of all stages, without DeepSpeed's printing of every layer."""
        if isinstance(self._split, tuple):
            after = self._num_layers - self._before - self._layers
            self.parts = explicit_bounds(self._split, self._before, after)
        elif self._split == BALANCED:
            self.parts = partition_balanced(self._count_layer_params(), self.num_stages)
        else:
            self.parts = partition_uniform(self._num_layers, self.num_stages)
        self._set_bounds(self.parts[self.stage_id], self.parts[self.stage_id + 1])

    @property
    def whole(self) -> Any:
        """The transformers model; weights of other stages are on the meta device."""
        return self._model[0]

    def gathered_weights(self) -> dict[str, Any]:
        """Every weight on the CPU of rank 0, by its transformers name; empty on other ranks.

        Stages send theirs in turn, one tensor at a time. All ranks must call it.
        """
        mine = dict(zip(self.names, self.parameters(), strict=True))
        shapes: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(shapes, [(n, p.shape) for n, p in mine.items()])
        weights: dict[str, Any] = {}
        if self.global_rank == 0:
            weights = {name: p.detach().to("cpu", copy=True) for name, p in mine.items()}
        for stage in range(1, self.num_stages):
            source = self._grid.stage_to_global(stage, data=0)
            if self.global_rank == source:
                for parameter in mine.values():
                    dist.send(parameter.detach().contiguous(), 0)
            elif self.global_rank == 0:
                like = next(iter(mine.values()))
                for name, shape in shapes[source]:
                    received = torch.empty(shape, dtype=like.dtype, device=like.device)
                    dist.recv(received, source)
                    weights.setdefault(name, received.cpu())
        return weights


def _pieces(model: Any, anatomy: Anatomy) -> list[Any]:
    """The sequence of pieces: embedding, entry where there is one, layers, norm, head."""
    base, head = model.base_model, model.get_output_embeddings()
    embedding = getattr(base, anatomy.embedding)
    tied = head.weight is embedding.weight
    layers = range(len(getattr(base, anatomy.layers)))
    return [
        Shared(embedding, embed) if tied else Embedding(embedding),
        *([Decoder(base, anatomy, (), entry=True)] if anatomy.entry else []),
        *(Decoder(base, anatomy, (index,), entry=False) for index in layers),
        Final(getattr(base, anatomy.norm)),
        Shared(embedding, project) if tied else head,
    ]
