"""Damage is not carried on: changed bits end an export or a conversion, or change nothing."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from samples_copied import NAMES, SAMPLES, content, copied, ended, flipped

from dsforge.checkpoints.export import export
from dsforge.checkpoints.folder import find_checkpoint
from dsforge.checkpoints.pickles.values import StoredTensor
from dsforge.checkpoints.torch_files.verified_reads import (
    CHUNK_BYTES,
    CheckedArchive,
    UnusableError,
)
from dsforge.checkpoints.zero.parameters import read_saved

SEED = 20261122
EXPORT = ("export", "--lora-alpha", "6")


def outcomes(command: tuple[str, ...], count: int, folder: Path) -> Iterator[tuple[str, int, bool]]:
    """Of one flip after the other: which, the exit code, whether the result is the true one."""
    chance = random.Random(SEED)  # noqa: S311 - flips, not secrets
    true: dict[str, dict[str, bytes | str]] = {}
    for number in range(count):
        name = NAMES[number % len(NAMES)]
        if name not in true:
            ended(*command, SAMPLES / name, folder / "true" / name / "out")
            true[name] = content(folder / "true" / name)
        checkpoint = copied(name, folder / str(number))
        flip = flipped(checkpoint, chance)
        code = ended(*command, checkpoint, folder / str(number) / "made" / "out")
        made = folder / str(number) / "made"
        yield f"{name} {flip}", code, (content(made) if made.exists() else {}) == true[name]
        shutil.rmtree(folder / str(number))


def check(command: tuple[str, ...], count: int, folder: Path) -> int:
    """Flips that were refused; every other one must have changed nothing in the result."""
    refused = 0
    for flip, code, same in outcomes(command, count, folder):
        assert code in (0, 1, 3), flip
        assert code or same, f"{flip}: other weights, exit code 0"
        refused += code != 0
    return refused


def test_flipped_bits_are_not_exported(tmp_path: Path) -> None:
    """One bit changed anywhere in a checkpoint: refused, or the same bytes."""
    assert check(EXPORT, 64, tmp_path) > 16


@pytest.mark.engine
def test_flipped_bits_are_not_converted(tmp_path: Path) -> None:
    """The same through `convert`, which uses all states of the optimizer."""
    pytest.importorskip("deepspeed")
    assert check(("convert",), 16, tmp_path) > 8


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("command", [EXPORT, ("convert",)], ids=["export", "convert"])
def test_400_flipped_bits(command: tuple[str, ...], tmp_path: Path) -> None:
    """As above, more of them."""
    pytest.importorskip("deepspeed")
    assert check(command, 400, tmp_path) > 100


def first_weight(sample: str) -> tuple[CheckedArchive, StoredTensor]:
    """The archive and flat tensor of a parameter."""
    saved = read_saved(find_checkpoint(SAMPLES / sample), CheckedArchive)
    piece = next(iter(saved.trained.values())).states["fp32"][0]
    assert isinstance(piece.archive, CheckedArchive)
    return piece.archive, piece.tensor


def test_bytes_that_change_between_two_reads_are_found(tmp_path: Path) -> None:
    """The record was checked whole; the disk gives other bytes when it is read once more."""
    checkpoint = copied("zero2-bf16", tmp_path)
    saved = read_saved(find_checkpoint(checkpoint), CheckedArchive)
    atom = saved.trained["model.embed_tokens.weight"]
    before = next(atom.read("fp32", 0, 8))
    piece = atom.states["fp32"][0]
    record = piece.archive.locate(piece.tensor)
    data = bytearray(piece.archive.path.read_bytes())
    data[record.begin + 4] ^= 1
    piece.archive.path.write_bytes(data)
    piece.archive._last = ("", 0, b"")

    with pytest.raises(UnusableError) as raised:
        next(atom.read("fp32", 0, 8))
    assert "changed while they were read" in str(raised.value.problems)
    assert len(before) == 8


def test_chunks_of_a_record_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements on both sides of the border of two chunks are those of the whole."""
    monkeypatch.setattr("dsforge.checkpoints.torch_files.verified_reads.CHUNK_BYTES", 52)
    archive, tensor = first_weight("zero1")
    whole = archive.flat(tensor)

    assert CHUNK_BYTES > 52
    for begin, end in (
        (0, tensor.elements),
        (11, 15),
        (13, 13),
        (12, 200),
        (tensor.elements - 1,) * 2,
    ):
        assert (archive.elements(tensor, begin, end) == whole[begin:end]).all()


def test_unchecked_leaves_out_the_check_sums_alone(tmp_path: Path) -> None:
    """A changed weight goes through on request; a missing rank does not."""
    checkpoint = copied("zero1", tmp_path)
    archive, tensor = first_weight("zero1")
    record = archive.locate(tensor)
    file = checkpoint / archive.path.relative_to(SAMPLES / "zero1")
    data = bytearray(file.read_bytes())
    data[record.begin] ^= 1
    file.write_bytes(data)

    assert ended("export", checkpoint, tmp_path / "checked") == 3
    assert ended("export", checkpoint, tmp_path / "unchecked", "--unchecked") == 0
    file.unlink()
    assert ended("export", checkpoint, tmp_path / "more", "--unchecked") == 3


def test_damaged_optimizer_states_do_not_stop_an_export(tmp_path: Path) -> None:
    """Only what is used is checked: the weights of a checkpoint can still be had."""
    checkpoint = copied("zero1", tmp_path)
    saved = read_saved(find_checkpoint(checkpoint))
    piece = next(iter(saved.trained.values())).states["exp_avg"][0]
    record = piece.archive.locate(piece.tensor)
    data = bytearray(piece.archive.path.read_bytes())
    data[record.begin] ^= 1
    piece.archive.path.write_bytes(data)

    assert ended("verify", checkpoint) == 3
    assert ended("export", checkpoint, tmp_path / "out") == 0
    whole = export(find_checkpoint(SAMPLES / "zero1"), tmp_path / "true").folder
    assert content(tmp_path / "out") == content(whole)


@pytest.mark.parametrize("rule", ["rank-missing", "steps-mixed", "tag-swapped"])
def test_what_verify_finds_stops_an_export(
    rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One judgement for all commands, exit code 3, and nothing is left on the disk."""
    checkpoint = copied("zero2-bf16", tmp_path)
    step = checkpoint / "global_step3"
    if rule == "rank-missing":
        next(step.glob("*rank_1*optim*")).unlink()
    elif rule == "tag-swapped":
        step.rename(checkpoint / "global_step4")
        (checkpoint / "latest").write_text("global_step4")
    else:
        other = next((SAMPLES / "zero2-lora/global_step3").glob("*rank_1*optim*"))
        shutil.copy(other, next(step.glob("*rank_1*optim*")))
        rule = "parts-lacking"

    assert ended("export", checkpoint, tmp_path / "made" / "out") == 3
    assert rule in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def rewritten(sample: str, folder: Path, pattern: str, change: Callable[[Any], Any]) -> Path:
    """A copy of a sample of which one file was changed as a script could, with good checksums."""
    torch = pytest.importorskip("torch")
    copy = copied(sample, folder)
    file = next(copy.glob(pattern))
    torch.save(change(torch.load(file, weights_only=False)), file)
    return copy


def large(value: Any) -> Any:
    """A weight that fp16 does not hold."""
    value["optimizer_state_dict"]["single_partition_of_fp32_groups"][0].data[3] = 7e4
    return value


def narrow(value: Any) -> Any:
    """The master weights of one rank in another type."""
    flat = value["optimizer_state_dict"]["single_partition_of_fp32_groups"]
    flat[0] = flat[0].bfloat16()
    return value


def short(value: Any) -> Any:
    """A state with fewer elements than the weights."""
    own = value["optimizer_state_dict"]["base_optimizer_state"]["state"][0]
    own["exp_avg"] = own["exp_avg"][:-5].clone()
    return value


@pytest.mark.engine
def test_numbers_that_a_type_does_not_hold_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would become infinite, and the file would look well."""
    copy = rewritten("zero1", tmp_path, "*/*pp_rank_0*optim*", large)

    assert ended("export", copy, tmp_path / "half", "--dtype", "float16") == 1
    assert "1 value of `model.embed_tokens.weight` is too large" in capsys.readouterr().err
    assert ended("export", copy, tmp_path / "brain", "--dtype", "bfloat16") == 0
    assert not (tmp_path / "half").exists()


@pytest.mark.engine
@pytest.mark.parametrize("change", [narrow, short])
@pytest.mark.parametrize("command", ["export", "convert"])
def test_parts_that_do_not_fit_are_refused(
    command: str, change: Callable[[Any], Any], tmp_path: Path
) -> None:
    """Good checksums, and one rank's numbers are of another type or too few."""
    copy = rewritten("zero1", tmp_path, "*/*rank_1*optim*", change)

    code = ended(command, copy, tmp_path / "out")
    if (command, change) == ("export", short):  # the weights themselves are whole
        assert code in (0, 3)
    else:
        assert code in (1, 3)
        assert not (tmp_path / "out").exists()
