"""Which launchers start what: every launcher beside each engine of `dsforge train`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import plans
import pytest
from folders import texts
from hypothesis import given
from hypothesis import strategies as st

import dsforge
from dsforge.constraints.torch import torch_rank_problems
from dsforge.errors import SpecError
from dsforge.execution import Execution
from dsforge.layout import Layout
from dsforge.plan import Plan
from dsforge.render.torch import torch_settings
from dsforge.strategy import Strategy
from dsforge.targets import TARGETS
from dsforge.targets.target import Target
from dsforge.train.engines.plain_torch.config import shared

LAUNCHERS = [target for target in TARGETS if target.kind == "launcher"]
ANY = [target for target in LAUNCHERS if target.starts == "any engine"]
OWN = [target for target in LAUNCHERS if target.starts == "deepspeed"]
ENGINES: dict[str, dict[str, Any]] = {
    "deepspeed": {"back_end": "deepspeed"},
    "torch": {"program": "torch"},
}
CLUSTERS = {
    "node": {"gpu": "a100-80gb", "gpus_per_node": 8},
    "nodes": {"gpu": "a100-80gb", "nodes": 2, "gpus_per_node": 8, "inter_node": "ib-hdr"},
}
# What a file of a launcher can name of the run folder.
NAMED = re.compile(r"\b(?:(?:launch|for|deepspeed)/[\w./-]*\w|ds_config\.json|train\.yaml)")


def ids(target: Target) -> str:
    """The name of a launcher."""
    return target.name


def files(target: Target, engine: str, cluster: str, out: Path) -> dict[str, str]:
    """All files of a run folder for an engine and a launcher."""
    made = dsforge.gen(
        "gpt2", CLUSTERS[cluster], out=out, strategy=ENGINES[engine], targets=(target.name,)
    )
    return {artifact.path: artifact.text for artifact in made.artifacts}


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("target", ANY, ids=ids)
def test_a_launcher_of_any_engine_starts_it(
    target: Target, engine: str, cluster: str, tmp_path: Path
) -> None:
    """Its files are there, and each file of the run folder that they name is, too."""
    found = files(target, engine, cluster, tmp_path / "run")
    own = {path: text for path, text in found.items() if path.startswith(f"for/{target.name}/")}
    named = {name for text in own.values() for name in NAMED.findall(text)}

    assert own
    assert named <= set(found)
    assert any("train.yaml" in text or "launch/torchrun.sh" in text for text in own.values())
    assert ("deepspeed/ds_config.json" in found) == (engine == "deepspeed")


@pytest.mark.parametrize("target", ANY, ids=ids)
def test_no_file_for_plain_torch_calls_deepspeed(target: Target, tmp_path: Path) -> None:
    """No command and no setting of DeepSpeed is in what starts a plain torch job."""
    found = files(target, "torch", "nodes", tmp_path / "run")
    for path, text in found.items():
        if path.startswith(("for/", "launch/")):
            code = re.sub(r"(?m)(^|\s)#.*$", "", text).replace(".deepspeed_env", "")
            assert "deepspeed" not in code.lower(), path


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("target", OWN, ids=ids)
def test_launchers_of_deepspeed_are_refused_for_plain_torch(
    target: Target, planned: bool, tmp_path: Path
) -> None:
    """The error names what it is that does not start, and every launcher that does."""
    out = tmp_path / "run"
    made = dsforge.estimate("gpt2", CLUSTERS["nodes"], strategy=ENGINES["torch"]).plan
    inputs = (made,) if planned else ("gpt2", CLUSTERS["nodes"])
    targets = (target.name,) if planned else ("torch", target.name)
    with pytest.raises(SpecError) as refused:
        dsforge.gen(*inputs, out=out, targets=targets)
    (problem,) = refused.value.problems

    assert problem.rule == "target-launcher"
    assert f"{target.name} starts ranks through DeepSpeed's launcher" in problem.message
    assert problem.hint is not None
    assert all(other.name in problem.hint for other in ANY)
    assert "launch/torchrun.sh" in problem.hint
    assert not out.exists()


@pytest.mark.parametrize("target", OWN, ids=ids)
def test_launchers_of_deepspeed_start_it(target: Target, tmp_path: Path) -> None:
    """Their files are there beside a ds_config."""
    found = files(target, "deepspeed", "nodes", tmp_path / "run")

    assert any(path.startswith(f"for/{target.name}/") for path in found)
    assert "deepspeed/ds_config.json" in found


@pytest.mark.parametrize("target", [*ANY, *OWN], ids=ids)
def test_no_launcher_starts_megatron(target: Target, tmp_path: Path) -> None:
    """Fixed or planned, Megatron-LM is refused; what is left open becomes a run of ours."""
    out, work = tmp_path / "run", {"sequence_length": 1024, "global_batch_size": 16}
    fixed = {"back_end": "megatron"}
    made = dsforge.estimate("gpt2", CLUSTERS["nodes"], work, strategy=fixed).plan
    for inputs, told in (((made,), None), (("gpt2", CLUSTERS["nodes"], work), fixed)):
        with pytest.raises(SpecError) as refused:
            dsforge.gen(*inputs, out=out, strategy=told, targets=(target.name,))
        assert "cannot start Megatron-LM" in refused.value.problems[0].message
        assert "megatron/pretrain.sh" in str(refused.value.problems[0].hint)
    assert not out.exists()


class Drawn(NamedTuple):
    """Sizes of a plan of plain torch."""

    nodes: int
    each: int  # ranks of a node
    tensor: int
    stages: int
    group: int  # ranks that share the weights; 1: all
    steps: int


def torch_plan(drawn: Drawn) -> Plan | None:
    """A plan of plain torch; none where the ranks make no such groups."""
    nodes, each, tensor, stages, group, steps = drawn
    on = plans.cluster(nodes, each)
    if on.gpus % (tensor * stages):
        return None
    replicas = on.gpus // (tensor * stages)
    if group > 1 and (replicas % group or group == replicas):
        return None
    execution = Execution(program="torch", trainer="fsdp", shard_group=group if group > 1 else None)
    choice = Strategy(
        layout=Layout(
            data_parallel_size=replicas,
            tensor_parallel_size=tensor,
            pipeline_parallel_size=stages,
        ),
        micro_batch_size=2,
        gradient_accumulation_steps=steps,
        zero_stage=3,
        execution=execution,
    )
    return plans.plan(on=on, choice=choice).model_copy(update={"variants": ()})


@given(
    drawn=st.builds(
        Drawn,
        nodes=st.integers(1, 6),
        each=st.sampled_from((1, 2, 4, 8)),
        tensor=st.sampled_from((1, 2, 4)),
        stages=st.sampled_from((1, 2, 3)),
        group=st.sampled_from((1, 2, 4, 8)),
        steps=st.integers(1, 6),
    )
)
def test_elastic_ranges_are_those_that_plain_torch_takes(drawn: Drawn) -> None:
    """`dsforge train` takes every number of nodes of the range, and not the one below it."""
    plan = torch_plan(drawn)
    if plan is None:
        return
    script = texts("torchrun-elastic", plan)["launch.sh"]
    first, last = map(int, re.findall(r"--nnodes (\d+):(\d+) ", script)[0])
    settings = torch_settings(plan.workload, plan.strategy)
    batch = plan.strategy.global_batch_size

    size = drawn.tensor * drawn.stages

    def taken(count: int) -> bool:
        ranks = count * drawn.each
        if list(torch_rank_problems(settings, ranks, drawn.each)):
            return False
        try:
            share = shared(settings, batch, ranks // size)
        except SpecError:
            return False
        return share.micro * share.steps * (ranks // size) == batch

    assert last == drawn.nodes
    assert all(taken(count) for count in range(first, last + 1))
    assert first == 1 or not taken(first - 1)
