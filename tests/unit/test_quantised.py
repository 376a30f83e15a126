"""Frozen matrices in 4 bits: which, how large, and what a step pays for them."""

from __future__ import annotations

import pytest
from planning import GIB, cluster, lora_workload, qlora_workload, strategy

from dsforge import catalog
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
from dsforge.specs import LoraSpec

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
