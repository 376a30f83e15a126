"""Targets: files of a plan for other programs, in `for/NAME/` of its run folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from target_cases import CASES, TargetCase, plan_of, written

import dsforge
from dsforge.constraints import check
from dsforge.errors import LayoutError, SpecError
from dsforge.programs import BY_NAME as PROGRAMS
from dsforge.programs import NAMES, is_own
from dsforge.targets import BY_NAME, TARGETS
from dsforge.training_setup import TrainingSetup

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = {"gpu": "a100-80gb", "nodes": 2, "gpus_per_node": 8, "inter_node": "ib-hdr"}


def test_a_target_has_templates_of_its_own() -> None:
    """Each target has a folder of templates, and each folder is that of a target."""
    folders = {folder.name for folder in (ROOT / "templates/for").iterdir()}

    assert folders == set(BY_NAME)
    assert len(BY_NAME) == len(TARGETS)


STARTED = [target.name for target in TARGETS if target.kind == "launcher"]


def test_every_program_has_a_target() -> None:
    """What the planner plans for is written, and under one name."""
    trainers = {target.name for target in TARGETS if target.kind == "trainer"}

    assert trainers == {name for name in PROGRAMS if not is_own(name)}
    assert set(PROGRAMS) == set(NAMES)


@pytest.mark.parametrize("name", STARTED)
def test_gen_writes_and_removes_the_files_of_a_target(name: str, tmp_path: Path) -> None:
    """`gen --for NAME` adds them; `gen` without it takes them away again."""
    chosen = {"zero_stage": 2, "back_end": "deepspeed"}
    out = tmp_path / "run"

    made = dsforge.gen("gpt2", CLUSTER, out=out, strategy=chosen, targets=(name,))
    there = sorted(path.name for path in (out / "for" / name).iterdir())
    again = dsforge.gen("gpt2", CLUSTER, out=out, strategy=chosen)

    assert there == sorted(a.path.rpartition("/")[2] for a in made.artifacts if "for/" in a.path)
    assert set(again.written.removed) == {f"for/{name}/{file}" for file in there}


@pytest.mark.parametrize("name", [name for name in PROGRAMS if not is_own(name)])
def test_a_trainer_fixes_the_plan_and_has_files_of_its_own(name: str, tmp_path: Path) -> None:
    """The plan is one that the program runs; dsforge's own scripts are not there."""
    made = dsforge.gen("llama-3.1-8b", CLUSTER, out=tmp_path / "run", targets=(name,))
    paths = {a.path for a in made.artifacts}

    assert made.plan.strategy.runs_as.program == name
    assert check(made.plan.model, made.plan.cluster, made.plan.workload, made.plan.strategy) == ()
    assert made.lost == {name: BY_NAME[name].unsaid.sentences}
    assert {path.split("/")[1] for path in paths if path.startswith("for/")} == {name}
    assert not any(path.startswith(("launch/", "deepspeed/", "train")) for path in paths)
    start = f"for/{name}/{PROGRAMS[name].start}"
    assert start in next(a.text for a in made.artifacts if a.path == "PLAN.md")
    assert start in paths
    text = next(a.text for a in made.artifacts if a.path == start)
    assert PROGRAMS[name].starts_all == ("n every host" not in text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_what_a_trainer_gets_is_read_by_python_json_yaml_and_bash(
    case: TargetCase, tmp_path: Path
) -> None:
    """Every file of a trainer is well-formed, and numbers are numbers."""
    folder = written(case, tmp_path)

    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        match path.suffix:
            case ".py":
                compile(text, path.name, "exec")
            case ".json":
                json.loads(text)
            case ".toml":
                tomllib.loads(text)
            case ".yaml" | ".yml":
                assert texts_like_numbers(yaml.safe_load(text)) == []
            case ".sh":
                subprocess.run(["bash", "-n", str(path)], check=True)  # noqa: S607 - that of PATH
                assert path.stat().st_mode & 0o100
            case _:
                assert path.name == "args.txt"


def texts_like_numbers(value: Any) -> list[str]:
    """Texts that YAML should have read as floats, such as `2e-05`."""
    if isinstance(value, dict):
        return [text for inner in value.values() for text in texts_like_numbers(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in texts_like_numbers(inner)]
    return [value] if isinstance(value, str) and re.fullmatch(r"-?[\d.]+e-?\d+", value) else []


@pytest.mark.parametrize(
    ("name", "fixed", "said"),
    [
        ("torchtune", {"pipeline_parallel_size": 2}, "no pipeline (2) parallelism"),
        ("torchtitan", {"zero_stage": 1}, "no sharding like ZeRO stage 1"),
        ("lightning", {"hpz_partition_size": 8, "zero_stage": 3}, "no hpZ partition size"),
        ("gpt-neox", {"context_parallel_size": 2}, "no context (2) parallelism"),
        ("trl", {"trainer": "torchtune"}, "does not run on torchtune"),
    ],
)
def test_what_a_trainer_cannot_do_is_said(name: str, fixed: dict[str, Any], said: str) -> None:
    """The error names the value and the nearest that the program has."""
    with pytest.raises(LayoutError) as refused:
        dsforge.plan("llama-3.1-8b", CLUSTER, strategy={"program": name, **fixed})

    found = {problem.message: problem.hint for problem in refused.value.problems}
    assert any(said in message and hint for message, hint in found.items())


def test_lost_names_what_another_program_cannot_express() -> None:
    """A setup of a 3D plan, asked of programs that only shard."""
    setup = TrainingSetup(
        engine="fsdp", tensor_parallel_size=2, pipeline_parallel_size=4, zero_stage=3
    )

    assert BY_NAME["torchtitan"].lost(setup) == ()
    assert any("tensor (2) and pipeline (4)" in text for text in BY_NAME["trl"].lost(setup))
    assert any("does not run on fsdp" in text for text in BY_NAME["torchtune"].lost(setup))


def test_a_program_is_priced_by_its_own_kernels() -> None:
    """Torchtune keeps states in 2 bytes, FSDP of the Trainer in 4: less memory on equal shards."""
    fixed = {"zero_stage": 3, "micro_batch_size": 1, "recompute": "full"}
    work = {"sequence_length": 4096, "global_batch_size": 64}

    def states(program: str, **more: Any) -> float:
        strategy = {"program": program, **fixed, **more}
        found = dsforge.estimate("llama-3.1-8b", CLUSTER, work, strategy=strategy)
        terms = found.plan.choice.memory.terms
        return terms.weights + terms.gradients + terms.optimizer_state

    parameters, ranks = 8.03e9, 16
    assert states("torchtune") == pytest.approx(8 * parameters / ranks, rel=0.02)
    assert states("transformers", trainer="fsdp") == pytest.approx(
        16 * parameters / ranks, rel=0.02
    )


def test_two_trainers_are_refused(tmp_path: Path) -> None:
    """A plan is for one of them."""
    with pytest.raises(SpecError) as refused:
        dsforge.gen("gpt2", CLUSTER, out=tmp_path / "run", targets=("trl", "axolotl"))

    assert "one trainer" in refused.value.problems[0].message


@pytest.mark.parametrize("launcher", [t.name for t in TARGETS if t.starts != "none"])
@pytest.mark.parametrize("planned", [False, True])
def test_a_launcher_beside_a_trainer_is_refused(
    launcher: str, planned: bool, tmp_path: Path
) -> None:
    """Launchers start dsforge's own scripts; the error says what does start the trainer."""
    out = tmp_path / "run"
    plan = plan_of(next(case for case in CASES if case.program == "torchtune"))
    inputs = (plan,) if planned else ("gpt2", CLUSTER)
    targets = (launcher,) if planned else ("torchtune", launcher)
    with pytest.raises(SpecError) as refused:
        dsforge.gen(*inputs, out=out, targets=targets)

    problem = refused.value.problems[0]
    assert problem.rule == "target-launcher"
    assert f"{launcher} starts" in problem.message
    assert "for/torchtune/" in problem.hint
    assert not out.exists()


def test_a_plan_for_another_program_is_refused(tmp_path: Path) -> None:
    """Files for a program need a plan that was made for it."""
    plan = dsforge.plan("gpt2", CLUSTER).best
    with pytest.raises(SpecError) as refused:
        dsforge.gen(plan, out=tmp_path / "run", targets=("trl",))

    assert "dsforge's own scripts" in refused.value.problems[0].message


def test_an_unknown_target_is_refused(tmp_path: Path) -> None:
    """The error names those that there are; nothing is written."""
    with pytest.raises(SpecError) as refused:
        dsforge.gen("gpt2", CLUSTER, out=tmp_path / "run", targets=("accelerrate",))

    assert "accelerate" in refused.value.problems[0].message
    assert not (tmp_path / "run").exists()


def test_the_page_of_programs_is_up_to_date() -> None:
    """`python scripts/programs.py` writes it anew."""
    command = [sys.executable, str(ROOT / "scripts/programs.py"), "--check"]
    done = subprocess.run(command, check=False)

    assert done.returncode == 0


def test_the_price_of_a_program_is_a_reason() -> None:
    """The plan says what dsforge's own engines would take."""
    plan = dsforge.plan("llama-3.1-8b", CLUSTER, strategy={"program": "torchtune"}).best
    free = dsforge.plan("llama-3.1-8b", CLUSTER).best

    said = {reason.rule: reason.message for reason in plan.choice.reasons}
    assert free.strategy.label() in said["program-price"]
