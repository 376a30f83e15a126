"""The lock of an output folder: one run at a time, whatever an earlier one left there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsforge.errors import DsforgeError
from dsforge.train.parallel.ranks import Place
from dsforge.train.run.output_lock import NAME, Holder, check_holder, held, present_holder

FIRST, SECOND = Place(0, 0, 2), Place(1, 1, 2)
GONE = {"pid": 2**22 + 1, "process_started": 1}
ELSEWHERE = {"host": "node7", "boot": "another", "started": 1_700_000_000, "job": "10.0.0.7:29500"}


class Told:
    """What was said, and what is to be done on leaving."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.leavings: list[Callable[[], None]] = []

    def hold(self, output: Path, place: Place = FIRST) -> None:
        """Take the lock, see that it is there, and give it back."""
        with held(output, place, self.lines.append, self.leavings.append):
            assert (output / NAME).is_file() == place.is_first


def left(output: Path, **changes: object) -> Path:
    """The lock of an earlier run."""
    output.mkdir(exist_ok=True)
    holder = Holder.model_validate({**present_holder().model_dump(), **changes})
    (output / NAME).write_text(holder.model_dump_json())
    return output / NAME


def test_the_lock_is_there_while_a_run_is_and_no_longer(tmp_path: Path) -> None:
    """A folder that was made for nothing goes with it; the other ranks hold nothing."""
    told = Told()
    told.hold(tmp_path / "output")
    told.hold(tmp_path / "output", SECOND)

    assert (told.lines, list(tmp_path.iterdir())) == ([], [])


def test_a_second_run_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """One line names the first run; afterwards the folder can be had again."""
    first = Told()
    with held(tmp_path, FIRST, first.lines.append, first.leavings.append):
        before = (tmp_path / NAME).read_bytes()
        with pytest.raises(
            DsforgeError, match=rf"run {os.getpid()} on \S+ since 20.* UTC writes to"
        ):
            Told().hold(tmp_path)
        assert (tmp_path / NAME).read_bytes() == before
    Told().hold(tmp_path)


def test_a_rank_that_ends_at_once_gives_the_lock_back(tmp_path: Path) -> None:
    """What is done on leaving removes it, and giving it back twice does no harm."""
    told = Told()
    with held(tmp_path, FIRST, told.lines.append, told.leavings.append):
        told.leavings[0]()
        assert not (tmp_path / NAME).exists()


def test_a_killed_run_is_named_and_its_folder_taken_over(tmp_path: Path) -> None:
    """The same host and no such process any more."""
    left(tmp_path, **GONE)
    told = Told()
    told.hold(tmp_path)

    assert len(told.lines) == 1
    assert f"run {GONE['pid']} on" in told.lines[0]
    assert "has ended without removing" in told.lines[0]


def test_another_process_with_the_same_id_is_not_the_run(tmp_path: Path) -> None:
    """Ids are used again; the time at which a process started is not."""
    left(tmp_path, pid=1, process_started=2**40)
    Told().hold(tmp_path)


def test_a_run_on_another_host_counts_as_long_as_it_renews_its_lock(tmp_path: Path) -> None:
    """Its kernel lock may not be seen here; after two silent minutes it has ended."""
    path = left(tmp_path, **ELSEWHERE)
    with pytest.raises(DsforgeError, match="on node7 since 2023-11-14 22:13:20 UTC") as caught:
        Told().hold(tmp_path)
    assert f"if it has ended, remove {path}" in caught.value.hint
    os.utime(path, (0, time.time() - 300))
    told = Told()
    told.hold(tmp_path)

    assert "on node7" in told.lines[0]


def test_torchrun_takes_over_from_its_own_last_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first rank that was lost with its host a moment ago is replaced on another host."""
    left(tmp_path, **{**ELSEWHERE, "job": "my-job"})
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "my-job")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")

    Told().hold(tmp_path)


def test_other_ranks_do_not_wait_for_a_first_rank_that_was_refused(tmp_path: Path) -> None:
    """They see that another job holds the folder; the lock of their own job is no reason."""
    left(tmp_path, **ELSEWHERE)
    with pytest.raises(DsforgeError, match="on node7"):
        check_holder(tmp_path, SECOND)
    left(tmp_path)
    check_holder(tmp_path, SECOND)
    (tmp_path / NAME).unlink()
    check_holder(tmp_path, SECOND)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[" * 9000,
        b'{"pid": 1}',
        b"0" * 10**6,
        b'{"host": "\\u001b[2J"}',
    ],
    ids=["empty", "cut", "binary", "nested", "lacking", "long", "escapes"],
)
def test_a_lock_that_nobody_holds_and_nobody_can_read_is_taken_over(
    content: bytes, tmp_path: Path
) -> None:
    """What stands in it is not shown."""
    (tmp_path / NAME).write_bytes(content)
    told = Told()
    told.hold(tmp_path)

    assert all(line.isprintable() for line in told.lines)
    assert not (tmp_path / NAME).exists()


def link(path: Path) -> None:
    """A link to a file elsewhere."""
    path.symlink_to(path.parent.parent / "precious")


def hard_link(path: Path) -> None:
    """A second name of a file elsewhere."""
    path.hardlink_to(path.parent.parent / "precious")


@pytest.mark.parametrize("make", [link, hard_link, os.mkfifo, Path.mkdir], ids=lambda m: m.__name__)
def test_what_is_no_plain_file_is_refused_and_left_alone(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    """Nothing is written through it, and nothing waits for it."""
    output, precious = tmp_path / "output", tmp_path / "precious"
    output.mkdir()
    precious.write_text("mine")
    make(output / NAME)

    with pytest.raises(DsforgeError, match="is not a plain file"):
        Told().hold(output)
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("name", ["file", "file/below", "dangling"])
def test_an_output_that_is_no_folder_is_refused(name: str, tmp_path: Path) -> None:
    """A file, a path below a file, a link to nowhere: one line."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")

    with pytest.raises(DsforgeError, match=r"cannot be (created|written)"):
        Told().hold(tmp_path / name)
