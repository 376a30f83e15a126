"""megatron-core's own config classes take the generated arguments and their sizes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pairs
import pytest
from megatron_settings import config_class, fields_of

from dsforge.plan import Plan
from dsforge.render import render

pytest.importorskip("torch")
pytest.importorskip("megatron.core")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def settings(plan: Plan) -> dict[str, Any] | None:
    """Fields of TransformerConfig for a plan's args.txt; none without Megatron."""
    text = next((a.text for a in render(plan) if a.path == "megatron/args.txt"), None)
    return None if text is None else fields_of(text.splitlines())


@pytest.mark.parametrize("name", pairs.PAIRS)
def test_the_config_class_takes_the_arguments(name: str, tmp_path: Path) -> None:
    """Every argument about the model is a field, and the class accepts the combination."""
    plan = pairs.plan_of(name, tmp_path)
    given = settings(plan)
    if given is None:
        assert any(v.name == "megatron" and v.problems for v in plan.variants)
        return
    kind = config_class(given)
    known = {field.name for field in fields(kind)}

    assert set(given) <= known
    config = kind(**given)
    assert config.num_layers == plan.model.layers
    assert config.kv_channels == plan.model.head_size or plan.model.mla is not None


def test_a_wrong_size_would_be_found(tmp_path: Path) -> None:
    """The class does check: heads that tensor parallelism does not divide."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    given = settings(pairs.plan_of("llama-2-7b-on-2x8-a100-100gbe", tmp_path))

    assert given is not None
    with pytest.raises(ValueError, match="tensor_model_parallel_size"):
        TransformerConfig(**(given | {"tensor_model_parallel_size": 3}))
