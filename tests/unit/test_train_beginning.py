"""Where a run begins: fresh, after a checkpoint, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsforge.errors import DsforgeError
from dsforge.train.checkpoints.note import (
    NOTE,
    CheckpointNote,
    changed,
    check_note,
    lacking,
    noted_file,
    read_note,
    step_of,
    tag_of,
)
from dsforge.train.checkpoints.resume import chosen_beginning


def note(step: int = 4, **changes: int) -> CheckpointNote:
    """What a checkpoint of two ranks under ZeRO-2 says."""
    values = {
        "step": step,
        "world_size": 2,
        "zero_stage": 2,
        "global_batch_size": 8,
        "seed": 42,
        "samples": 64,
    }
    return CheckpointNote.model_validate({**values, **changes})


def saved(output: Path, *steps: int, complete: bool = True) -> None:
    """Checkpoints of an earlier run, and its metrics."""
    for step in steps:
        folder = output / "checkpoints" / tag_of(step)
        folder.mkdir(parents=True)
        if complete:
            (folder / NOTE).write_text(note(step).model_dump_json())
    (output / "metrics.jsonl").write_text("{}\n")


def exported(output: Path) -> None:
    """The final weights of an earlier run."""
    (output / "model").mkdir(parents=True)
    (output / "model" / "config.json").write_text("{}")


def test_an_empty_folder_is_a_fresh_run(tmp_path: Path) -> None:
    """Nothing to go on from, nothing to replace."""
    beginning = chosen_beginning("auto", tmp_path / "output", overwrite=False)

    assert (beginning.checkpoint, beginning.replaced) == (None, ())


def test_auto_takes_the_newest_complete_checkpoint_by_number(tmp_path: Path) -> None:
    """Step 10 is newer than step 9, and a checkpoint without its note does not count."""
    saved(tmp_path, 9, 10)
    saved(tmp_path, 11, complete=False)
    beginning = chosen_beginning("auto", tmp_path, overwrite=False)

    assert beginning.checkpoint == tmp_path / "checkpoints" / "global_step10"
    assert beginning.replaced == ()


def test_a_run_that_died_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    """Its torn checkpoint and its metrics go."""
    saved(tmp_path, 4, complete=False)
    beginning = chosen_beginning("auto", tmp_path, overwrite=False)
    beginning.clear()

    assert beginning.checkpoint is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_results_are_not_replaced_unasked(resume: str, tmp_path: Path) -> None:
    """A folder with final weights and no checkpoint to go on from is left alone."""
    exported(tmp_path)

    with pytest.raises(DsforgeError, match="contains an earlier run"):
        chosen_beginning(resume, tmp_path, overwrite=False)


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_overwrite_starts_anew_and_removes_the_earlier_run_only(
    resume: str, tmp_path: Path
) -> None:
    """Old checkpoints would be taken for the newest of the new run; other files stay."""
    saved(tmp_path, 90)
    exported(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    beginning = chosen_beginning(resume, tmp_path, overwrite=True)
    beginning.clear()

    assert beginning.checkpoint is None
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_going_back_asks_before_later_checkpoints_go(tmp_path: Path) -> None:
    """Back to step 4 where steps 6 and 8 exist: refused, or with `overwrite` they are dropped."""
    saved(tmp_path, 4, 6, 8)
    back = str(tmp_path / "checkpoints" / "global_step4")
    with pytest.raises(DsforgeError, match=r"later checkpoints .* up to global_step8"):
        chosen_beginning(back, tmp_path, overwrite=False)
    beginning = chosen_beginning(back, tmp_path, overwrite=True)
    beginning.clear()

    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["global_step4"]


@pytest.mark.parametrize("name", ["", "checkpoints", "checkpoints/global_step6"])
def test_a_checkpoint_of_another_run_can_be_named(name: str, tmp_path: Path) -> None:
    """By its folder, by the folder of all, or by the output folder of the run."""
    saved(tmp_path / "first", 4, 6)
    named = str(tmp_path / "first" / name)
    beginning = chosen_beginning(named, tmp_path / "second", overwrite=False)

    assert beginning.checkpoint == tmp_path / "first/checkpoints/global_step6"


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    """The message says what to name instead."""
    with pytest.raises(DsforgeError, match="is not a complete checkpoint"):
        chosen_beginning(str(tmp_path), tmp_path / "output", overwrite=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"global_batch_size": 16},
        {"seed": 1},
        {"samples": 65},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_checkpoint_of_a_different_run_is_refused(
    changes: dict[str, int], tmp_path: Path
) -> None:
    """What a checkpoint depends on is compared, with both values in the message."""
    saved(tmp_path, 4)
    present = note(**changes)
    ((name, new),) = changes.items()
    old = getattr(note(), name)

    with pytest.raises(DsforgeError, match=f"with {name} {old}, this run has {new}"):
        check_note(tmp_path / "checkpoints" / "global_step4", present)


def test_a_checkpoint_of_this_run_fits(tmp_path: Path) -> None:
    """The step may differ: it says how far the checkpoint got."""
    saved(tmp_path, 4)

    assert check_note(tmp_path / "checkpoints" / "global_step4", note(0)).step == 4


SPLITS: list[dict[str, int]] = [
    {"tensor_parallel_size": 2},
    {"pipeline_parallel_size": 2},
    {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
]


@pytest.mark.parametrize("changes", [{"world_size": 3}, {"zero_stage": 0}, *SPLITS])
def test_other_ranks_and_stages_go_on_from_it(changes: dict[str, int], tmp_path: Path) -> None:
    """What can be reshaped is no reason to refuse."""
    saved(tmp_path, 4)

    assert check_note(tmp_path / "checkpoints" / "global_step4", note(0, **changes)).step == 4


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("changes", SPLITS)
def test_split_ranks_must_have_said_what_they_hold(
    changes: dict[str, int], named: bool, tmp_path: Path
) -> None:
    """Those of older releases did not; on the same ranks DeepSpeed loads them all the same."""
    saved(tmp_path, 4)
    path = tmp_path / "checkpoints" / "global_step4"
    split = note(4).model_copy(update={**changes, "any_ranks": named})
    (path / NOTE).write_text(split.model_dump_json())

    assert check_note(path, note(0, **changes)).any_ranks == named
    if named:
        assert check_note(path, note(0)).step == 4
    else:
        with pytest.raises(DsforgeError) as raised:
            check_note(path, note(0))
        assert "of this checkpoint cannot change on resume" in raised.value.hint


def with_files(path: Path) -> None:
    """Give a checkpoint a file of 5 bytes, and its note the size and checksum."""
    (path / "rank.pt").write_bytes(b"12345")
    noted = note(step_of(path)).model_copy(
        update={"files": {"rank.pt": noted_file(path / "rank.pt")}}
    )
    (path / NOTE).write_text(noted.model_dump_json())


@pytest.mark.parametrize("spoilt", [b"1234", None], ids=["cut", "gone"])
def test_auto_passes_over_a_checkpoint_that_is_not_whole(
    spoilt: bytes | None, tmp_path: Path
) -> None:
    """A file that is shorter than noted, or not there: the checkpoint before it is taken."""
    saved(tmp_path, 4, 6)
    own = tmp_path / "checkpoints"
    for step in (4, 6):
        with_files(own / tag_of(step))
    newest = own / "global_step6/rank.pt"
    newest.write_bytes(spoilt) if spoilt else newest.unlink()

    assert chosen_beginning("auto", tmp_path, overwrite=False).checkpoint == own / "global_step4"
    assert changed(own / "global_step4", ["rank.pt"]) == ""


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    """The size is right and the checksum is not."""
    saved(tmp_path, 4)
    path = tmp_path / "checkpoints/global_step4"
    with_files(path)
    (path / "rank.pt").write_bytes(b"12346")

    assert lacking(path) == ""
    assert changed(path, ["rank.pt"]) == "rank.pt: content differs from what was saved"


def test_no_checkpoint_that_is_whole_is_an_error(tmp_path: Path) -> None:
    """A run does not begin anew in silence where its checkpoints are damaged."""
    saved(tmp_path, 4)
    path = tmp_path / "checkpoints/global_step4"
    with_files(path)
    (path / "rank.pt").unlink()

    with pytest.raises(DsforgeError, match=r"global_step4: rank.pt is missing"):
        chosen_beginning("auto", tmp_path, overwrite=False)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b'{"step": "\xff"}', b"[" * 100_000, b'{"step": ' + b"9" * 9999 + b"}"],
)
def test_a_spoilt_note_is_no_checkpoint(content: bytes, tmp_path: Path) -> None:
    """Whatever its bytes are: a message, so that an older checkpoint can be taken."""
    (tmp_path / NOTE).write_bytes(content)
    with pytest.raises(DsforgeError, match="not a complete checkpoint"):
        read_note(tmp_path)
