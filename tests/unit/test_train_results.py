"""An output folder in which results would replace the inputs of a run, or what is not of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dsforge.errors import DsforgeError, SpecError
from dsforge.job import TrainJob
from dsforge.specs import DataSpec
from dsforge.train.checkpoints.note import NOTE
from dsforge.train.checkpoints.resume import chosen_beginning
from dsforge.train.run.outputs import check_inputs, check_removable


def job(folder: Path, **changes: str) -> tuple[TrainJob, Path]:
    """A job whose files lie in a folder, and its train.yaml."""
    names = {"model": "base", "tokenizer": "words", "deepspeed_config": "ds_config.json"}
    names |= {"train": "data.jsonl", "validation": "held.jsonl"} | changes
    for name in (*names.values(), "train.yaml"):
        path = folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("input")
    data = DataSpec(train=names.pop("train"), validation=names.pop("validation"))
    return TrainJob(**names, data=data, sequence_length=8), folder / "train.yaml"


@pytest.mark.parametrize("name", ["output", ".", "base/inner", "elsewhere/output"])
def test_inputs_beside_the_results_are_fine(name: str, tmp_path: Path) -> None:
    """The output may be the folder of the job, or lie in one of its inputs."""
    check_inputs(*job(tmp_path, model="base/config.json"), tmp_path / name)


CASES = {
    "model": {"model": "model"},
    "model of an earlier run": {"model": "model/model.safetensors"},
    "tokenizer": {"tokenizer": "adapter"},
    "data": {"train": "checkpoints/rows/data.jsonl"},
    "validation": {"validation": "metrics.jsonl"},
    "ds_config": {"deepspeed_config": "hang/ds_config.json"},
    "measurement": {"deepspeed_config": "measurement.json"},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
@pytest.mark.parametrize("output", [".", "../job", "through-a-link"])
def test_an_input_in_the_place_of_a_result_is_refused(
    changes: dict[str, str], output: str, tmp_path: Path
) -> None:
    """By whatever name the output is called; the message names the key and the place."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "through-a-link").symlink_to(".")
    with pytest.raises(SpecError, match="would overwrite inputs of the run") as raised:
        check_inputs(*job(tmp_path / "job", **changes), tmp_path / "job" / output)

    (problem,) = raised.value.problems
    assert problem.rule == "input-in-output"
    assert "/job/" in problem.message


def test_links_count_by_name_and_by_target(tmp_path: Path) -> None:
    """A result that is a link to an input, an input that is a link in the place of a result."""
    (tmp_path / "output" / "checkpoints").mkdir(parents=True)
    described, path = job(tmp_path, train="real.jsonl")
    (tmp_path / "output" / "model").symlink_to(tmp_path / "base")
    with pytest.raises(SpecError) as raised:
        check_inputs(described, path, tmp_path / "output")
    assert [p.place for p in raised.value.problems] == ["model"]

    (tmp_path / "output" / "model").unlink()
    (tmp_path / "output" / "checkpoints" / "rows").symlink_to(tmp_path / "real.jsonl")
    linked = job(tmp_path, train="output/checkpoints/rows")
    with pytest.raises(SpecError) as raised:
        check_inputs(*linked, tmp_path / "output")
    assert [p.place for p in raised.value.problems] == ["data.train"]


def test_train_yaml_in_a_checkpoint_folder_is_refused(tmp_path: Path) -> None:
    """It would go with the checkpoints."""
    (tmp_path / "checkpoints").mkdir()
    described, path = job(tmp_path / "checkpoints")

    with pytest.raises(SpecError) as raised:
        check_inputs(described, path, tmp_path)
    assert "train.yaml" in {problem.place for problem in raised.value.problems}


def test_names_that_are_no_paths_do_not_matter(tmp_path: Path) -> None:
    """A model of a hub, a user that does not exist, a byte that no path has."""
    described, path = job(tmp_path)
    for name in ("org/model", "~nobody-here/model", "a\0b"):
        check_inputs(described.model_copy(update={"model": name}), path, tmp_path)


def ran(output: Path) -> None:
    """What a run leaves."""
    step = output / "checkpoints" / "global_step2"
    step.mkdir(parents=True)
    (step / NOTE).write_text("{}")
    (output / "checkpoints" / "latest").write_text("global_step2")
    (output / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    (output / "measurement.json").write_text('{"world_size": 1}')
    (output / "model").mkdir()
    (output / "model" / "config.json").write_text("{}")


def results(output: Path) -> list[Path]:
    """All results in a folder."""
    return [path for path in output.iterdir() if path.name != "base"]


def test_the_results_of_a_run_may_go(tmp_path: Path) -> None:
    """All of them, also what a run left that died."""
    ran(tmp_path)
    (tmp_path / "checkpoints" / "spoilt_global_step1").mkdir()
    (tmp_path / "checkpoints" / ".saving").mkdir()
    check_removable(results(tmp_path), tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "lo')
    check_removable(results(tmp_path), tmp_path)


def replaced_by_link(output: Path) -> None:
    """The model folder is a link to another one."""
    (output / "model").rename(output / "base")
    (output / "model").symlink_to("base")


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a folder among the checkpoints": lambda o: (o / "checkpoints" / "universal").mkdir(),
    "a file among the checkpoints": lambda o: (o / "checkpoints" / "notes.txt").write_text("mine"),
    "other metrics": lambda o: (o / "metrics.jsonl").write_text('{"accuracy": 1}\n'),
    "metrics that are none": lambda o: (o / "metrics.jsonl").write_bytes(b"\xff\xfe"),
    "another measurement": lambda o: (o / "measurement.json").write_text("[1, 2]"),
    "a link": replaced_by_link,
    "a file for a folder": lambda o: (o / "adapter").write_text("mine"),
}


@pytest.mark.parametrize("spoil", FOREIGN.values(), ids=FOREIGN)
def test_what_no_run_wrote_stays(spoil: Callable[[Path], object], tmp_path: Path) -> None:
    """`--overwrite` is refused, with what is in the way, before anything is removed."""
    ran(tmp_path)
    spoil(tmp_path)
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(SpecError, match="nothing was removed") as raised:
        chosen_beginning("never", tmp_path, overwrite=True)
    assert len(raised.value.problems) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_without_a_run_beside_it_stays(tmp_path: Path) -> None:
    """`output: .` beside somebody's folder `model`, with `--overwrite`."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")

    with pytest.raises(SpecError) as raised:
        chosen_beginning("auto", tmp_path, overwrite=True)
    assert "no checkpoints or metrics of a run" in raised.value.problems[0].message
    assert (tmp_path / "model" / "config.json").exists()


def test_metrics_of_the_user_stay_without_overwrite_too(tmp_path: Path) -> None:
    """A run that found no checkpoint would begin anew and remove them."""
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"accuracy": 1}))

    with pytest.raises(DsforgeError, match="dsforge did not write"):
        chosen_beginning("auto", tmp_path, overwrite=False)
    assert os.listdir(tmp_path) == ["metrics.jsonl"]  # noqa: PTH208
