"""What messages quote, and the default values that files show, as a person would write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsforge
from dsforge.api.inputs import load_workload
from dsforge.errors import SpecError, quoted

NODE = {"gpu": "h100-80gb", "gpus_per_node": 8}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}


@given(st.text(max_size=200))
def test_a_quotation_is_short_and_closed(text: str) -> None:
    """However long a value is, its quotes come in pairs."""
    said = quoted(text)

    assert len(said) <= 60
    assert said[0] == said[-1]
    assert said[0] in "'\""


def test_a_long_list_of_programs_is_quoted_as_one() -> None:
    """`--for a,b,...` is cut inside of its quotes."""
    from dsforge.cli.programs import programs_of

    with pytest.raises(SpecError) as found:
        programs_of("axolotl,llama-factory,trl,transformers,lightning,torchtitan,torchtune")

    assert "...') needs one trainer" in found.value.problems[0].message


@pytest.mark.parametrize(("file", "name"), [("config.json", "mine"), ("qwen-big.json", "qwen-big")])
def test_a_config_under_its_own_name_gives_the_name(tmp_path: Path, file: str, name: str) -> None:
    """Several configs in a folder are several models; config.json is that of its folder."""
    path = tmp_path / "mine" / file
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG), encoding="utf-8")

    assert dsforge.estimate(str(path), NODE, {"tokens": "1b"}).plan.model.name == name


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("preference", [None, "dpo"])
@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
def test_default_rates_have_few_digits(method: str, preference: str | None, optimizer: str) -> None:
    """5e-06, not 4.9999999999999996e-06."""
    work = {"method": method, "optimizer": optimizer, "preference": preference}
    asked = {name: value for name, value in work.items() if value is not None}
    found = load_workload(asked, model="llama-3.1-8b", cluster=NODE)

    assert len(repr(found.learning_rate)) <= len("1.25e-06")


@pytest.mark.parametrize("program", ["lightning", "colossalai"])
def test_no_file_divides_by_a_warm_up_of_nothing(program: str, tmp_path: Path) -> None:
    """Without a token budget there are no steps of warm-up, and no line about them."""
    dsforge.gen("llama-3.1-8b", NODE, out=tmp_path, strategy={"program": program})
    text = (tmp_path / "for" / program / "train.py").read_text(encoding="utf-8")

    assert "/ 0" not in text
    assert "step < 0" not in text
