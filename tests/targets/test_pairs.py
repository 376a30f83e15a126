"""What is written for a program is read back as the same setup, and priced as the same plan."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from moves import DDP, GPU, MOVES, Move
from target_cases import CASES, CLUSTER, WORK, TargetCase, plan_of, written

import dsforge
from dsforge.api.inputs import Inputs, asked_of
from dsforge.cli.main import main
from dsforge.importing.read import ImportedSetup, read_files
from dsforge.importing.request import imported_request
from dsforge.planner import appraise
from dsforge.targets import BY_NAME
from dsforge.training_setup import TrainingSetup, setup_of

NAMES = sorted({case.program for case in CASES})
PRICED = (
    *("layout", "zero_stage", "micro_batch_size", "gradient_accumulation_steps"),
    *("offload_optimizer", "offload_parameters", "recompute", "virtual_stages"),
)


def ids(case: TargetCase) -> str:
    """The name of a case."""
    return case.id


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The import of what is written for a case; each case is written once."""

    @cache
    def read(case: TargetCase) -> ImportedSetup:
        run = tmp_path_factory.mktemp("run")
        own = sorted(path for path in written(case, run).iterdir() if path.is_file())
        return read_files([*own, run / "hostfile"])

    return read


def differences(found: TrainingSetup, wanted: TrainingSetup) -> dict[str, tuple[Any, Any]]:
    """Fields that differ, as read and as planned; a model is the same under its other names."""
    read, planned = found.model_dump(), wanted.model_dump()
    if found.model is not None:
        read["model"] = dsforge.load_model(found.model).name
    return {name: (read[name], planned[name]) for name in read if read[name] != planned[name]}


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_what_is_written_is_read_as_the_same_setup(case: TargetCase, folders: Any) -> None:
    """Every field that the files of the program have a place for, and no problem is found."""
    imported = folders(case)
    found = differences(imported.setup, setup_of(plan_of(case)))

    assert set(found) <= set(BY_NAME[case.program].unsaid.fields), found
    assert imported.problems == ()
    assert imported.open == ()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_called_unsaid_is_not_said(name: str, folders: Any) -> None:
    """A field without a place is never read as something else, and is missed by some plan."""
    cases = [case for case in CASES if case.program == name]
    nothing = TrainingSetup()
    missed = {
        field
        for case in cases
        for field in differences(folders(case).setup, setup_of(plan_of(case)))
    }
    read = {
        field
        for case in cases
        for field in BY_NAME[name].unsaid.fields
        if getattr(folders(case).setup, field) != getattr(nothing, field)
    }

    assert missed == set(BY_NAME[name].unsaid.fields)
    assert read == set()


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_what_is_read_is_priced_as_the_same_plan(case: TargetCase, folders: Any) -> None:
    """The request of the files fixes the layout, sharding, batch, offload and recomputation."""
    plan = plan_of(case)
    unsaid = BY_NAME[case.program].unsaid.fields
    work = {**WORK, "method": case.method} if "adapter" in unsaid else {"tokens": WORK["tokens"]}
    script = {"micro_batch_size": plan.strategy.micro_batch_size}
    known = script if "micro_batch_size" in unsaid else {}
    asked = asked_of(Inputs(plan.model, CLUSTER, work, known))

    made = appraise(imported_request(asked._replace(by_name=True), folders(case)))

    for name in PRICED:
        assert getattr(made.strategy, name) == getattr(plan.strategy, name), name
    assert made.workload.method == plan.workload.method


OWN: list[dict[str, Any]] = [
    {"back_end": "deepspeed", "zero_stage": 1, "method": "lora"},
    {"back_end": "deepspeed", "zero_stage": 0, "method": "qlora"},
    {"back_end": "deepspeed", "zero_stage": 2, "micro_batch_size": 1},
    {"back_end": "deepspeed", "zero_stage": 3, "offload_optimizer": "cpu", "recompute": "full"},
    {"back_end": "deepspeed", "zero_stage": 3, "hpz_partition_size": 8},
    {"back_end": "megatron", "tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    {"back_end": "megatron", "pipeline_parallel_size": 1, "recompute": "full"},
]


def started_by(run: Path, back_end: str) -> list[list[Path]]:
    """The files of each way to start a run folder of dsforge's own scripts."""
    scripts = sorted((run / "launch").iterdir())
    if back_end == "megatron":
        own = [run / "megatron/pretrain.sh", run / "megatron/args.txt"]
        return [own, *([path, *own] for path in scripts)]
    own = [run / name for name in ("train.yaml", "hostfile", "deepspeed/ds_config.json")]
    return [[path, *own] for path in scripts]


@pytest.mark.parametrize("fixed", OWN, ids=lambda fixed: "-".join(map(str, fixed.values())))
def test_every_script_of_a_run_folder_is_read_as_its_plan(
    fixed: dict[str, Any], tmp_path: Path
) -> None:
    """train.yaml with its ds_config, or Megatron's arguments, under each launcher."""
    strategy = {key: value for key, value in fixed.items() if key != "method"}
    work = {**WORK, "method": fixed.get("method", "full")}
    plan = dsforge.estimate("llama-3.1-8b", CLUSTER, work, strategy=strategy).plan
    dsforge.gen(plan, out=tmp_path / "run")
    ways = started_by(tmp_path / "run", fixed["back_end"])

    for files in ways:
        imported = read_files(files)
        found = differences(imported.setup, setup_of(plan))
        model = {"model"} if plan.strategy.back_end == "megatron" else set()
        assert set(found) == model, (files[0].name, found)
        assert imported.problems == ()
    assert len(ways) >= 2


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.id)
def test_a_run_moves_from_one_program_to_another(
    move: Move, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`import FILE --out DIR --for NAME`: losses are listed, and the folder reads as the file."""
    file, out = tmp_path / move.file, tmp_path / "run"
    file.write_text(move.text)
    before = read_files([file])
    with pytest.raises(SystemExit) as end:
        main(["import", str(file), *GPU, *move.flags, "--out", str(out), "--for", move.to])
    text = capsys.readouterr()
    assert not end.value.code, text.err

    for key in move.lost:
        assert key in text.out
        assert key in {left.key for left in before.lost}
    assert all(one in "".join(text.out.split()) for one in sentences(move.to))
    own = sorted(path for path in (out / "for" / move.to).iterdir() if path.is_file())
    after = read_files([*own, out / "hostfile"])
    unsaid = {*BY_NAME[move.to].unsaid.fields, "model", "engine", *move.changed}
    found = differences(after.setup, before.setup)
    assert set(found) <= unsaid, found
    assert after.problems == ()


def sentences(name: str) -> list[str]:
    """What a target leaves to others, as printed text without its blanks."""
    return ["".join(each.split()) for each in BY_NAME[name].unsaid.sentences]


def test_what_a_program_cannot_do_is_chosen_anew_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plain replicas have no counterpart in torchtune: the nearest plan that it has is written."""
    path, out = tmp_path / "ddp.sh", tmp_path / "run"
    path.write_text(DDP)
    with pytest.raises(SystemExit) as end:
        main(["import", str(path), *GPU, "--out", str(out), "--for", "torchtune"])
    said = " ".join(capsys.readouterr().out.split())
    plan = dsforge.load_plan(out)

    assert not end.value.code
    assert "not moved, and chosen here: torchtune has no sharding like ZeRO stage 0" in said
    assert plan.strategy.zero_stage == 3
    assert plan.strategy.micro_batch_size == 2
    assert [r.rule for r in plan.choice.reasons].count("moved-lost") == 1
    assert "not moved" in (out / "PLAN.md").read_text()


def test_what_no_plan_can_mend_stops_the_move(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Torchtune has no fp16: nothing is written, and the error names what it has."""
    path, out = tmp_path / "ddp.sh", tmp_path / "run"
    path.write_text(DDP.replace("--bf16", "--fp16"))
    with pytest.raises(SystemExit) as end:
        main(["import", str(path), *GPU, "--out", str(out), "--for", "torchtune"])

    assert end.value.code == 1
    assert "torchtune has no precision fp16" in capsys.readouterr().err
    assert not out.exists()
