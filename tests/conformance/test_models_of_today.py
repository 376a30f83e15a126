"""Models that people fine-tune: their configs are counted as transformers builds them, or refused.

`models_of_today.jsonl` holds a config in each line with its source, and, for what is not modelled,
what the refusal says.
"""

from __future__ import annotations

import copy
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from dsforge.errors import SpecError
from dsforge.estimate.params import parameter_counts
from dsforge.huggingface import config_from_model, model_from_config, read_config, tiny
from dsforge.huggingface.layer_kinds import ORDERS

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.engine

LINES = Path(__file__).with_name("models_of_today.jsonl").read_text(encoding="utf-8").splitlines()
ROWS = {row["name"]: row for row in map(json.loads, LINES)}
COUNTED = sorted(name for name, row in ROWS.items() if "refused" not in row)
REFUSED = sorted(ROWS.keys() - set(COUNTED))
TOGETHER = ("AutoModelForCausalLM", "AutoModelForImageTextToText")


def built(config: dict[str, Any]) -> Any:
    """The model on the meta device: the language model alone where there is a class for it."""
    rest = copy.deepcopy(config)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        theirs = transformers.AutoConfig.for_model(rest.pop("model_type"), **rest)
        for name in TOGETHER:
            auto = getattr(transformers, name)
            if type(theirs) in auto._model_mapping:
                return auto.from_config(theirs)
    raise AssertionError(f"transformers has no class for {config['model_type']}")


def active_of(model: Any) -> int:
    """Parameters that one token passes: of the stacks of routed experts the chosen ones."""
    text = model.config.get_text_config()
    chosen = getattr(text, "num_experts_per_tok", None) or 1
    found = 0.0
    for name, weight in model.named_parameters():
        stacked = ".experts." in name
        found += weight.numel() * (chosen / weight.shape[0] if stacked else 1)
    return round(found)


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_are_those_that_transformers_builds(name: str) -> None:
    """All of them and the active ones, to the last; the config is written and read back."""
    model, _ = read_config(ROWS[name]["config"], name)
    counts, theirs = parameter_counts(model), built(ROWS[name]["config"])

    assert counts.total == sum(weight.numel() for weight in theirs.parameters())
    assert counts.active == active_of(theirs)
    if model.tower is None:
        again = model_from_config(config_from_model(model), name)
        assert parameter_counts(again).total == counts.total
        assert again.layer_mixers == model.layer_mixers


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_modelled_is_refused_by_name_with_a_way_out(name: str) -> None:
    """One error, no traceback, no wrong number."""
    with pytest.raises(SpecError) as error:
        read_config(ROWS[name]["config"], name)
    problems = error.value.problems

    assert ROWS[name]["refused"] in problems[0].message
    assert all(problem.hint or problem.place for problem in problems)


@pytest.mark.parametrize("kind", sorted(ORDERS))
def test_tiny_models_have_every_kind_of_layer(kind: str) -> None:
    """A shrunken hybrid is of the same kinds, and transformers builds what is counted."""
    config: dict[str, Any] = {"model_type": kind}
    if kind in ("lfm2", "lfm2_moe", "granitemoehybrid"):  # no layers, or of one kind, by default
        config["layer_types"] = ["conv" if "lfm2" in kind else "mamba", "full_attention"] * 16
    whole = read_config(config, kind)[0]
    small = tiny(whole)
    theirs = built(config_from_model(small))

    assert set(small.layer_mixers) == set(whole.layer_mixers)
    assert set(small.layer_mlps) == set(whole.layer_mlps)
    assert parameter_counts(small).total == sum(each.numel() for each in theirs.parameters())
