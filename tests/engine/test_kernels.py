"""The kernels of a layer that estimates charge, counted from the modules that run.

A layer is run on the meta device, where an operation has shapes and no data; each operation that is
no view is one kernel, and moves its inputs and its outputs once. Attention stands as one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from dsforge.engines.deepspeed import ADAPTER_LAUNCHES, LAYER_LAUNCHES
from dsforge.estimate.layer_time import ADAPTER, EAGER_GATED, EAGER_ROTARY, MODULE_RMSNORM

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from transformers.models.llama import modeling_llama as llama  # noqa: E402

pytestmark = pytest.mark.engine

HIDDEN, WIDTH, TOKENS, HEADS = 1024, 4096, 512, 8
BYTES = 2  # of an element in 16 bits
NO_KERNELS = ("detach", "empty", "alias", "view", "_unsafe_view", "is_same_size")
PASSES = 3  # forward, and backward as two


class Counted(NamedTuple):
    """Kernels, and the elements of 16 bits that they move for each element of one token."""

    kernels: int
    elements: float


class Counter(TorchDispatchMode):  # type: ignore[misc]
    """Counts the kernels of what runs inside, and the bytes that they move."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.bytes = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run one operation; count it unless it only looks at data in another way."""
        found = operation(*args, **(kwargs or {}))
        name = operation._schema.name.split("::")[1]
        if not operation.is_view and not name.startswith(NO_KERNELS):
            every = [t for t in tree_leaves((args, kwargs, found)) if isinstance(t, torch.Tensor)]
            self.kernels += 1
            self.bytes += sum(
                min(t.numel() * t.element_size(), t.untyped_storage().nbytes()) for t in every
            )
        return found


def counted(run: Callable[[], Any], width: int) -> tuple[Counted, Any]:
    """What a call costs, and what it returns."""
    counter = Counter()
    with counter:
        found = run()
    return Counted(counter.kernels, counter.bytes / BYTES / TOKENS / width), found


def both_ways(run: Callable[[], Any], width: int) -> tuple[Counted, Counted]:
    """Forward and backward."""
    forward, found = counted(run, width)
    outputs = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
    slopes = [torch.ones_like(one) for one in outputs]
    backward, _ = counted(lambda: torch.autograd.backward(outputs, slopes), width)
    return forward, backward


def drawn(*shape: int) -> Any:
    """A tensor whose gradient is wanted."""
    return torch.randn(*shape, device="meta", dtype=torch.bfloat16, requires_grad=True)


class OneKernel(torch.autograd.Function):  # type: ignore[misc]
    """Attention as one kernel forward and three backward, as FlashAttention has them."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        """A copy of the values, heads behind tokens."""
        return value.transpose(1, 2).clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        """A copy for each input."""
        slope = slopes[0].transpose(1, 2)
        return slope.clone(), slope.clone(), slope.clone()


def one_kernel(
    module: Any, query: Any, key: Any, value: Any, mask: Any = None, **settings: Any
) -> tuple[Any, None]:
    """Attention as transformers calls it."""
    return OneKernel.apply(query, key, value), None


def layer(*, adapters: bool) -> Callable[[], Any]:
    """A decoder layer of transformers, under LoRA if so: a call of it."""
    transformers.AttentionInterface.register("one_kernel", one_kernel)
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=WIDTH,
        num_attention_heads=HEADS,
        attn_implementation="one_kernel",
    )
    with torch.device("meta"):
        module = llama.LlamaDecoderLayer(config, 0).to(torch.bfloat16)
    if adapters:
        names = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()
        lora = peft.LoraConfig(r=8, lora_dropout=0.0, target_modules=names)
        module = peft.inject_adapter_in_model(lora, module).to(torch.bfloat16)
        module = module.to("meta")
    size = HIDDEN // HEADS
    angles = drawn(1, TOKENS, size).detach()
    states = drawn(1, TOKENS, HIDDEN)
    return lambda: module(states, position_embeddings=(angles, angles))


@pytest.mark.parametrize("adapters", [False, True])
def test_launches_of_a_layer_are_those_of_the_real_one(adapters: bool) -> None:
    """Kernels of a pass; under LoRA with recomputation, as it is usually trained."""
    forward, backward = both_ways(layer(adapters=adapters), HIDDEN)
    repeated = forward.kernels if adapters else 0
    expected = LAYER_LAUNCHES + adapters * ADAPTER_LAUNCHES

    assert (forward.kernels + repeated + backward.kernels) / PASSES == pytest.approx(
        expected, abs=1
    )


def test_a_norm_moves_what_is_charged() -> None:
    """RMSNorm of transformers: float32, one operation after the other."""
    norm = llama.LlamaRMSNorm(HIDDEN).to("meta", torch.bfloat16)
    states = drawn(1, TOKENS, HIDDEN)
    ways = both_ways(lambda: norm(states), HIDDEN)

    assert [way.elements for way in ways] == pytest.approx(MODULE_RMSNORM, rel=0.01)


def test_activation_and_rotary_embedding_move_what_is_charged() -> None:
    """Backward is charged a little less than the count: short-lived values stay in the cache."""
    gate, up = drawn(1, TOKENS, WIDTH), drawn(1, TOKENS, WIDTH)
    size = HIDDEN // HEADS
    heads = [drawn(1, HEADS, TOKENS, size) for _ in range(2)]
    angles = drawn(1, TOKENS, size).detach()
    gated = both_ways(lambda: torch.nn.functional.silu(gate) * up, WIDTH)
    rotary = both_ways(lambda: llama.apply_rotary_pos_emb(*heads, angles, angles), 2 * HIDDEN)

    assert [way.elements for way in gated] == pytest.approx(EAGER_GATED, rel=0.15)
    assert [way.elements for way in rotary] == pytest.approx(EAGER_ROTARY, rel=0.2)


def test_an_adapter_moves_what_is_charged() -> None:
    """LoRA beside a frozen matrix: more than the matrix alone, for each input and output."""

    def moved(*, adapted: bool) -> tuple[Counted, Counted]:
        with torch.device("meta"):
            module = torch.nn.Sequential(torch.nn.Linear(HIDDEN, HIDDEN, bias=False))
        module = module.to(torch.bfloat16).requires_grad_(requires_grad=False)
        if adapted:
            lora = peft.LoraConfig(r=8, lora_dropout=0.0, target_modules=["0"])
            module = peft.inject_adapter_in_model(lora, module).to("meta", torch.bfloat16)
        states = drawn(1, TOKENS, HIDDEN)
        return both_ways(lambda: module(states), 2 * HIDDEN)

    pairs = zip(moved(adapted=True), moved(adapted=False), strict=True)

    assert [one.elements - other.elements for one, other in pairs] == pytest.approx(
        ADAPTER, rel=0.05
    )
