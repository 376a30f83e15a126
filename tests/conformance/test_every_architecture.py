"""Every architecture of transformers is counted to the last parameter, or refused in one line."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from architectures import NEEDED, base, built, causal_types, counted, drawn, modelled_types

from dsforge.errors import SpecError
from dsforge.estimate.params import parameters
from dsforge.huggingface import read_config
from dsforge.huggingface.architecture import ARCHITECTURES, SAME_AS, TEXT_TYPES, UNMODELLED
from dsforge.huggingface.towers import TOWERS

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.engine

SEED = int(os.environ.get("DSFORGE_SEED", "14"))
QUICK = 12  # architectures in the quick tests
DRAWS = 12  # random configs of each in the slow test
MODELLED = {*ARCHITECTURES, *SAME_AS, *TEXT_TYPES, *TOWERS}
KINDS = sorted({*causal_types(), *modelled_types()})
ACCEPTED = [kind for kind in KINDS if kind in MODELLED]


def wrong_counts(kind: str, draws: int) -> list[object]:
    """Configs of a type that are read to another size than transformers builds."""
    draw = random.Random(f"{SEED}-{kind}")  # noqa: S311 (a test)
    start = base(kind)
    first = built(start)
    if first is None:
        return []
    whole, _ = first
    wrong: list[object] = []
    for config in (start, *(drawn(whole, start, draw) for _ in range(draws))):
        made = built(config)
        for form in (config, made[0]) if made else ():
            ours = counted(form)
            if ours not in (None, made[1]):
                wrong.append((config, ours, made[1]))
    return wrong


def test_a_sample_of_architectures_is_exact_or_refused() -> None:
    """Another sample, and other configs, with every seed."""
    sample = random.Random(SEED).sample(KINDS, QUICK)  # noqa: S311 (a test)

    assert {kind: wrong for kind in sample if (wrong := wrong_counts(kind, 2))} == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_architecture_is_exact_or_refused(kind: str) -> None:
    """Its default config and random ones, short as on the hub and in full."""
    assert wrong_counts(kind, DRAWS if kind in ACCEPTED else 1) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k for k in ACCEPTED if k not in ("llama4", "emu3")])
def test_what_is_modelled_is_accepted(kind: str) -> None:
    """The config of each modelled type is read: a refusal of everything would be exact, too."""
    made = built(base(kind))

    assert made is not None
    assert counted(base(kind)) == made[1]
    assert counted(made[0]) == made[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", causal_types())
def test_under_an_unknown_name_it_is_nearly_right_or_refused(kind: str) -> None:
    """An unknown `model_type` is read only where it states what a Llama states."""
    made = built(base(kind))
    if made is None:
        pytest.skip("its default does not build")
    ours = counted(made[0] | {"model_type": "brandnew", "architectures": None})

    assert ours is None or abs(ours / made[1] - 1) < 0.02


def test_every_language_model_is_modelled_or_named_as_not() -> None:
    """No type of transformers is left to be read as Llama-like."""
    from transformers.models.auto import modeling_auto

    kinds = {
        kind
        for task in ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT")
        for kind in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")
    }

    assert sorted(kinds - MODELLED - set(UNMODELLED)) == []
    assert sorted(MODELLED & set(UNMODELLED)) == []
    assert set(NEEDED) <= MODELLED


@pytest.mark.parametrize("kind", ["rwkv", "bart", "albert", "mllama", "zamba2"])
def test_a_refusal_says_why_and_what_to_do(kind: str) -> None:
    """One problem, one line."""
    with pytest.raises(SpecError) as error:
        read_config({"model_type": kind, "hidden_size": 64}, "x")

    (problem,) = error.value.problems
    assert "is not modelled: it" in problem.message
    assert "--model" in problem.hint


def test_defaults_are_those_of_the_config_classes() -> None:
    """`python scripts/architectures.py` would write what is there."""
    script = Path(__file__).resolve().parents[2] / "scripts" / "architectures.py"
    done = subprocess.run(
        [sys.executable, script, "--check"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-300:]


@pytest.mark.parametrize("kind", TOWERS)
def test_a_model_with_a_tower_has_the_parameters_that_transformers_builds(kind: str) -> None:
    """To the last one, with the sizes of the config class, nested as transformers writes them."""
    import torch
    from transformers import AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind]()
    with torch.device("meta"):
        built = AutoModelForImageTextToText.from_config(config)
    model, reasons = read_config(json.loads(config.to_json_string(use_diff=False)), kind)

    assert parameters(model) == sum(weight.numel() for weight in built.parameters())
    assert "model-tower" in [reason.rule for reason in reasons]


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOWERS)
def test_random_towers_have_the_parameters_that_transformers_builds_or_are_refused(
    kind: str,
) -> None:
    """One to three keys of `vision_config` changed, beside a small language model."""
    import torch
    from transformers import AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    draw = random.Random(f"{SEED}-{kind}-tower")  # noqa: S311 (a test)
    whole = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    whole["text_config"] |= {"num_hidden_layers": 2, "layer_types": None}
    wrong: list[object] = []
    for _ in range(DRAWS):
        vision = drawn(whole["vision_config"], whole["vision_config"], draw)
        try:
            config = CONFIG_MAPPING[kind](**{**whole, "vision_config": vision})
            with torch.device("meta"):
                made = AutoModelForImageTextToText.from_config(config)
            model, _ = read_config({**whole, "vision_config": vision}, kind)
        except Exception:  # noqa: S112 (transformers cannot build it, or it is refused)
            continue
        if parameters(model) != sum(weight.numel() for weight in made.parameters()):
            wrong.append({k: v for k, v in vision.items() if v != whole["vision_config"].get(k)})

    assert wrong == []
