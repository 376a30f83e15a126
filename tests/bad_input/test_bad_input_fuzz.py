"""Bad input that nobody thought of: generated files, values and names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from good import GOOD, LLAMA
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

Refused = Callable[..., str]

FUZZ = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

lines = st.text(st.characters(codec="utf-8"), max_size=60)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), lines, st.lists(st.integers(), max_size=3)
)
keys = st.sampled_from(["nodes", "gpus_per_node", "hosts", "gpu", "interface", "nvme", "ssh_port"])


@FUZZ
@example("? ? ?")
@example("{" * 50)
@example("a: !!binary x")
@given(lines)
def test_any_text_as_a_cluster_file(refused: Refused, tmp_path: Path, text: str) -> None:
    """No text without a card is a cluster."""
    (tmp_path / "c.yaml").write_bytes(text.encode())

    assert "c.yaml" in refused("--model", "llama-2-7b", "--cluster", "c.yaml")


@FUZZ
@given(st.dictionaries(keys, scalars, min_size=1))
def test_any_value_in_a_cluster_file(
    refused: Refused, tmp_path: Path, values: dict[str, object]
) -> None:
    """Wrong values are refused whatever they are; an unknown key makes sure of it."""
    (tmp_path / "c.yaml").write_text(json.dumps({**values, "unknown": 1}))

    assert "c.yaml" in refused("--model", "llama-2-7b", "--cluster", "c.yaml")


@FUZZ
@given(lines.map(lambda text: text + "\n$ slots=1"))
def test_any_text_as_a_hostfile(refused: Refused, tmp_path: Path, text: str) -> None:
    """One bad line is enough, whatever stands around it."""
    (tmp_path / "hosts").write_bytes(text.encode())

    assert "hosts" in refused(*GOOD, "--hostfile", "hosts")


@FUZZ
@given(
    st.sampled_from(sorted(set(LLAMA) - {"model_type"})),
    scalars.filter(lambda v: type(v) is not int),
)
def test_any_value_in_a_model_config(
    refused: Refused, tmp_path: Path, key: str, value: object
) -> None:
    """No size of a model is anything but a whole number."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, key: value}))

    refused("--model", "./config.json", "--gpu", "a100-80gb", "--nodes", "0")


@FUZZ
@given(lines.filter(lambda text: "\0" not in text and not text.startswith("-")))
def test_any_text_as_a_card(refused: Refused, text: str) -> None:
    """Forgiving names stop somewhere; `--nodes 0` is always wrong."""
    assert "--nodes" in refused("--model", "llama-2-7b", "--gpu", text, "--nodes", "0")
