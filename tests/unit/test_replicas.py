"""Plain torch, without sharding: replicas under autocast, or a model that trains in bf16."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsforge
from dsforge.errors import DsforgeError
from dsforge.estimate.states import States, loads

QWEN = 7_721_324_544
LLAMA = 1_235_814_400


def priced(model: str, cards: int = 1, precision: str = "bf16", **fixed: Any) -> Any:
    """The choice of one way to run a model on torch alone."""
    return planned(model, cards, precision, **fixed).choice


def planned(model: str, cards: int = 1, precision: str = "bf16", **fixed: Any) -> Any:
    """The plan of one way to run a model on torch alone."""
    asked: dict[str, Any] = {
        "trainer": "ddp",
        "software": "others",
        "zero_stage": 0,
        "recompute": "full",
    }
    asked |= {"micro_batch_size": 1}
    cluster = {"gpu": fixed.pop("gpu", "a100-80gb"), "gpus_per_node": cards}
    work: dict[str, Any] = {"global_batch_size": 16, "sequence_length": 512}
    work |= {"precision": precision, "method": "full"}
    work |= {key: fixed.pop(key) for key in ("method", "optimizer") if key in fixed}
    return dsforge.estimate(model, cluster, work, strategy={**asked, **fixed}).plan


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["gpt2-small", "qwen2.5-0.5b", "bert-large", "llama-3.2-1b"]),
    st.sampled_from([1, 2, 8]),
)
def test_autocast_holds_more_than_bf16_does(model: str, cards: int) -> None:
    """4 + 2 bytes of weight, 4 of gradient and 8 of moments against 2, 2 and 4; all whole."""
    wide, narrow = priced(model, cards), priced(model, cards, bf16_states=True)
    weights = narrow.memory.terms.weights

    assert wide.memory.terms.weights == pytest.approx(3 * weights, rel=1e-6)
    assert wide.memory.terms.optimizer_state == pytest.approx(4 * weights, rel=1e-6)
    assert narrow.memory.terms.optimizer_state == pytest.approx(2 * weights, rel=1e-6)
    assert wide.memory.device_bytes.likely > narrow.memory.device_bytes.likely


def test_weights_in_bf16_may_compute_in_fp8() -> None:
    """Modules that multiply in fp8 hold them in bf16: as much memory, and a quicker step."""
    narrow, quick = (
        priced("llama-2-7b", 1, precision, gpu="h100-80gb", bf16_states=True, kernels="fused")
        for precision in ("bf16", "fp8")
    )

    assert quick.memory.terms == narrow.memory.terms
    assert quick.time.step_s.likely < narrow.time.step_s.likely


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["gpt2-small", "bert-large", "llama-3.2-1b"]), st.sampled_from([2, 8]))
def test_replicas_of_others_hold_gradients_twice(model: str, cards: int) -> None:
    """DDP copies them to buckets, which one card has none of."""
    one, many = kept(model, 1), kept(model, cards)

    assert many.gradients == 2 * one.gradients
    assert many == one._replace(gradients=many.gradients)


@pytest.mark.engine
def test_ddp_has_buckets_of_its_own_unless_asked() -> None:
    """The default of the installed torch."""
    torch = pytest.importorskip("torch")
    said = inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters

    assert said["gradient_as_bucket_view"].default is False


@pytest.mark.parametrize(("narrow", "each"), [(False, 16), (True, 8)])
def test_shards_of_fsdp_have_the_type_they_were_loaded_in(narrow: bool, each: int) -> None:
    """Weight, gradient and two moments in float32 or bf16."""
    states = {"bf16_states": True} if narrow else {}
    found = kept("llama-3.2-1b", 8, trainer="fsdp", zero_stage=3, **states)
    lasting = found.weights + found.gradients + found.optimizer

    assert lasting == pytest.approx(each * LLAMA / 8, rel=1e-3)


def test_float32_has_no_copies() -> None:
    """Autocast casts nothing where the compute type is that of the weights."""
    found = priced("bert-large", precision="fp32").memory.terms

    assert found.optimizer_state == pytest.approx(2 * found.weights, rel=1e-6)


def test_frozen_weights_stay_as_they_were_loaded() -> None:
    """Adapters alone are in float32: a frozen 8 B takes 2 bytes a weight, not 4 or 6."""
    found = priced("llama-3.1-8b", method="lora").memory.terms

    assert 8.03e9 * 2 < found.weights < 8.03e9 * 2 * 1.03


def test_roots_of_all_second_moments_exist_in_the_step() -> None:
    """AdamW of torch makes them in one call; ms-swift reports 74.26 GiB at length 2,048.

    2 bytes of weight, 2 of gradient, 4 of moments and 2 of roots.
    """
    found = priced("qwen1.5-7b", bf16_states=True)
    eight_bit = priced("qwen1.5-7b", bf16_states=True, optimizer="adamw_8bit")

    assert found.memory.allocated_bytes.likely == pytest.approx(10 * QWEN, rel=0.01)
    assert eight_bit.memory.allocated_bytes.likely < 8 * QWEN


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["gpt2-small", "qwen2.5-0.5b", "bert-large"]),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_cpu_ranks_have_the_states_of_cards_but_no_roots(
    model: str, ranks: int, narrow: bool
) -> None:
    """On cards all roots lie beside the gradients of the step; on a CPU those of one weight do."""
    states = {"bf16_states": True} if narrow else {}
    card, cpu = (kept(model, ranks, gpu=gpu, **states) for gpu in ("a100-80gb", "cpu"))

    assert cpu == card._replace(step_gradients=0.0)
    assert card.step_gradients == 0.5 * card.optimizer


def kept(model: str, ranks: int, **fixed: Any) -> States:
    """What a rank keeps, and makes in the step."""
    plan = planned(model, ranks, **fixed)
    (load,) = loads(plan.model, plan.cluster, plan.workload, plan.strategy)
    return load.kept


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_torch_makes_the_root_of_one_weight_at_a_time_on_a_cpu(kind: str) -> None:
    """The kernels that the installed AdamW calls in a step, as torch dispatches them."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    called: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            called.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    weights = [torch.nn.Parameter(torch.ones(64, dtype=getattr(torch, kind))) for _ in range(3)]
    optimizer = torch.optim.AdamW(weights)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    with Watch():
        optimizer.step()

    assert called.count("sqrt") == len(weights)
    assert not [name for name in called if name.startswith(("_foreach", "_fused"))]


@pytest.mark.parametrize("fixed", [{"zero_stage": 2}, {"zero_stage": 3}])
def test_replicas_are_not_sharded(fixed: dict[str, Any]) -> None:
    """The way out names the engines that shard."""
    with pytest.raises(DsforgeError) as refused:
        priced("gpt2-small", 8, **fixed)

    assert "trainer ddp replicates weights" in str(getattr(refused.value, "problems", ""))
