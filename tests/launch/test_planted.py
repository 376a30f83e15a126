"""Checkpoints that somebody changed, vouched for by their note: a resume refuses, loads nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import ranks
from hostile import before, beside, call, glob, text, torch_file
from odd_archives import odd_archives, records_of
from tiny_job import ds_config, write_job

from dsforge.train.checkpoints.note import NOTE, noted_file

pytestmark = [pytest.mark.launch, pytest.mark.engine]
MODEL = "mp_rank_00_model_states.pt"
Make = Callable[[Path, Path], Path]
OPTIMIZER = "zero_pp_rank_0_mp_rank_00_optim_states.pt"


@pytest.fixture(scope="module")
def saved(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps under ZeRO-1 with its only checkpoint."""
    config = ds_config(1, gradient_accumulation_steps=4)
    folder = write_job(tmp_path_factory.mktemp("saved"), tiny_llama, config, steps=2).parent
    ranks.train(folder, 1, "--no-export")
    return folder


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """A copy of the run that may be changed."""
    return shutil.copytree(saved, tmp_path / "run")


def checkpoint(run: Path) -> Path:
    """The folder of its checkpoint."""
    return run / "output/checkpoints/global_step2"


def vouched(run: Path, *left_out: str) -> None:
    """Have the note name size and checksum of each file as it is now, or not name it at all."""
    path = checkpoint(run) / NOTE
    note = json.loads(path.read_text())
    files = {name: noted_file(checkpoint(run) / name) for name in note["files"]}
    note["files"] = {n: f.model_dump() for n, f in files.items() if n not in left_out}
    path.write_text(json.dumps(note))


def plant(run: Path, name: str, make: Make) -> None:
    """Put another file in the place of one; its program would touch `run/canary`."""
    scratch = run / "scratch"
    scratch.mkdir()
    made = make(checkpoint(run) / name, scratch)
    shutil.copyfile(made, checkpoint(run) / name)
    shutil.rmtree(scratch)


def archive(name: str) -> Make:
    """One of the files that two readers see differently."""

    def made(good: Path, scratch: Path) -> Path:
        found = odd_archives(scratch, good, scratch.parent / "canary")
        return next(path for path in found if path.stem == name)

    return made


def program(make: Callable[[bytes, bytes], bytes]) -> Make:
    """An archive in torch's form with another pickle in it, made of the good one and a call."""

    def made(good: Path, scratch: Path) -> Path:
        records = records_of(good)
        touch = call(glob("os", "system"), text(f"touch {scratch.parent / 'canary'}"))
        content = make(records["data.pkl"], touch)
        return torch_file(scratch / "made.pt", {**records, "data.pkl": content})

    return made


def under_a_constant(good: bytes, touch: bytes) -> bytes:
    """A constant of a library as a key: the text that it is takes the place of the true key."""
    key = glob("deepspeed.checkpoint.constants", "OPTIMIZER_STATE_DICT")
    return good[:-1] + key + touch + b"s."


def hidden(good: bytes, _: bytes) -> bytes:
    """Other values behind a constant: nothing is called, but two readers differ."""
    key = glob("deepspeed.checkpoint.constants", "DS_VERSION")
    return good[:-1] + key + text("0.0.1") + b"s."


PLANTED = [
    ("second-name", MODEL, archive("torch-Data.pkl")),
    ("second-archive", OPTIMIZER, archive("archives-in-a-row")),
    ("archive-in-a-tar", MODEL, archive("tar-around")),
    ("deflated", OPTIMIZER, archive("by-python-deflated")),
    ("call-before", MODEL, program(lambda good, touch: before(touch, good))),
    ("call-beside", OPTIMIZER, program(lambda good, touch: beside(touch, good))),
    ("constant-as-a-key", MODEL, program(under_a_constant)),
    ("constant-of-another-value", MODEL, program(hidden)),
]


QUICK = ("second-archive", "call-before", "constant-of-another-value")


def refused(run: Path, *options: str) -> str:
    """What a resume says that must end with exit code 1, in one line of error, and load nothing."""
    codes, said = ranks.ended(run, 1, "--no-export", "--steps", "3", *options)

    assert codes == [1], said[-3000:]
    assert said.count("error: ") == 1
    assert "Traceback" not in said
    assert "resumed from" not in said
    assert not (run / "canary").exists()
    return said


@pytest.mark.parametrize(
    ("name", "make"),
    [
        pytest.param(*row[1:], id=row[0], marks=() if row[0] in QUICK else (pytest.mark.slow,))
        for row in PLANTED
    ],
)
def test_a_planted_file_is_refused(name: str, make: Make, run: Path) -> None:
    """Its size and checksum are as noted, and still nothing of it is loaded."""
    plant(run, name, make)
    vouched(run)

    refused(run)


@pytest.mark.slow
@pytest.mark.parametrize("name", [MODEL, OPTIMIZER])
def test_no_archive_that_two_readers_see_differently_is_loaded(
    name: str, saved: Path, tmp_path: Path
) -> None:
    """All of them, each in a run of its own."""
    good = checkpoint(saved) / name
    made = odd_archives(tmp_path, good, tmp_path / "canary")
    for number, file in enumerate(made):
        run = shutil.copytree(saved, tmp_path / f"run{number}")
        shutil.copyfile(file, checkpoint(run) / name)
        vouched(run)
        refused(run)

    assert not (tmp_path / "canary").exists()


def test_the_maker_is_honest(run: Path) -> None:
    """The same way of writing with the good program gives a checkpoint that is resumed."""
    plant(run, MODEL, program(lambda good, _: good))
    vouched(run)

    assert "resumed from" in ranks.train(run, 1, "--no-export", "--steps", "3")


@pytest.mark.parametrize("name", [pytest.param(MODEL, marks=pytest.mark.slow), OPTIMIZER])
def test_a_file_that_the_note_leaves_out_is_looked_at(name: str, run: Path) -> None:
    """DeepSpeed loads files by their names, whatever the note says of them."""
    plant(run, name, program(lambda good, touch: before(touch, good)))
    vouched(run, name)

    assert "would call os.system" in refused(run)


@pytest.mark.slow
def test_a_checkpoint_that_was_named_is_refused(run: Path) -> None:
    """With `--resume FOLDER` nothing else is taken, and the checkpoint stays where it is."""
    plant(run, MODEL, program(lambda good, touch: before(touch, good)))
    vouched(run)

    assert "would call os.system" in refused(run, "--resume", str(checkpoint(run)))
    assert checkpoint(run).is_dir()


@pytest.mark.slow
def test_other_ranks_are_refused_too(run: Path) -> None:
    """Under another ZeRO stage the files are read by another way, which is as strict."""
    plant(run, OPTIMIZER, program(lambda good, touch: beside(touch, good)))
    vouched(run)
    config = ds_config(3, gradient_accumulation_steps=4)
    (run / "ds_config.json").write_text(json.dumps(config))

    refused(run)
