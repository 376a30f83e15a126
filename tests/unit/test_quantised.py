"""Frozen matrices in 4 bits: which, how large, and what a step pays for them."""

from __future__ import annotations

from typing import Any

import pytest
from formulas import next_power_of_two
from planning import GIB, cluster, lora_workload, qlora_workload, strategy, workload
from pydantic import ValidationError

from dsforge import catalog
from dsforge.engines import BY_NAME
from dsforge.estimate.activations import layer_token_bytes
from dsforge.estimate.layer_time import setting_of
from dsforge.estimate.memory import estimate_memory
from dsforge.estimate.params import lora_parameters, parameters
from dsforge.estimate.quantised import (
    DEQUANTISE_SHARE,
    NF4_BYTES,
    largest_matrix_elements,
    quantised_elements,
)
from dsforge.estimate.time import estimate_time
from dsforge.specs import LoraSpec, Workload

LLAMA = catalog.model("llama-2-7b")
ONE_CARD = cluster(1, 1, "rtx-4090", intra="pcie-4")


def test_an_element_takes_what_double_quantisation_leaves() -> None:
    """Dettmers et al. 2023, section 3: 0.127 bits of scales for each parameter."""
    bits = NF4_BYTES * 8

    assert bits == pytest.approx(4.127, abs=1e-3)


@pytest.mark.parametrize(
    ("model", "elements"),
    [
        ("llama-2-7b", 32 * (4 * 4096**2 + 3 * 4096 * 11008)),
        ("llama-3.1-8b", 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)),
        ("mixtral-8x7b", 32 * (2 * 4096**2 + 2 * 4096 * 1024)),
    ],
    ids=["dense", "grouped queries", "routed experts stay"],
)
def test_matrices_of_linear_layers_are_quantised(model: str, elements: int) -> None:
    """All of attention and MLP; embeddings, head, norms and stacked experts are not."""
    assert quantised_elements(catalog.model(model)) == elements


def test_llama_7b_fits_a_24_gb_card_with_qlora_and_not_with_lora() -> None:
    """The weights take 3.67 GiB instead of 12.6, and one matrix is dequantised at a time."""
    args = (LLAMA, ONE_CARD)
    choice = strategy(1, zero_stage=0)
    lora = estimate_memory(*args, lora_workload(), choice)
    qlora = estimate_memory(*args, qlora_workload(), choice)
    packed = quantised_elements(LLAMA)
    kept = parameters(LLAMA) - packed + lora_parameters(LLAMA, LoraSpec())
    at_work = largest_matrix_elements(LLAMA) * (2 + 4 / 64)

    assert qlora.terms.weights == round(packed * NF4_BYTES + 2 * kept)
    assert qlora.terms.buffers - lora.terms.buffers == pytest.approx(at_work, abs=1)
    assert qlora.device_bytes.likely < 24 * GIB < lora.device_bytes.likely


def test_a_checkpoint_holds_the_adapters_alone() -> None:
    """Weights in bf16, master weights and two moments of 40 M parameters."""
    found = estimate_memory(LLAMA, ONE_CARD, qlora_workload(), strategy(1, zero_stage=0))

    assert found.checkpoint_bytes == (2 + 4 + 8) * 39_976_960


def test_no_rank_reads_the_whole_model_into_ram() -> None:
    """Tensors are packed on the device as they are read: a file a rank, not 140 GB."""
    model, choice = catalog.model("llama-2-70b"), strategy(8, zero_stage=2)
    lora, qlora = (
        estimate_memory(model, cluster(), work, choice).host_bytes.load
        for work in (lora_workload(), qlora_workload())
    )

    assert lora > 1000 * GIB
    assert qlora < 64 * GIB


@pytest.mark.parametrize(("recompute", "passes"), [("none", 2), ("full", 3)])
def test_each_pass_reads_4_bits_and_writes_16(recompute: str, passes: int) -> None:
    """A step takes longer by what dequantisation moves, once in each pass of a micro step."""
    choice = strategy(1, zero_stage=0, recompute=recompute)
    lora, qlora = (
        estimate_time(LLAMA, ONE_CARD, work, choice).terms.compute_s
        for work in (lora_workload(), qlora_workload())
    )
    bandwidth = setting_of(ONE_CARD.gpu, qlora_workload(), choice).rates.bandwidth
    moved = quantised_elements(LLAMA) * (NF4_BYTES + 2) / DEQUANTISE_SHARE

    assert qlora - lora == pytest.approx(64 * passes * moved / bandwidth, rel=1e-6)


SEVENTY = catalog.model("llama-2-70b")


def adapted(sequence: int = 2048, **lora: Any) -> Workload:
    """Adapters on a base, with the published settings of the recipe."""
    return workload(sequence, 8, method="lora", lora=LoraSpec(**lora))


def test_65b_fits_on_one_48_gb_card_with_qlora() -> None:
    """Dettmers et al. 2023 (arXiv 2305.14314): a 65B model on one 48 GB GPU, which LoRA is not."""
    card, choice = cluster(1, 1, "rtx-a6000-48gb", intra="pcie-4"), strategy(1, recompute="full")
    needed = [
        estimate_memory(catalog.model("llama-65b"), card, adapted(512, **base), choice).device_bytes
        for base in ({"bits": 4}, {})
    ]

    assert needed[0].likely < card.gpu.memory_bytes < needed[1].low


@pytest.mark.parametrize("gpu", ["rtx-3090", "rtx-4090"])
def test_70b_fits_on_two_24_gb_cards_with_sharded_qlora(gpu: str) -> None:
    """AnswerDotAI/fsdp_qlora: sharded nf4, parameters in RAM, 2 samples of 2,048 tokens a card."""
    cards = cluster(1, 2, gpu, intra="pcie-4", host_memory_bytes=128 * GIB)
    whole = strategy(2, micro_batch_size=2, zero_stage=2, recompute="full", batch=8)
    shared = strategy(
        2, micro_batch_size=2, zero_stage=3, recompute="full", batch=8, offload_parameters="cpu"
    )
    work = adapted(bits=4)
    fits = estimate_memory(SEVENTY, cards, work, shared)

    assert fits.device_bytes.high < cards.gpu.memory_bytes
    assert fits.host_bytes.peak < 128 * GIB
    assert estimate_memory(SEVENTY, cards, work, whole).device_bytes.low > cards.gpu.memory_bytes


def test_zero_3_shards_packed_matrices_and_gathers_their_bytes() -> None:
    """Half a byte an element goes round, the scales stay; against LoRA a quarter of the traffic."""
    cards = cluster(1, 8, "a100-80gb")
    how = strategy(8, zero_stage=3, recompute="full")
    qlora, lora = (estimate_memory(SEVENTY, cards, w, how) for w in (adapted(bits=4), adapted()))
    sent = [estimate_time(SEVENTY, cards, w, how).sent_bytes for w in (adapted(bits=4), adapted())]
    packed = quantised_elements(SEVENTY)
    rest = parameters(SEVENTY) - packed + lora_parameters(SEVENTY, LoraSpec())

    assert qlora.terms.weights == pytest.approx(
        packed * (0.5 / 8 + NF4_BYTES - 0.5) + 2 * rest / 8, rel=1e-6
    )
    assert qlora.terms.weights < lora.terms.weights / 3
    assert sent[0] < 0.3 * sent[1]


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("double", [True, False])
def test_fsdp_keeps_the_scales_on_each_device_wherever_the_weights_are(
    ranks: int, double: bool
) -> None:
    """They are attributes of a weight: sharding and offload take the packed matrix alone."""
    cards, work = cluster(1, ranks, "a100-80gb"), adapted(bits=4, double_quant=double)
    how = strategy(ranks, zero_stage=3, recompute="full", execution=BY_NAME["fsdp"].execution)
    moved = how.model_copy(update={"offload_optimizer": "cpu", "offload_parameters": "cpu"})
    here, in_ram = (estimate_memory(SEVENTY, cards, work, each) for each in (how, moved))
    packed = quantised_elements(SEVENTY)
    scales = packed * (1 / 64 + 4 / (64 * 256) if double else 4 / 64)
    rest = parameters(SEVENTY) - packed
    shard = (0.5 * packed + 2 * rest + 4 * lora_parameters(SEVENTY, LoraSpec())) / ranks

    assert in_ram.terms.weights == pytest.approx(scales, rel=1e-6)
    assert here.terms.weights == pytest.approx(scales + shard, rel=1e-6)
    assert in_ram.terms.buffers > here.terms.buffers  # shards that come from RAM


@pytest.mark.parametrize("method", ["full", "lora"])
def test_shards_from_ram_are_shorter_on_more_ranks(method: str) -> None:
    """A unit comes as it is stored, beside its cast; frozen in 16 bits, trained in float32."""
    work = workload() if method == "full" else lora_workload()
    more = []
    for ranks in (2, 4, 8):
        how = strategy(ranks, zero_stage=3, execution=BY_NAME["fsdp"].execution)
        moved = how.model_copy(update={"offload_optimizer": "cpu", "offload_parameters": "cpu"})
        cards = cluster(1, ranks, "a100-80gb")
        found = [estimate_memory(LLAMA, cards, work, each).terms.buffers for each in (how, moved)]
        more.append(ranks * (found[1] - found[0]))
    layers = parameters(LLAMA) - 2 * 32_000 * 4096
    unit = 2 * 2 * layers / 32 * (3 if method == "full" else 1)

    assert more == [pytest.approx(more[0], rel=1e-6)] * 3
    assert more[0] == pytest.approx(unit, rel=0.05)


@pytest.mark.parametrize(
    ("lora", "bits"),
    [
        ({"bits": 4}, 4.127),
        ({"bits": 4, "double_quant": False}, 4.5),
        ({"base": "fp4", "double_quant": False}, 4.5),
        ({"bits": 8}, 8.0),
        ({"base": "gptq"}, 4 + 20 / 128),
        ({"base": "gptq", "bits": 8, "group_size": 32}, 8 + 24 / 32),
        ({"base": "awq", "group_size": 64}, 4 + 20 / 64),
    ],
    ids=str,
)
def test_an_element_takes_the_bits_of_its_format(lora: dict[str, Any], bits: float) -> None:
    """Packed bits, and for each group fp16 scales and packed zero points (GPTQ, AWQ)."""
    work = adapted(**lora)
    found = estimate_memory(LLAMA, ONE_CARD, work, strategy(1, zero_stage=0)).terms.weights
    kept = parameters(LLAMA) - quantised_elements(LLAMA) + lora_parameters(LLAMA, LoraSpec())

    assert 8 * (found - 2 * kept) / quantised_elements(LLAMA) == pytest.approx(bits, abs=1e-3)


def test_torch_kernels_of_gptq_keep_what_they_unpack() -> None:
    """Autograd saves the 16-bit matrix: of every layer, or of the one at work if it is repeated."""
    fused, unfused = adapted(base="gptq", kernel="triton"), adapted(base="gptq")
    whole, layer = 2 * quantised_elements(LLAMA), 2 * quantised_elements(LLAMA) / LLAMA.layers
    for recompute, kept in (("none", whole), ("full", layer)):
        how = strategy(1, zero_stage=0, recompute=recompute)
        more = [
            estimate_memory(LLAMA, ONE_CARD, w, how).terms.activations for w in (fused, unfused)
        ]

        assert more[1] - more[0] == pytest.approx(kept, abs=2)


def test_unpacking_costs_more_on_a_base_of_torch_kernels() -> None:
    """From the fastest to the slowest: fused GPTQ, nf4 by look-ups, GPTQ by torch's operations."""
    how = strategy(1, zero_stage=0, recompute="full")
    bases = [{}, {"base": "gptq", "kernel": "triton"}, {"bits": 4}, {"base": "gptq"}]
    seconds = [estimate_time(LLAMA, ONE_CARD, adapted(**b), how).terms.compute_s for b in bases]

    assert seconds == sorted(seconds)
    assert len(set(seconds)) == len(bases)


@pytest.mark.parametrize(
    ("lora", "text"),
    [
        ({"base": "nf4", "bits": 8}, r"`bits` \(=8\) must be 4 with `base` \(=nf4\)"),
        ({"bits": 3}, r"`bits` \(=3\) requires `base` gptq"),
        ({"bits": 4, "kernel": "triton"}, "`kernel` requires `base` gptq"),
        ({"base": "int8", "group_size": 64}, "`group_size` requires `base` gptq"),
        ({"bits": 16, "upcast": True}, "`upcast` requires `base` nf4"),
        ({"base": "awq", "double_quant": False}, "`double_quant` requires `base` nf4"),
        ({"bits": 8, "quant_storage": "bf16"}, "`quant_storage` requires `base` nf4"),
    ],
)
def test_contradictions_of_a_base_are_refused(lora: dict[str, Any], text: str) -> None:
    """Bits that a format does not have, and settings of another one."""
    with pytest.raises(ValidationError, match=text):
        LoraSpec(**lora)


def test_dropout_of_adapters_keeps_a_copy_of_every_input() -> None:
    """16 bits and a mask of a byte for each input of the seven matrices (peft `Linear.forward`)."""
    how = strategy(1, zero_stage=0)
    plain, dropped = (
        layer_token_bytes(LLAMA, adapted(dropout=share), how) for share in (0.0, 0.05)
    )

    assert dropped - plain == 3 * (6 * 4096 + 11008)


def test_upcast_modules_take_fp32_and_so_does_what_passes_between_layers() -> None:
    """Peft's `prepare_model_for_kbit_training`: two bytes more for each element left alone."""
    how = strategy(1, zero_stage=0, recompute="full")
    usual, upcast = (
        estimate_memory(LLAMA, ONE_CARD, adapted(bits=4, upcast=on), how).terms
        for on in (False, True)
    )
    left_alone = parameters(LLAMA) - quantised_elements(LLAMA)

    assert upcast.weights - usual.weights == pytest.approx(2 * left_alone, abs=1)
    assert upcast.activations > 1.2 * usual.activations


@pytest.mark.parametrize(
    ("optimizer", "on_device", "in_ram"),
    [
        ("adamw", 12, 0),
        ("adamw_8bit", 4 + 2 * (1 + 4 / 256), 0),
        ("paged_adamw_8bit", 4, 2 * (1 + 4 / 256)),
        ("paged_adamw_32bit", 4, 8),
    ],
)
def test_optimizers_of_bitsandbytes_store_their_moments(
    optimizer: str, on_device: float, in_ram: float
) -> None:
    """8 bits and a scale for each 256, on the device or in pages; fp32 weights are ZeRO's."""
    how, cards = strategy(8, zero_stage=2), cluster(1, 8)
    work, usual = workload(optimizer=optimizer), workload()
    found, before = (estimate_memory(LLAMA, cards, w, how) for w in (work, usual))
    trained = parameters(LLAMA)

    assert found.terms.optimizer_state == pytest.approx(on_device * trained / 8, rel=1e-3)
    assert found.host_bytes.step - before.host_bytes.step == pytest.approx(
        in_ram * trained, rel=1e-3
    )
    assert found.checkpoint_bytes == pytest.approx((2 + on_device + in_ram) * trained, rel=1e-3)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_fsdp1_pins_gradients_of_frozen_weights_and_rounds_each_block(ranks: int) -> None:
    """Twice the packed shards in RAM, in powers of two; FSDP2 pins the shards alone."""
    cards, work = cluster(1, ranks, "a100-80gb"), adapted(bits=4)
    moved = {"zero_stage": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu"}
    told = {"has": "others", "ours": "dsforge"}
    host = {}
    for name, software in told.items():
        run = BY_NAME["fsdp"].execution.model_copy(update={"software": software})
        how = strategy(ranks, recompute="full", execution=run, **moved)
        host[name] = estimate_memory(SEVENTY, cards, work, how).host_bytes.step
    packed, outer = 0.5 * quantised_elements(SEVENTY), 2 * 2 * 32_000 * 8192
    trained = 4 * lora_parameters(SEVENTY, LoraSpec())
    layer = next_power_of_two((packed + trained) / 80 / ranks)
    shards = ranks * (80 * layer + next_power_of_two(outer / ranks))

    assert host["has"] - host["ours"] == pytest.approx(shards - trained, rel=0.02)
    assert host["has"] > 2 * packed
