"""What the public functions take: every way to say a thing means the same, nonsense is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dsforge
from dsforge.errors import DsforgeError, SpecError

CLUSTER = {"gpu": "a100-80gb", "nodes": 2, "gpus_per_node": 8, "inter_node": "100gbe"}
YAML = "gpu: a100-80gb\nnodes: 2\ngpus_per_node: 8\ninter_node: 100gbe\n"
WORK = {"sequence_length": 2048, "tokens": "2b"}

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=5),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(
    "gpu nodes gpus_per_node hosts groups nvme slurm include tokens lora data method".split()
)
MAPPINGS = st.dictionaries(KEYS | st.text(max_size=9), VALUES, max_size=4)


def test_every_way_to_give_a_cluster(tmp_path: Path) -> None:
    """Mapping, YAML text, path, path as text and finished value are one cluster."""
    (tmp_path / "cluster.yaml").write_text(YAML)
    path = tmp_path / "cluster.yaml"
    known = dsforge.load_cluster(CLUSTER)

    found = [dsforge.load_cluster(given) for given in (YAML, path, str(path), known)]
    assert found == [known] * 4
    assert known.gpus == 16


def test_every_way_to_give_a_model(tmp_path: Path) -> None:
    """Name, config mapping, folder and finished value plan the same."""
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    models = (config, tmp_path, str(tmp_path / "config.json"), dsforge.load_model(config))

    labels = {dsforge.estimate(model, CLUSTER, WORK).document.label for model in models}
    assert len(labels) == 1


def test_finished_values_plan_as_what_they_were_read_from() -> None:
    """Model, cluster and workload as values give the plan of their names."""
    model, cluster = dsforge.load_model("llama-2-7b"), dsforge.load_cluster(CLUSTER)
    work = dsforge.load_workload(WORK, model=model, cluster=cluster)

    values = dsforge.plan(model, cluster, work).best
    names = dsforge.plan("llama-2-7b", CLUSTER, WORK).best
    assert values.strategy == names.strategy
    assert values.choice.time == names.choice.time


def test_a_spec_and_what_wins_over_it(tmp_path: Path) -> None:
    """A spec is a path, YAML or a mapping; other arguments win over it."""
    spec = {"model": "llama-2-7b", "cluster": CLUSTER, "strategy": {"zero_stage": 2}}
    text = json.dumps(spec, indent=1)
    (tmp_path / "spec.yaml").write_text(text)

    requests = [dsforge.load_request(spec=given) for given in (spec, text, tmp_path / "spec.yaml")]
    other = dsforge.load_request("gpt2", spec=spec, strategy={"zero_stage": 3})
    assert requests == requests[:1] * 3
    assert (other.model.layers, other.constraints.zero_stage) == (12, 3)


def test_a_request_plans_as_its_parts() -> None:
    """What `load_request` gives can take the place of all inputs, once."""
    request = dsforge.load_request("llama-2-7b", CLUSTER, WORK)

    assert dsforge.plan(request).best == dsforge.plan("llama-2-7b", CLUSTER, WORK).best
    with pytest.raises(SpecError, match="problem"):
        dsforge.plan(request, CLUSTER)


def test_a_plan_of_the_ranking_can_be_written(tmp_path: Path) -> None:
    """`gen` renders the plan that it is given, and it is read back equal."""
    best = dsforge.plan("llama-2-7b", CLUSTER, WORK).best
    made = dsforge.gen(best, out=tmp_path / "run")

    assert made.plan == best
    assert dsforge.load_plan(tmp_path / "run") == best
    with pytest.raises(SpecError):
        dsforge.gen(best, CLUSTER, out=tmp_path / "other")


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no-model": (lambda: dsforge.plan(None, CLUSTER), "model"),
    "number": (lambda: dsforge.load_model(7), "must be text"),  # type: ignore[arg-type]
    "unknown-model": (lambda: dsforge.load_model("lama-2-7b"), "llama-2-7b"),
    "unknown-card": (lambda: dsforge.load_cluster("a100-90gb"), "a100"),
    "unknown-key": (lambda: dsforge.load_cluster({"gpus": "a100-80gb"}), "did you mean `gpu`"),
    "wrong-type": (lambda: dsforge.load_cluster({**CLUSTER, "nodes": "2"}), "whole number"),
    "not-finite": (lambda: dsforge.load_cluster({**CLUSTER, "gpu_hour_price": math.nan}), "finite"),
    "object": (lambda: dsforge.load_cluster({**CLUSTER, "nodes": object()}), "must be a mapping"),
    "key": (lambda: dsforge.load_cluster({1: 2}), "must be text"),  # type: ignore[dict-item]
    "missing-file": (lambda: dsforge.load_cluster("none.yaml"), "none.yaml"),
    "bad-yaml": (lambda: dsforge.load_cluster("gpu: [a\n"), "not YAML"),
    "two-faults": (
        lambda: dsforge.plan("nowhere-9b", {**CLUSTER, "nodes": 0}, {"tokens": -1}),
        "3 problems",
    ),
    "strategy": (lambda: dsforge.plan("gpt2", CLUSTER, strategy={"zero_stage": 4}), "zero_stage"),
    "ds-config": (
        lambda: dsforge.estimate(
            "gpt2", CLUSTER, dsforge.load_request("gpt2", CLUSTER).workload, ds_config="x.json"
        ),
        "cannot change a Workload",
    ),
    "objective": (lambda: dsforge.plan("gpt2", CLUSTER, objective="best"), "fastest"),  # type: ignore[arg-type]
    "deadline": (lambda: dsforge.plan("gpt2", CLUSTER, deadline_days=math.nan), "above 0"),
    "prefer": (lambda: dsforge.plan("gpt2", CLUSTER, prefer=0.5), "at least 1"),
    "top": (lambda: dsforge.plan("gpt2", CLUSTER, top=0), "above 0"),
    "question": (lambda: dsforge.find("gpu", "gpt2", CLUSTER), "micro-batch"),  # type: ignore[arg-type]
    "find-fixed": (lambda: dsforge.find("gpus", "gpt2", CLUSTER), "cluster.nodes"),
    "figure": (lambda: dsforge.explain(dsforge.plan("gpt2", CLUSTER).best, "stepp"), "step"),
    "plan-file": (lambda: dsforge.load_plan("nowhere"), "nowhere"),
    "log": (lambda: dsforge.diagnose("nowhere.log"), "does not exist"),
    "two-logs": (lambda: dsforge.diagnose("a.log", text="b"), "one of"),
    "no-log": (dsforge.diagnose, "one of"),
    "rule": (lambda: dsforge.lint(".", ignore=["zero-stag"]), "did you mean"),
    "kind": (lambda: dsforge.lint(".", kind="x"), "ds_config"),  # type: ignore[arg-type]
    "table": (lambda: dsforge.validate("nowhere.csv"), "nowhere.csv"),
}


def said(error: DsforgeError) -> str:
    """Everything that an error tells."""
    problems = getattr(error, "problems", ())
    return "\n".join((error.message, error.hint, *map(str, problems)))


@pytest.mark.parametrize(("call", "word"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said(call: Callable[[], Any], word: str) -> None:
    """Each mistake is a DsforgeError that names the thing and the way out."""
    with pytest.raises(DsforgeError) as caught:
        call()

    assert word in said(caught.value)


def test_a_mapping_that_holds_itself_is_refused() -> None:
    """Nesting is bounded, so that a cycle ends."""
    loop: dict[str, Any] = {}
    loop["nvme"] = loop

    with pytest.raises(SpecError) as caught:
        dsforge.load_cluster(loop)
    assert "nested too deeply" in said(caught.value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(model=MAPPINGS | st.text(max_size=12), cluster=MAPPINGS, workload=MAPPINGS)
def test_any_mapping_is_answered(model: Any, cluster: Any, workload: Any) -> None:
    """Whatever is in a mapping, it is read or refused with a message."""
    for given_model in (model, "gpt2"):
        with suppress(DsforgeError):
            assert dsforge.load_request(given_model, cluster, workload).cluster.gpus >= 1


STRANGE: list[Any] = [
    "a\x00b",
    "\ud800",
    "x" * 5000,
    7,
    b"x",
    [],
    {"a": object()},
    math.nan,
    ["\x00"],
]
TAKES_ANYTHING: dict[str, Callable[[Any], object]] = {
    "load_model": dsforge.load_model,
    "load_cluster": dsforge.load_cluster,
    "hostfile": lambda value: dsforge.load_cluster("v100-32gb", hostfile=value),
    "load_workload": lambda value: dsforge.load_workload(value, model="gpt2", cluster="v100-32gb"),
    "spec": lambda value: dsforge.load_request(spec=value),
    "strategy": lambda value: dsforge.load_request("gpt2", "v100-32gb", strategy=value),
    "ds_config": lambda value: dsforge.estimate("gpt2", "v100-32gb", ds_config=value),
    "load_plan": dsforge.load_plan,
    "explain": dsforge.explain,
    "lint": dsforge.lint,
    "lint-model": lambda value: dsforge.lint((), model=value),
    "deepspeed": lambda value: dsforge.lint((), deepspeed=value),
    "diagnose": dsforge.diagnose,
    "diagnose-plan": lambda value: dsforge.diagnose(text="x", plan=value),
    "validate": dsforge.validate,
    "out": lambda value: dsforge.gen("gpt2", "v100-32gb", out=value),
    "templates": lambda value: dsforge.gen("gpt2", "v100-32gb", out="run", templates=value),
    "question": lambda value: dsforge.find(value, "gpt2", "v100-32gb"),
    "prefer": lambda value: dsforge.plan("gpt2", "v100-32gb", prefer=value),
    "objective": lambda value: dsforge.plan("gpt2", "v100-32gb", objective=value),
    "top": lambda value: dsforge.plan("gpt2", "v100-32gb", top=value),
    "rehearse": lambda value: dsforge.rehearse("gpt2", "v100-32gb", ds_config=value),
}


ANSWERED = {"prefer": 7, "top": 7, "lint": []}  # what is no mistake there


@pytest.mark.parametrize("name", TAKES_ANYTHING)
def test_what_no_type_allows_is_refused_as_other_mistakes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that passes nonsense gets a DsforgeError, never a traceback of ours."""
    monkeypatch.chdir(tmp_path)
    for value in STRANGE:
        if value != ANSWERED.get(name, "none"):
            with pytest.raises(DsforgeError):
                TAKES_ANYTHING[name](value)
