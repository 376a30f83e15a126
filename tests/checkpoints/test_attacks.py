"""Hostile checkpoints: nothing runs, nothing is written, every answer is a line and an exit code.

`ATTACK_SEED` chooses other random parts and another order.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hostile import Attack, attacks, chance, load_file, torch_file
from odd_archives import odd_archives, records_of, special_files

from dsforge.checkpoints.verify.checkpoint import verify
from dsforge.cli.main import main
from dsforge.errors import DsforgeError

pytestmark = pytest.mark.engine
torch = pytest.importorskip("torch")
SEED = int(os.environ.get("ATTACK_SEED", "7"))
SAMPLES = Path(__file__).parent / "samples"
SAMPLE = SAMPLES / "zero1"
MODEL = "global_step3/mp_rank_00_model_states.pt"
RECORDS = records_of(SAMPLE / MODEL)
SECONDS, MEMORY_BYTES = 10, 3 * 2**30
COMMANDS = ("verify", "inspect", "export", "convert")


class Answer(NamedTuple):
    """What a command said."""

    code: int
    said: str
    seconds: float


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Answer:
    """Run a command in this process; anything but an exit is a failure of the test."""
    begin = time.perf_counter()
    with pytest.raises(SystemExit) as ended:
        main(["ckpt", *map(str, arguments)])
    shown = capsys.readouterr()
    seconds = time.perf_counter() - begin
    return Answer(int(ended.value.code or 0), shown.out + shown.err, seconds)


def listing(folder: Path) -> set[Path]:
    """Everything below a folder."""
    return {path.relative_to(folder) for path in folder.rglob("*")}


CANARY = "canary"
ATTACKS = attacks(Path(f"/tmp/dsforge-{CANARY}-{os.getpid()}"), RECORDS["data.pkl"], SEED)
COSTLY = [attack for attack in ATTACKS if "many" in attack.name or "deep" in attack.name]


def planted(folder: Path, attack: Attack) -> Path:
    """A checkpoint whose model file has a hostile pickle."""
    copy = shutil.copytree(SAMPLE, folder / "run")
    torch_file(copy / MODEL, {**RECORDS, "data.pkl": attack.pickle})
    return copy


def canary_is_alive() -> bool:
    """Whether any program ran."""
    return bool([*Path("/tmp").glob(f"dsforge-{CANARY}-{os.getpid()}*")])


def test_there_are_enough_of_them() -> None:
    """No form was lost from the generator."""
    assert len(ATTACKS) >= 150
    assert sum(attack.name.startswith("call ") for attack in ATTACKS) >= 40


def test_hostile_pickles_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every form as a single file: exit code 3 from `verify`, from `inspect` where it would run."""
    file = tmp_path / "weights.pt"
    wrong = []
    for attack in ATTACKS:
        if attack in COSTLY:
            continue
        torch_file(file, {**RECORDS, "data.pkl": attack.pickle})
        seen, shown = answer(capsys, "verify", file), answer(capsys, "inspect", file)
        allowed = (3,) if attack.runs else (0, 1, 3)  # `inspect` looks at no bytes
        if seen.code != 3 or shown.code not in allowed or "Traceback" in seen.said + shown.said:
            wrong.append((attack.name, seen, shown.code))

    assert wrong == []
    assert not canary_is_alive()
    assert listing(tmp_path) == {Path("weights.pt")}


@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_ranks_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """A sample of all forms in the file of a rank, through every command on folders."""
    chosen = chance(SEED).sample([a for a in ATTACKS if a not in COSTLY], 12)
    wrong = every_command(tmp_path, capsys, chosen, (command,))

    assert wrong == []


@pytest.mark.slow
def test_all_hostile_ranks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every form through every command on folders."""
    assert every_command(tmp_path, capsys, ATTACKS, COMMANDS) == []


def every_command(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    chosen: list[Attack],
    commands: tuple[str, ...],
) -> list[tuple[str, str, Answer]]:
    """Attacks that were not answered as they must be."""
    wrong = []
    for attack in chosen:
        run = planted(folder, attack)
        before = listing(folder)
        for command in commands:
            out = [folder / "out"] if command in ("export", "convert") else []
            found = answer(capsys, command, run, *out)
            allowed = (3,) if attack.runs or command == "verify" else (0, 1, 3)
            if found.code not in allowed or "Traceback" in found.said:
                wrong.append((attack.name, command, found))
            if listing(folder) != before or canary_is_alive():
                wrong.append((attack.name, f"{command} wrote", found))
        shutil.rmtree(run)
    return wrong


@pytest.mark.slow
def test_a_process_with_little_memory_answers_each(tmp_path: Path) -> None:
    """The costly ones in processes of their own: no crash, in time, within their memory."""
    file = tmp_path / "weights.pt"
    wrong = []
    for attack in COSTLY:
        torch_file(file, {**RECORDS, "data.pkl": attack.pickle})
        begin = time.perf_counter()
        code, said = limited("verify", file)
        seconds = time.perf_counter() - begin
        if code != 3 or "Traceback" in said or seconds > 6 * SECONDS:  # of a machine under load
            wrong.append((attack.name, code, seconds, said[-200:]))

    assert wrong == []


def limited(*arguments: object) -> tuple[int, str]:
    """Exit code and text of a command with little memory and time."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (3 * SECONDS, 3 * SECONDS))

    command = [sys.executable, "-m", "dsforge", "ckpt", *map(str, arguments)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=120, preexec_fn=limit, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_archives_that_readers_see_differently_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two contents in one file, by name, place, header, offset or kind: none is read."""
    canary = tmp_path / CANARY
    found = odd_archives(tmp_path, SAMPLE / MODEL, canary)
    codes = {path.name: answer(capsys, "verify", path).code for path in found}

    assert len(codes) >= 28
    assert set(codes.values()) == {3}, codes
    assert not canary.exists()


@pytest.mark.parametrize(
    "name", ["torch-Data.pkl", "name-DATA.pkl", "archives-in-a-row", "tar-around"]
)
def test_such_archives_are_not_converted(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its checksums say, a file with two contents does not get to torch."""
    canary = tmp_path / CANARY
    run = shutil.copytree(SAMPLE, tmp_path / "run")
    (tmp_path / "odd").mkdir()
    odd_archives(tmp_path / "odd", SAMPLE / MODEL, canary)
    shutil.copy(tmp_path / f"odd/{name}.pt", run / MODEL)

    for command, out in (("verify", []), ("export", ["out"]), ("convert", ["out"])):
        assert answer(capsys, command, run, *(tmp_path / n for n in out)).code in (1, 3)
    assert not canary.exists()
    assert not (tmp_path / "out").exists()


def test_pipes_devices_and_links_to_nowhere_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is none is refused at once, alone and as the file of a rank."""
    for file in special_files(tmp_path):
        assert answer(capsys, "verify", file).code in (1, 3)
        if file.is_dir():
            continue
        run = shutil.copytree(SAMPLE, tmp_path / "run")
        (run / MODEL).unlink()
        (run / MODEL).symlink_to(file)
        for command in ("verify", "inspect"):
            found = answer(capsys, command, run)
            assert found.code in (1, 3)
            assert found.seconds < SECONDS
        shutil.rmtree(run)


def flipped(folder: Path, number: int) -> tuple[Path, Path, Path, int]:
    """A copy of a sample with one bit changed in one file; that file, the original, the bit."""
    draw = chance(f"{SEED}-{number}")
    sample = draw.choice(sorted(SAMPLES.iterdir()))
    copy = shutil.copytree(sample, folder / "flipped")
    file = draw.choice(sorted(copy.rglob("*.pt")))
    content = bytearray(file.read_bytes())
    bit = draw.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)
    return copy, file, sample / file.relative_to(copy), bit


def values(value: object) -> object:
    """What a file holds, in a form that can be compared."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.contiguous().view(-1).tolist())
    if isinstance(value, dict):
        return {str(key): values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [values(inner) for inner in value]
    return str(vars(value)) if hasattr(value, "__dict__") else str(value)


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_no_harmful_bit_is_called_good(count: int, tmp_path: Path) -> None:
    """A bit changed anywhere: `verify` finds it, or torch reads the same values."""
    for number in range(count):
        copy, file, source, bit = flipped(tmp_path, number)
        try:
            found = {f.rule for f in verify(copy) if f.severity == "error"}
        except DsforgeError:
            found = {"refused"}
        if not found:
            assert values(load_file(file)) == values(load_file(source)), (file.name, bit)
        shutil.rmtree(copy)


def spoil_latest(run: Path, content: bytes) -> None:
    """Another pointer."""
    (run / "latest").write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda run: spoil_latest(run, b"x" * 5000),
        lambda run: spoil_latest(run, b"../zero1/global_step3"),
        lambda run: spoil_latest(run, b"global_step3\0"),
        lambda run: spoil_latest(run, b".."),
        lambda run: spoil_latest(run, b"\xff\xfe"),
        lambda run: os.truncate(run / "latest", 10 * 2**40),
    ],
    ids=["long", "path", "NUL", "above", "no-text", "terabytes"],
)
def test_a_hostile_latest_is_refused(
    spoil: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pointer is one name of a folder here."""
    run = shutil.copytree(SAMPLE, tmp_path / "run")
    spoil(run)

    assert answer(capsys, "verify", run).code == 1


@pytest.mark.parametrize("count", [3_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_many_empty_files_of_ranks_are_summed_up(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few lines, not one for each file."""
    run = shutil.copytree(SAMPLE, tmp_path / "run")
    for rank in range(2, count):
        (run / f"global_step3/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    found = answer(capsys, "verify", run)

    assert found.code == 3
    assert len(found.said.splitlines()) < 80


def test_numbers_of_ranks_are_not_counted_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank of 10^11 in the name of a file: the first that are missing are named."""
    run = shutil.copytree(SAMPLE, tmp_path / "run")
    file = run / "global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt"
    file.rename(file.with_name("zero_pp_rank_99999999999_mp_rank_00_optim_states.pt"))
    found = answer(capsys, "verify", run)

    assert found.code == 3
    assert "rank 1, rank 2, rank 3, rank 4 and 99,999,999,994 more" in found.said
