"""Engines: each is one row here; what holds for all of them; and no branch on a name elsewhere."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import cluster, workload
from pydantic import ValidationError

from dsforge import catalog
from dsforge.engines import BY_NAME, ENGINES, Engine, Held, Sharding
from dsforge.estimate.buckets import ENGINE as DEFAULT_BUCKETS
from dsforge.estimate.memory import estimate_memory
from dsforge.estimate.time import estimate_time
from dsforge.execution import Execution
from dsforge.layout import Layout
from dsforge.strategy import Strategy
from dsforge.validate import parse_table
from dsforge.zero_stages import ZERO_STAGES

ROOT = Path(__file__).resolve().parents[2]
MODEL = catalog.model("llama-3.2-1b")


class Expected(NamedTuple):
    """What an engine is recognised by, and who shards under it."""

    framework: str  # as a published table names it
    sharding: str
    label: str
    states: str


EXPECTED = {
    "deepspeed": Expected("deepspeed", "zero-3", "DeepSpeed", "zero"),
    "megatron": Expected("megatron-lm", "zero-1", "Megatron-LM", "whole_gradients"),
    "nanotron": Expected("nanotron", "zero-1", "nanotron", "whole_gradients"),
    "megatron-fsdp": Expected("megatron-bridge", "fsdp", "Megatron-FSDP", "fp32_shards"),
    "fsdp": Expected("torchtitan", "fsdp2", "PyTorch FSDP", "fp32_shards"),
    "ddp": Expected("pytorch", "ddp", "PyTorch DDP", "fp32_replicas"),
    "torchtune": Expected("torchtune", "", "torchtune", "whole_gradients"),
}


def test_every_engine_has_its_row() -> None:
    """A new engine is one module, one entry in ENGINES, one row above."""
    assert list(BY_NAME) == [engine.name for engine in ENGINES]
    assert set(EXPECTED) == set(BY_NAME)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_engine_is_what_its_row_says(name: str) -> None:
    """Recognised by its framework alone, with its label, its states and its own execution."""
    engine, row = BY_NAME[name], EXPECTED[name]
    found = [one.name for one in ENGINES if one.runs_row(row.framework, row.sharding)]

    assert found == [name]
    assert (engine.label, engine.states) == (row.label, row.states)
    assert engine.execution.trainer == name


def test_every_published_run_has_one_engine() -> None:
    """The order of ENGINES decides nothing: no two engines claim the same run."""
    text = (ROOT / "benchmarks/published/training.csv").read_text(encoding="utf-8")
    named = {
        (row.framework.lower(), row.zero_stage_or_sharding.lower())
        for row in parse_table(text, "training.csv")
    }
    claimed = {pair: [e.name for e in ENGINES if e.runs_row(*pair)] for pair in named}

    assert {pair: names for pair, names in claimed.items() if len(names) > 1} == {}


def test_an_unknown_engine_is_refused_with_those_there_are() -> None:
    """A strategy names an engine that is in ENGINES."""
    layout = Layout(data_parallel_size=8)
    execution = Execution(trainer="colossal")
    values = {"layout": layout, "micro_batch_size": 1, "gradient_accumulation_steps": 1}

    with pytest.raises(ValidationError, match=r"`trainer` \(=colossal\) must be one of deepspeed"):
        Strategy.model_validate({**values, "execution": execution})


@given(
    engine=st.sampled_from(ENGINES),
    layers=st.integers(1, 140),
    pp=st.integers(1, 16),
    virtual=st.integers(1, 4),
)
def test_stages_hold_every_layer_once(engine: Engine, layers: int, pp: int, virtual: int) -> None:
    """Whatever the engine weighs: each chunk of each stage, no layer lost or doubled."""
    model = MODEL.model_copy(update={"layers": layers})
    chunks = engine.stage_layers(model, pp, virtual)

    assert len(chunks) == pp * virtual
    assert sum(chunks) == layers
    assert min(chunks) >= 0


@given(
    engine=st.sampled_from(ENGINES),
    dp=st.sampled_from((1, 2, 8, 64)),
    tp=st.sampled_from((1, 2, 8)),
    stage=st.sampled_from(ZERO_STAGES),
    elements=st.integers(10**6, 10**10),
)
def test_buffers_grow_with_what_is_held(
    engine: Engine, dp: int, tp: int, stage: int, elements: int
) -> None:
    """Never negative, and no smaller for more parameters."""
    layout = Layout(data_parallel_size=dp, tensor_parallel_size=tp)
    sharding = Sharding(layout, stage)  # type: ignore[arg-type]
    less, more = (
        engine.buffer_elements(MODEL, Held(size, size, MODEL.layers), sharding, DEFAULT_BUCKETS)
        for size in (elements, 2 * elements)
    )

    assert 0 <= less <= more


@given(
    engine=st.sampled_from(ENGINES),
    sizes=st.sampled_from(((8, 1, 1), (4, 2, 1), (4, 1, 2), (1, 8, 1), (2, 2, 2))),
    stage=st.sampled_from(ZERO_STAGES),
    recompute=st.sampled_from(("none", "selective", "full")),
)
def test_every_engine_can_be_priced(
    engine: Engine, sizes: tuple[int, int, int], stage: int, recompute: str
) -> None:
    """All layouts, stages and recomputations: finite, positive, more memory for more tokens."""
    dp, tp, pp = sizes
    layout = Layout(data_parallel_size=dp, tensor_parallel_size=tp, pipeline_parallel_size=pp)
    strategy = Strategy.model_validate(
        {
            "back_end": engine.back_end,
            "layout": layout,
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 64 // dp,
            "zero_stage": stage,
            "recompute": recompute,
            "execution": engine.execution,
        }
    )
    short, long = (
        estimate_memory(MODEL, cluster(), workload(tokens), strategy) for tokens in (512, 2048)
    )
    step_s = estimate_time(MODEL, cluster(), workload(), strategy).step_s.likely

    assert 0 < short.allocated_bytes.likely <= long.allocated_bytes.likely < math.inf
    assert 0 < step_s < math.inf


# Where nothing may depend on an engine's name: numbers and plans come from facts of `engines/`.
# Rooms that write or explain files of one engine, and constraints that cite its source, may.
NAMELESS = ("estimate", "exact", "strategy.py", "execution.py", "validate", "planner", "reading")
WORDING = {  # reasons about two named engines, files that `gen` writes for each, names of groups
    "planner/advice.py",
    "planner/back_ends.py",
    "planner/variants.py",
    "validate/figures.py",
}


def sources(parts: tuple[str, ...]) -> list[Path]:
    """The modules of these rooms."""
    package = ROOT / "dsforge"
    return sorted(
        path
        for part in parts
        for path in ([package / part] if part.endswith(".py") else (package / part).rglob("*.py"))
        if path.relative_to(package).as_posix() not in WORDING
    )


def branches(text: str) -> Iterator[str]:
    """Comparisons, memberships, cases, dictionaries and look-ups that name an engine."""
    for node in ast.walk(ast.parse(text)):
        asked: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            asked = [node.value]
        elif isinstance(node, ast.Dict):
            asked = [*node.keys]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) != "Literal":
            asked = [node.slice]
        for one in filter(None, asked):
            named = (n.value for n in ast.walk(one) if isinstance(n, ast.Constant))
            yield from (f"line {one.lineno}: {name}" for name in named if name in BY_NAME)


@pytest.mark.parametrize(
    "text",
    [
        'x = 1 if run.trainer == "megatron" else 2',
        'x = run.trainer in ("fsdp", "torchtune")',
        'x = {"nanotron": 1}',
        'x = SIZES["deepspeed"]',
        'match name:\n    case "fsdp":\n        pass',
    ],
)
def test_a_branch_on_a_name_is_found(text: str) -> None:
    """Each form in which code has asked for a name."""
    assert list(branches(text))


@pytest.mark.parametrize(
    "path", sources(NAMELESS), ids=lambda path: f"{path.parent.name}.{path.stem}"
)
def test_no_number_depends_on_an_engines_name(path: Path) -> None:
    """Estimates ask for facts; which files to write is chosen by name, in `render/`."""
    assert list(branches(path.read_text(encoding="utf-8"))) == []
