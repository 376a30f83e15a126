"""The exact simulator against the engine itself.

What is resident after each phase to the byte, and the fullest phase of each phase within 2 %. The
whole matrix: `python benchmarks/engine_matrix.py`.
"""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor

import pytest
from planning import cluster
from rehearsed import BUCKET, SAMPLES, SMALL, STAGES, TOKENS, Cell, cells, played, proof
from sampled import each

from dsforge import catalog
from dsforge.estimate.buckets import ENGINE
from dsforge.exact.fullest import exact_memory
from dsforge.huggingface import tiny
from dsforge.layout import Layout
from dsforge.specs import Workload
from dsforge.strategy import EXECUTIONS, Strategy, ZeroStage

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

SAMPLED = 24
DEAR = 8  # ranks from which on gathering a tensor of ZeRO 3 takes long: a view for each rank
PEAK_ERROR = 0.02
# Beyond the matrix: models of other kinds, and recomputation.
OTHERS = (
    ("mistral-7b-v0.1", 1, False),
    ("qwen2.5-7b", 2, False),
    ("qwen2.5-0.5b", 3, True),
    ("llama-3-8b", 2, True),
)


def sample() -> list[Cell]:
    """The same cells every time; the dear ones are left to the whole matrix."""
    quick = [cell for cell in cells() if cell.stage < STAGES[-1] or cell.world <= DEAR]
    return random.Random(3).sample(quick, SAMPLED)  # noqa: S311 - it only has to be the same


@pytest.mark.parametrize("cell", each(3, sample(), lambda cell: cell.name))
def test_the_simulator_agrees_with_the_engine(cell: Cell, apart: ProcessPoolExecutor) -> None:
    """Weights, gradients, optimizer state, ZeRO's buffers on device and host; peaks."""
    found = apart.submit(proof, cell).result()

    assert {"init", "forward", "backward", "step"} <= set(found.phases)
    assert ("accumulation" in found.phases) == (cell.accumulation > 1)
    assert found.differences == {}
    assert set(found.peak_errors) == set(found.phases) - {"init"}
    assert all(abs(error) <= PEAK_ERROR for error in found.peak_errors.values())


@pytest.mark.parametrize(("name", "stage", "recompute"), OTHERS)
def test_what_the_command_shows_is_what_the_engine_takes(
    name: str, stage: ZeroStage, recompute: bool, apart: ProcessPoolExecutor
) -> None:
    """The fullest rank of `estimate --exact`, rehearsed: every phase's peak."""
    cell = Cell(stage, False, "bf16", 4, tied=True, lora=False, world=4)
    model = tiny(catalog.model(name)).model_copy(update={"vocab_size": 513})
    run = EXECUTIONS["deepspeed"].model_copy(update={"loss": "plain"})
    how = Strategy(
        layout=Layout(data_parallel_size=4),
        micro_batch_size=SAMPLES,
        gradient_accumulation_steps=4,
        zero_stage=stage,
        recompute="full" if recompute else "none",
        execution=run,
    )
    buckets = ENGINE.model_copy(
        update={"reduce_bucket_size": BUCKET, "persistence_threshold": SMALL}
    )
    work = Workload(sequence_length=TOKENS, global_batch_size=32, learning_rate=1e-4)
    found = exact_memory(model, cluster(), work, how, buckets=buckets)
    rank = found.rank
    accounts = apart.submit(played, cell.settings(), model, 4, recompute, rank=rank).result()[
        "phases"
    ]
    rotary = model.head_size * (2 if stage == STAGES[-1] else 4)

    for phase, memory in found.phases.items():
        measured = accounts[phase]["peak_bytes"]
        assert abs((memory.peak_bytes + rotary) / measured - 1) <= PEAK_ERROR
