"""Hostile and broken files: an answer or a DsforgeError, within bounds, and no path leads out."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hostile import chance
from hypothesis import given, settings
from hypothesis import strategies as st
from import_scoring import Case, cases, read_case

from dsforge.errors import DsforgeError
from dsforge.importing.read import read_files, read_texts

SECONDS = 6.0
EVERY = list(cases())
NAMES = ("a.sh", "a.yaml", "a.json", "a.toml", "a.slurm", "args.txt", "a")
OPENINGS = ('"', "'", "$(", "${", "`", "{", "]", ")", "\n", "<<E")
BOMBS = {
    "open-braces.yaml": "{" * 200_000,
    "open-brackets.json": "[" * 200_000,
    "aliases.yaml": "a0: &a0 [1]\n"
    + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)),
    "merges.yaml": "a: &a {b: 1}\nc:\n  <<: *a\nper_device_train_batch_size: 1\noutput_dir: x\n",
    "itself.yaml": "a: &a\n  b: *a\nbase_model: x\n",
    "nested.toml": "a = " + "[" * 5_000,
    "big-number.toml": "[training]\nseq_len = " + "9" * 20_000,
    "deep.py": "x = " + "(" * 5_000 + ")" * 5_000,
    "minus.py": "x = " + "-" * 100_000 + "1",
    "sum.py": "x = " + "+".join(["1"] * 50_000),
    "power.py": "TrainingArguments(output_dir='x', per_device_train_batch_size=9**9**9)",
    "ifs.sh": "if true; then\n" * 20_000,
    "quotes.sh": "'\"`" * 50_000,
    "dollars.sh": "${a:-" * 20_000,
    "calls.sh": "f() { f; f; }\nf\n",
    "doubling.sh": "A=xxxxxxxxxx\n" + 'A="$A$A"\n' * 40 + "torchrun t.py --output_dir $A\n",
    "arrays.sh": "A=(x x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + 'torchrun t.py "${A[@]}"\n',
    "documents.sh": "cat <<E\n" * 5_000,
    "sources.sh": "source sources.sh\n" * 100,
    "arithmetic.sh": "A=$((" + "(" * 10_000 + "1" + "))\n",
    "levels.json": '{"' + ".".join("a" * 200_000) + '": 1}',
    "levels.yaml": "? " + ".".join("a" * 200_000) + "\n: 1\n",
    "levels-of-block.json": '{"per_device_train_batch_size": 1, "save_strategy": "no", '
    '"deepspeed": {"' + ".".join("a" * 200_000) + '": 1}}',
    "keys-of-block.json": '{"per_device_train_batch_size": 1, "save_strategy": "no", '
    '"deepspeed": {"zero_optimization": {"stage": 2}, '
    + ", ".join(f'"k{n}": 1' for n in range(20_000))
    + "}}",
    "long-block.json": '{"per_device_train_batch_size": 1, "save_strategy": "no", "'
    + "p" * 200_000
    + '": {'
    + ", ".join(f'"k{n}": 1' for n in range(20_000))
    + "}}",
    "nul.yaml": "base_model: x\x00y\nadapter: lora\n",
}


def outcome(texts: dict[str, str]) -> float:
    """Seconds until an answer or a DsforgeError; anything else is raised."""
    started = time.monotonic()
    with suppress(DsforgeError):
        read_texts(texts)
    return time.monotonic() - started


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_bombs_are_bounded(name: str) -> None:
    """Deep, long, growing and self-referring files end soon."""
    assert outcome({name: BOMBS[name]}) < SECONDS


@settings(max_examples=120, deadline=None)
@given(data=st.binary(max_size=400), name=st.sampled_from(NAMES))
def test_any_bytes_are_answered(
    data: bytes, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bytes of any kind never raise anything but a DsforgeError."""
    path = tmp_path_factory.mktemp("bytes") / name
    path.write_bytes(data)
    with suppress(DsforgeError):
        read_files([path])


def mutated(text: str, random: Random) -> str:
    """A text with some characters removed, doubled, swapped or replaced."""
    letters = list(text)
    for _ in range(random.randint(1, 12)):
        at = random.randrange(max(1, len(letters)))
        kind = random.randrange(4)
        if kind == 0:
            del letters[at : at + random.randint(1, 40)]
        elif kind == 1:
            letters[at:at] = letters[at : at + random.randint(1, 40)]
        elif kind == 2:
            letters[at:at] = list(random.choice(OPENINGS))
        else:
            letters[at : at + 1] = [random.choice("0-=:,[]{}()#|&;<>\\\t é\x01\x02\x03")]
    return "".join(letters)


@pytest.mark.parametrize("case", EVERY[::3], ids=lambda case: case.row["path"].replace("/", "-"))
def test_mutated_real_files_are_answered(case: Case) -> None:
    """Damaged public files never raise anything but a DsforgeError, and end soon."""
    random = chance(case.name)
    for _ in range(12):
        row = {**case.row, "text": mutated(case.row["text"], random)}
        started = time.monotonic()
        with suppress(DsforgeError):
            read_case(Case(case.part, row))
        assert time.monotonic() - started < SECONDS


def test_no_path_leads_out_of_the_folder(tmp_path: Path) -> None:
    """Absolute paths, `..` and links to files elsewhere are not followed."""
    outside = tmp_path / "outside.json"
    outside.write_text('{"zero_optimization": {"stage": 1}, "train_batch_size": 8}')
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "link.json").symlink_to(outside)
    for name in (str(outside), "../outside.json", "link.json", "sub/../../outside.json"):
        script = folder / "run.sh"
        script.write_text(
            "torchrun --nproc_per_node 2 t.py --output_dir o --per_device_train_batch_size 1 "
            f"--deepspeed {name}\n"
        )
        found = read_files([script])
        assert found.setup.zero_stage is None, name
        assert "file-not-given" in {problem.rule for problem in found.problems}


def test_a_python_source_is_not_run(tmp_path: Path) -> None:
    """Importing a source has no effect."""
    target = tmp_path / "made"
    source = tmp_path / "train.py"
    source.write_text(
        f"open({str(target)!r}, 'w')\nimport os\nos.mkdir({str(target)!r} + 'd')\n"
        "TrainingArguments(output_dir='o', per_device_train_batch_size=3, bf16=True)\n"
    )

    assert read_files([source]).setup.micro_batch_size == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]
