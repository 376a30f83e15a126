"""Our model table against transformers: its config classes build what we count and read."""

from __future__ import annotations

import os
from typing import Any

import pytest
from architectures import auto_class
from sampled import each

from dsforge import catalog
from dsforge.estimate.params import parameters
from dsforge.estimate.vision import tower_parameters
from dsforge.huggingface import config_from_model, model_from_config, tiny

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # noqa: E402

pytestmark = pytest.mark.engine

# transformers 5 ties the head of every T5; the released v1.1 checkpoints are untied.
UNTIED_T5 = {
    *("flan-t5-xl", "flan-t5-xxl", "mt5-base", "mt5-large", "mt5-xl", "mt5-xxl"),
}
UNUSABLE_DEFAULTS = {
    "deepseek_v2": "its class has no default for num_experts_per_tok",
    "dbrx": "transformers cannot build its default",
    "nemotron": "transformers cannot build its default",
    "glm4_moe": "hidden_size is no multiple of its heads",
}
ROWS = {
    row["name"]: row
    for row in catalog.rows("model")
    if row["model_type"] in CONFIG_MAPPING_NAMES and row["name"] not in UNTIED_T5
}
ONE_OF_EACH = sorted({row["model_type"]: name for name, row in ROWS.items()}.values())


def built(config: dict[str, Any]) -> tuple[Any, Any]:
    """The config object of transformers and its model on the meta device."""
    rest = {key: value for key, value in config.items() if key != "model_type"}
    theirs = transformers.AutoConfig.for_model(config["model_type"], **rest)
    auto = getattr(transformers, auto_class(config["model_type"]))
    with torch.device("meta"):
        return theirs, auto.from_config(theirs)


def unique_parameters(model: Any) -> int:
    """Parameters of a torch model, a tied tensor once."""
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", each(3, sorted(ROWS)))
def test_catalog_row_is_what_transformers_builds(name: str) -> None:
    """The config of a row builds a model of params_exact, and is read back to the same count.

    Beside a tower, which the config of a language model does not state, the rest of them.
    """
    theirs, model = built(config_from_model(catalog.model(name)))
    again = model_from_config(theirs.to_dict(), name)
    expected = ROWS[name]["params_exact"] - tower_parameters(catalog.model(name))

    assert unique_parameters(model) == expected
    assert parameters(again) == expected
    assert again.tied_embeddings == catalog.model(name).tied_embeddings


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_default_config_of_each_class_is_read_to_the_same_count(name: str) -> None:
    """A config that states nothing but its type has the defaults of its class."""
    model_type = ROWS[name]["model_type"]
    if model_type in UNUSABLE_DEFAULTS:
        pytest.skip(UNUSABLE_DEFAULTS[model_type])
    _, model = built({"model_type": model_type})

    assert parameters(model_from_config({"model_type": model_type}, name)) == unique_parameters(
        model
    )


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_tiny_model_keeps_its_architecture(name: str) -> None:
    """A shrunk model of each type builds, runs forward, and has the parameters we count."""
    small = tiny(catalog.model(name))
    theirs, _ = built(config_from_model(small))
    if small.kind == "decoder":
        model = transformers.AutoModelForCausalLM.from_config(theirs)
        logits = model(input_ids=torch.arange(16).reshape(2, 8)).logits

        assert logits.shape == (2, 8, small.vocab_size)
    else:
        _, model = built(config_from_model(small))

    assert unique_parameters(model) == parameters(small)
