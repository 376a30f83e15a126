"""The loss of answer tokens, without holding the logits of a whole micro batch.

Logits are the largest tensor of a step: 32k tokens of a vocabulary of 128k are 16 GiB in fp32, and
cross-entropy keeps several of them. So the output layer itself is asked for the loss: it takes the
hidden states of answer tokens only, a chunk at a time, and makes the gradients on the way, as Liger
(Hsu et al. 2024) and DeepSpeed's `TiledFusedLogitsLoss` do. It stays a module that the engine's
hooks see, so ZeRO-3 gathers its weight as ever, and tied embeddings and adapters need nothing more.

Liger needs Triton; DeepSpeed's tiles hide the weight from the hooks of ZeRO 1 and 2 until the last;
torch 2.13's `linear_cross_entropy` sums losses in the precision of the weights: 0.3 % off in bf16,
infinite in fp16. So it is written here.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dsforge.estimate.loss import chunks_of

PARTS = 8  # of the words, in which products are added to a sum in another precision


class Targets(NamedTuple):
    """Which rows of the flattened hidden states predict an answer token, and which token."""

    places: Any
    tokens: Any


def targets_of(labels: NDArray[np.int64], ignored: int, device: Any) -> Targets:
    """The targets of a micro batch, from its labels (samples, length), on the device.

    They are found on the host: counting them on a GPU would make it wait.
    """
    following = labels[:, 1:]
    rows, columns = np.nonzero(following != ignored)
    places = rows * labels.shape[1] + columns
    return Targets(on_device(places, device), on_device(following[rows, columns], device))


def answer_log_probabilities(logits: Any, targets: Targets) -> Any:
    """Log probabilities of the targets, in fp32, summed in each row of logits (rows, length)."""
    flat = logits.reshape(-1, logits.shape[-1]).index_select(0, targets.places).float()
    each = -torch.nn.functional.cross_entropy(flat, targets.tokens, reduction="none")
    sums = torch.zeros(logits.shape[0], dtype=torch.float32, device=logits.device)
    return sums.index_add(0, targets.places // logits.shape[1], each)


def on_device(array: NDArray[np.int64], device: Any) -> Any:
    """A copy of an array on a device, not waited for."""
    tensor = torch.from_numpy(array)
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(slots=True)
class LossHead:
    """The output layer of a model, which gives the summed loss of `targets` instead of logits.

    `factor` is what the loss will be multiplied with before backward: half-precision gradients are
    made at that scale, where fp16 does not lose the small ones.
    """

    layer: Any
    targets: Targets | None = None
    factor: float = 1.0

    def forward(self, hidden: Any) -> Any:
        """Logits where no targets are set, else the summed loss."""
        weight, bias = self.layer.weight, self.layer.bias
        if self.targets is None:
            return torch.nn.functional.linear(hidden, weight, bias)
        places, tokens = self.targets
        rows = hidden.reshape(-1, hidden.shape[-1]).index_select(0, places)
        if torch.is_autocast_enabled(hidden.device.type):  # it chooses precisions, op by op
            logits = torch.nn.functional.linear(rows, weight, bias).float()
            return torch.nn.functional.cross_entropy(logits, tokens, reduction="sum")
        return _ChunkedLoss.apply(rows, weight, bias, tokens, self.factor)


def loss_head(module: Any) -> LossHead | None:
    """The output layer of a model, changed in place; none where it must stay as it is.

    That is so for layers that are not plain (sharded by tensor parallelism, or with adapters), and
    for models that change the logits afterwards, such as Gemma 2.
    """
    model = module.get_base_model() if hasattr(module, "peft_config") else module
    layer = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if layer is not None and hasattr(
        layer, "modules_to_save"
    ):  # peft's wrapper of a head that trains: its copy
        layer = next(iter(layer.modules_to_save.values()))
    if layer is None or type(layer) is not torch.nn.Linear or not logits_are_last(type(model)):
        return None
    head = LossHead(layer)
    layer.forward = head.forward
    return head


def logits_are_last(model_class: Any) -> bool:
    """Whether a model's `forward` takes the logits as its output layer gives them.

    Read from the source: `logits` is assigned once, from a call of a layer of the model.
    """
    try:
        source = textwrap.dedent(inspect.getsource(model_class.forward))
        nodes = list(ast.walk(ast.parse(source)))
    except (OSError, TypeError, SyntaxError):
        return False
    stored = [
        node
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == "logits"
    ]
    assigned = [n for n in nodes if isinstance(n, ast.Assign) and n.targets[0] in stored]
    if len(stored) != 1 or len(assigned) != 1:
        return False
    value = assigned[0].value
    called = value.func if isinstance(value, ast.Call) else None
    return (
        isinstance(called, ast.Attribute)
        and isinstance(called.value, ast.Name)
        and called.value.id == "self"
    )


class _ChunkedLoss(torch.autograd.Function):
    """Summed cross-entropy of `rows @ weight.T + bias`; gradients are made in the forward pass.

    With p = softmax(logits): d loss / d logits = p - onehot, from which both products follow while
    the chunk is there. Weight gradients of several chunks are added in fp32.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        """Sum of the losses; the gradients are made on the way and kept."""
        rows, weight, bias, tokens, factor = inputs
        wanted = ctx.needs_input_grad[:3]
        chunks = chunks_of(*weight.shape, trained=wanted[1])
        size = len(rows) if len(rows) <= chunks.one else chunks.rows
        made = _Gradients.empty((rows, weight, bias), wanted, exact=len(rows) > size)
        total = torch.zeros((), dtype=torch.float32, device=rows.device)
        for start in range(0, len(rows), max(1, size)):
            chunk, places = rows[start : start + size], tokens[start : start + size, None]
            scores = torch.nn.functional.linear(chunk, weight, bias).float()
            scores = torch.log_softmax(scores, dim=-1)
            total -= scores.gather(1, places).sum()
            if any(wanted):
                minus = scores.new_full((), -1.0).expand_as(places)
                scores.exp_().scatter_add_(1, places, minus).mul_(factor)  # d loss / d logits
                if made.bias is not None:
                    made.bias.add_(scores.sum(0))
                scores = scores.to(chunk.dtype)  # the float32 ones are gone before the products
                made.add(scores, chunk, weight, start)
        ctx.made, ctx.factor, ctx.dtype = made, factor, weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, scale: Any) -> Any:
        """Gradients of rows, weight and bias, times what follows the loss."""
        made, ctx.made = ctx.made, None
        ratio = scale / ctx.factor
        each = (made.rows, made.weight, made.bias)
        scaled = (None if g is None else g.mul_(ratio.to(g.dtype)).to(ctx.dtype) for g in each)
        return (*scaled, None, None)


@dataclass(slots=True)
class _Gradients:
    """Of rows, weight and bias; none where it is not wanted."""

    rows: Any
    weight: Any
    bias: Any
    sums: bool  # the weight's is there already: several chunks add to it

    @classmethod
    def empty(cls, inputs: tuple[Any, ...], wanted: tuple[bool, ...], *, exact: bool) -> _Gradients:
        """Zeros; those that several chunks add to are in fp32 where `exact`.

        That of a weight with one chunk is made by its product, beside no logits in fp32.
        """
        rows, weight, bias = (
            tensor if want else None for tensor, want in zip(inputs, wanted, strict=True)
        )
        kind = {"dtype": torch.float32} if exact else {}
        sums = exact or not len(inputs[0])
        return cls(
            None if rows is None else torch.zeros_like(rows),
            torch.zeros_like(weight, **kind) if weight is not None and sums else None,
            None if bias is None else torch.zeros_like(bias, **kind),
            sums or weight is None,
        )

    def add(self, slope: Any, chunk: Any, weight: Any, start: int) -> None:
        """What the slope of a chunk's logits gives to rows and weight."""
        if self.rows is not None:
            torch.mm(slope, weight, out=self.rows[start : start + len(chunk)])
        if not self.sums:
            self.weight = slope.t() @ chunk
        elif self.weight is None:
            return
        elif self.weight.dtype == slope.dtype:
            self.weight.addmm_(slope.t(), chunk)
        else:  # a part of the words at a time: beside the sum, no second tensor of its size
            parts = self.weight.chunk(PARTS), slope.chunk(PARTS, dim=1)
            for part, slopes in zip(*parts, strict=True):
                part.add_(slopes.t() @ chunk)
