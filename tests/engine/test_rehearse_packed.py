"""Sharded QLoRA rehearsed: the real engine, peft and bitsandbytes on packed matrices."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from rehearsed import Cell

from dsforge import catalog
from dsforge.estimate.params import lora_parameters, parameters
from dsforge.estimate.quantised import NF4_BYTES, PACKED_4_BIT, quantised_elements
from dsforge.specs import LoraSpec

pytest.importorskip("deepspeed")
pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: no QLoRA")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

RANKS = 8
CELL = Cell(3, False, "bf16", 1, False, False, RANKS)
LORA = LoraSpec(rank=4, bits=4)
MODEL = catalog.model("llama-2-7b").model_copy(update={"layers": 4})


def packed(recompute: bool) -> dict[str, Any]:
    """The phases of a rehearsal of QLoRA under ZeRO-3."""
    from dsforge.huggingface import config_from_model
    from dsforge.rehearse.rehearsed_job import RehearsedJob
    from dsforge.rehearse.report import phase_accounts
    from dsforge.rehearse.run import rehearse

    job = RehearsedJob(config_from_model(MODEL), 16, recompute, LORA)
    found = rehearse(job, CELL.settings(), world_size=RANKS, rank=1)
    assert found.refused == ()
    return {name: a.model_dump() for name, a in phase_accounts(found.timeline).items()}


def test_a_rank_holds_its_part_of_packed_matrices_and_all_scales(
    apart: ProcessPoolExecutor,
) -> None:
    """Half a byte an element over the ranks; the rest is sharded in 16 bits."""
    elements, scales = quantised_elements(MODEL), NF4_BYTES - PACKED_4_BIT
    rest = parameters(MODEL) - elements + lora_parameters(MODEL, LORA)
    wanted = elements * (PACKED_4_BIT / RANKS + scales) + 2 * rest / RANKS
    held = apart.submit(packed, True).result()["step"]["by_owner"]["parameter"]

    assert held == pytest.approx(wanted, rel=0.02)  # norms stay whole


def test_gathered_matrices_are_released_only_where_layers_are_computed_again(
    apart: ProcessPoolExecutor,
) -> None:
    """Bitsandbytes keeps each of them in the graph of a forward that backward follows."""
    again, kept = (
        apart.submit(packed, recompute).result()["first_forward"]["resident_bytes"]
        for recompute in (True, False)
    )

    assert kept - again > 0.8 * PACKED_4_BIT * quantised_elements(MODEL)
