"""A Hugging Face decoder as DeepSpeed's PipelineModule: a sequence of pieces, split into stages.

Every piece runs the model's own forward with all but one part taken out, so masks, positions and
rotary embeddings are made by the model's own code. There is one piece per decoder layer: the model
may be split between any two, and a checkpoint has one file per layer, whatever the number of
stages. With tensor parallelism the layers of each stage are sharded by AutoTP over the ranks of the
pipeline's own grid.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import deepspeed.comm as dist
import torch
from deepspeed.checkpoint.constants import UNIVERSAL_CHECKPOINT_INFO
from deepspeed.module_inject.layers import collect_autotp_universal_checkpoint_info
from deepspeed.pipe import PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology, PipeModelDataParallelTopology
from deepspeed.runtime.utils import partition_balanced, partition_uniform

from dsforge.constraints.trainer import ANATOMIES, Anatomy
from dsforge.ds_config import BALANCED
from dsforge.layout import Layout
from dsforge.train.parallel.autotp import shard_layers, shares_of, whole_shards
from dsforge.train.parallel.modes import Mode, explicit_bounds
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
        """Hidden states of token ids; positions of packed samples travel beside them."""
        if isinstance(inputs, tuple):
            return (self.embedding(inputs[0]), *inputs[1:])
        return self.embedding(inputs)


class Final(torch.nn.Module):
    """The last norm."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, inputs: Any) -> Any:
        """Normalised hidden states; nothing after them needs positions."""
        return self.norm(inputs[0] if isinstance(inputs, tuple) else inputs)


class Shared(TiedLayerSpec):
    """Word vectors that the head uses too; DeepSpeed sums the gradients of both ends.

    The first end has no function of its own: DeepSpeed saves the weights of modules, and of a
    function none.
    """

    def __init__(self, piece: Embedding, forward: Any = None) -> None:
        weight = "embedding.weight"
        super().__init__(TIED, Embedding, forward_fn=forward, tied_weight_attr=weight)
        self.piece = piece

    def build(self, log: bool = False) -> Any:
        """The module that holds the weights; it is there already."""
        return self.piece


def project(piece: Embedding, hidden: torch.Tensor) -> torch.Tensor:
    """Logits by the word vectors themselves."""
    return torch.nn.functional.linear(hidden, piece.embedding.weight)


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


def pipeline_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The config for the pipeline engine, which would give the groups of its grid up for AutoTP's.

    Between stages every tensor rank sends whole activations. The engine would have each send its
    part of them, by the shape of the first micro batch (`pipe_partition_input_meta_cache`): ours
    differ in length.
    """
    pipeline = {**settings["pipeline"], "pipe_partitioned": False, "grad_partitioned": False}
    others = {key: value for key, value in settings.items() if key != "tensor_parallel"}
    return {**others, "pipeline": pipeline}


class PipelineDecoder(PipelineModule):
    """The stages of a causal language model; this rank keeps its own shards of its own stage."""

    forward_funcs: list[Any]

    def __init__(self, model: Any, mode: Mode, settings: dict[str, Any]) -> None:
        anatomy = ANATOMIES[model.config.model_type]
        layout = mode.layout
        self._split, self._settings = mode.partition, settings
        self._tensor_ranks = layout.tensor_parallel_size
        self._layers = len(getattr(model.base_model, anatomy.layers))
        self._before = 2 if anatomy.entry else 1
        self._model = (model,)  # in a tuple: not a part of this stage
        # `named_parameters` names tied weights once, as transformers saves them.
        self._of_model = {id(p): name for name, p in model.named_parameters()}
        super().__init__(
            layers=_pieces(model, anatomy),
            topology=_topology(layout),
            loss_fn=scaled_loss,
            dynamic_shape=True,
        )
        self.names = [self._of_model[id(parameter)] for parameter in self.parameters()]
        local = (name for name, _ in self.named_parameters())
        self.names_in_model = dict(zip(local, self.names, strict=True))
        for parameter in self.parameters():
            parameter.model_parallel = self._counts(parameter)
        if self._tensor_ranks > 1:
            info = collect_autotp_universal_checkpoint_info(self._all_stages())
            setattr(self, UNIVERSAL_CHECKPOINT_INFO, info)

    def _all_stages(self) -> torch.nn.Module:
        """The pieces of all stages, named as each stage names its own.

        DeepSpeed's converter asks the first stage how all parameters are sharded.
        """
        every = torch.nn.Module()
        every.tied_modules = torch.nn.ModuleDict()
        for index, piece in enumerate(self._layer_specs):
            if isinstance(piece, Shared):
                every.tied_modules[TIED] = piece.piece
            else:
                every.add_module(str(index), piece)
        return every

    def _counts(self, parameter: Any) -> bool:
        """Whether the gradient norm counts a parameter on this rank.

        It counts every shard and every replicated parameter once. Without the mark, gradients are
        clipped in fp32 by the norm of the first stage alone (`runtime/utils.py`,
        `clip_grad_norm_`).
        """
        if parameter.ds_pipe_replicated:
            return False
        sharded = getattr(parameter, "tensor_model_parallel", False)
        return sharded or self._grid.get_slice_parallel_rank() == 0

    def _partition_layers(self, method: str = "") -> None:
        """Set the bounds of all stages, without DeepSpeed's printing of every layer; keep one."""
        if isinstance(self._split, tuple):
            after = self._num_layers - self._before - self._layers
            self.parts = explicit_bounds(self._split, self._before, after)
        elif self._split == BALANCED:
            self.parts = partition_balanced(self._count_layer_params(), self.num_stages)
        else:
            self.parts = partition_uniform(self._num_layers, self.num_stages)
        begin, end = self.parts[self.stage_id], self.parts[self.stage_id + 1]
        self._set_bounds(begin, end)
        self._leave_others(self._layer_specs[begin:end])
        if self._tensor_ranks > 1:
            shard_layers(self.whole, self._settings, self._grid.get_slice_parallel_group())
            if not isinstance(self._layer_specs[-1], Shared):  # the head is another module now
                self._layer_specs[-1] = self.whole.get_output_embeddings()

    def _leave_others(self, pieces: Sequence[Any]) -> None:
        """Move the weights of other stages to the meta device."""
        held = (piece.piece if isinstance(piece, Shared) else piece for piece in pieces)
        own = {id(parameter) for piece in held for parameter in piece.parameters()}
        for module in self.whole.modules():
            weights = list(module.parameters(recurse=False))
            if weights and not any(id(parameter) in own for parameter in weights):
                module.to("meta")

    def load_state_dir(self, load_dir: str, checkpoint_engine: Any, strict: bool = True) -> None:
        """Load the weights of this stage.

        Releases before this one saved tied weights with the optimizer states only.
        """
        pieces = self.forward_funcs
        self.forward_funcs = [
            None
            if self._is_tied(piece) and not self.ckpt_layer_path_list(load_dir, index)
            else piece
            for index, piece in enumerate(pieces)
        ]
        super().load_state_dir(load_dir, checkpoint_engine, strict=strict)
        self.forward_funcs = pieces

    def _is_tied(self, piece: Any) -> bool:
        return any(piece is module for module in self.tied_modules.values())

    @property
    def whole(self) -> Any:
        """The transformers model; weights of other stages are on the meta device."""
        return self._model[0]

    def gathered_weights(self) -> dict[str, Any]:
        """Every weight on the CPU of rank 0, by its transformers name; empty on other ranks.

        Stages send theirs in turn, one tensor at a time. All ranks must call it.
        """
        known: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(known, self._shapes())
        weights: dict[str, Any] = {}
        device = next(self.parameters()).device
        if self._grid.data_parallel_id > 0:
            return weights  # all replicas have the same
        for stage in range(self.num_stages):
            source = self._grid.stage_to_global(stage, data=0, **self._first_shard())
            if self.stage_id == stage:
                for name, whole in self._whole_weights():
                    if self.global_rank == source == 0:
                        weights[name] = whole.to("cpu", copy=True)
                    elif self.global_rank == source:
                        dist.send(whole, 0)
            elif self.global_rank == 0:
                for name, shape, dtype in known[source]:
                    received = torch.empty(shape, dtype=dtype, device=device)
                    dist.recv(received, source)
                    weights.setdefault(name, received.cpu())
        return weights

    def _first_shard(self) -> dict[str, int]:
        """The first tensor rank, as the grid names it."""
        return {"model": 0} if self._tensor_ranks > 1 else {}

    def _shapes(self) -> list[tuple[str, Any, Any]]:
        """Name, whole shape and type of the weights of this stage, in the order they are sent."""
        types = dict(zip(self.names, (p.dtype for p in self.parameters()), strict=True))
        return [(s.name, s.shape, types[s.name]) for s in shares_of(self).values()]

    def _whole_weights(self) -> Iterator[tuple[str, Any]]:
        """The weights of this stage by their transformers names; its tensor ranks ask together."""
        names = dict(zip(map(id, self.parameters()), self.names, strict=True))
        for module in self.modules():
            with whole_shards(module):
                for parameter in module.parameters(recurse=False):
                    name = names.pop(id(parameter), None)
                    if name is not None:
                        yield name, parameter.detach().contiguous()


def _topology(layout: Layout) -> Any:
    """DeepSpeed's rank grid; without tensor ranks files of layers are named without them."""
    stages, replicas = layout.pipeline_parallel_size, layout.data_parallel_size
    if layout.tensor_parallel_size == 1:
        return PipeDataParallelTopology(num_pp=stages, num_dp=replicas)
    return PipeModelDataParallelTopology(
        num_pp=stages, num_mp=layout.tensor_parallel_size, num_dp=replicas
    )


def _pieces(model: Any, anatomy: Anatomy) -> list[Any]:
    """The sequence of pieces: embedding, entry where there is one, layers, norm, head."""
    base, head = model.base_model, model.get_output_embeddings()
    embedding = Embedding(getattr(base, anatomy.embedding))
    tied = head.weight is embedding.embedding.weight
    layers = range(len(getattr(base, anatomy.layers)))
    return [
        Shared(embedding) if tied else embedding,
        *([Decoder(base, anatomy, (), entry=True)] if anatomy.entry else []),
        *(Decoder(base, anatomy, (index,), entry=False) for index in layers),
        Final(getattr(base, anatomy.norm)),
        Shared(embedding, project) if tied else head,
    ]
