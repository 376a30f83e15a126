"""`dsforge gen` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dsforge.artifacts import LAUNCHERS
from dsforge.cli.main import main

PAIR = (
    *("--model", "llama-2-7b", "--nodes", "2", "--gpus-per-node", "8"),
    *("--gpu", "a100-80gb", "--inter-node", "100gbe"),
)
TREE = {
    *(
        "plan.json",
        "PLAN.md",
        "report.html",
        "hostfile",
        ".deepspeed_env",
        "train.yaml",
        ".dsforge-manifest.json",
    ),
    *(f"deepspeed/{n}.json" for n in ("ds_config", "zero1", "zero2", "zero3")),
    *(f"deepspeed/{n}.json" for n in ("zero2_offload", "zero3_offload")),
    *("megatron/args.txt", "megatron/pretrain.sh", "megatron/slurm.sbatch"),
    *(f"launch/{name}" for name in LAUNCHERS),
}


def gen(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit code of `dsforge gen ...` in this process."""
    monkeypatch.setattr(sys, "argv", ["dsforge", "gen", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def files(folder: Path) -> set[str]:
    """Paths of all files below a folder."""
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_the_tree_is_written_and_the_choice_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every file of the contract; strategy, memory with its largest term, time, next steps."""
    code = gen(monkeypatch, *PAIR, "--out", str(tmp_path / "run"))
    said = capsys.readouterr().out

    assert code == 0
    assert files(tmp_path / "run") == TREE
    for part in (
        "strategy",
        "largest:",
        "step",
        f"{len(TREE) - 1} created",
        "write the addresses",
        "deepspeed.sh",
    ):
        assert part in said


def test_json_is_one_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan and what happened to each file."""
    gen(monkeypatch, *PAIR, "--out", str(tmp_path), "--json")
    document = json.loads(capsys.readouterr().out)

    assert {*document["created"], ".dsforge-manifest.json"} == TREE
    assert document["plan"] == json.loads((tmp_path / "plan.json").read_text())


def test_edits_stay_in_the_second_gen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Edited files keep their edits and get what is new, again and again; --force takes them."""
    gen(monkeypatch, *PAIR, "--out", str(tmp_path))
    (tmp_path / "hostfile").write_text("10.0.0.1 slots=8\n10.0.0.2 slots=8\n")
    job = tmp_path / "train.yaml"
    job.write_text(job.read_text().replace("seed: 42", "seed: 7"))

    for length in ("2048", "2048", "1024"):
        capsys.readouterr()
        assert gen(monkeypatch, *PAIR, "--out", str(tmp_path), "--seq-len", length) == 0
        said = capsys.readouterr().out
        assert "your edits are kept in" in said.replace("\n", " ")
        assert (tmp_path / "hostfile").read_text().startswith("10.0.0.1")
        assert yaml.safe_load(job.read_text())["seed"] == 7
        assert yaml.safe_load(job.read_text())["sequence_length"] == int(length)
    assert gen(monkeypatch, *PAIR, "--out", str(tmp_path), "--force") == 0
    assert (tmp_path / "hostfile").read_text().startswith("#")
    assert yaml.safe_load(job.read_text())["seed"] == 42


def test_an_edit_of_a_line_that_changes_stops_the_second_gen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the diff on stdout, the way out on stderr, nothing written."""
    gen(monkeypatch, *PAIR, "--out", str(tmp_path))
    job = tmp_path / "train.yaml"
    job.write_text(job.read_text().replace("sequence_length: 4096", "sequence_length: 3000"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()

    assert gen(monkeypatch, *PAIR, "--out", str(tmp_path), "--seq-len", "2048") == 1
    said = capsys.readouterr()
    assert "-sequence_length: 3000" in said.out
    assert "--force" in said.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_edited_plan_is_no_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan.json that was changed does not say what was generated: the edit is not merged."""
    gen(monkeypatch, *PAIR, "--out", str(tmp_path))
    plan, job = tmp_path / "plan.json", tmp_path / "train.yaml"
    plan.write_text(plan.read_text().replace('"seed": 42', '"seed": 43'))
    job.write_text(job.read_text().replace("epochs: 1.0", "epochs: 2.0"))

    assert gen(monkeypatch, *PAIR, "--out", str(tmp_path)) == 1
    assert "plan.json" in capsys.readouterr().err
    assert "epochs: 2.0" in job.read_text()


def test_another_request_shows_what_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files that nobody edited are updated, with a diff."""
    gen(monkeypatch, *PAIR, "--out", str(tmp_path))
    capsys.readouterr()

    assert gen(monkeypatch, *PAIR, "--out", str(tmp_path), "--seq-len", "2048") == 0
    said = capsys.readouterr().out
    assert "+++ " in said
    assert "updated" in said


@pytest.mark.parametrize(
    "arguments",
    [
        (*PAIR, "--templates", "missing"),
        (*PAIR, "--nodes", "0"),
        ("--model", "no-such-model", "--gpu", "a100-80gb"),
    ],
    ids=["templates", "nodes", "model"],
)
def test_bad_input_writes_nothing(
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A message on stderr, exit code 1 or 2, no folder."""
    code = gen(monkeypatch, *arguments, "--out", str(tmp_path / "run"))

    assert code in (1, 2)
    assert "error" in capsys.readouterr().err.lower()
    assert not (tmp_path / "run").exists()


def test_planning_imports_no_heavy_library(tmp_path: Path) -> None:
    """Torch, deepspeed and transformers stay out of the process."""
    program = (
        "import sys\nfrom dsforge.cli.main import main\n"
        f"sys.argv = {['dsforge', 'gen', *PAIR, '--out', str(tmp_path)]!r}\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(sorted({'torch', 'deepspeed', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "[]"


def test_paths_are_written_as_the_run_folder_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data path relative to the caller's folder still leads to the file from `--out`."""
    (tmp_path / "pairs.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.chdir(tmp_path)
    options = ["--model", "smollm2-135m", "--gpu", "rtx-4090", "--data", "pairs.jsonl"]
    options += ["--for", "deepspeed"]

    code = gen(monkeypatch, *options, "--out", "runs/one")
    named = yaml.safe_load(Path("runs/one/train.yaml").read_text())["data"]["train"]

    assert code == 0
    assert (tmp_path / "runs/one" / named).samefile(tmp_path / "pairs.jsonl")


ROWS = (
    ('{"foo": 1}\n', "row-shape"),
    ('{"foo": 1}\n' * 500, "row-shape"),
    ("", "data-empty"),
    ("\n\n", "data-empty"),
    ('{"text": ""}\n', "row-field"),
    ('{"prompt": "a"}\n', "row-field"),
    ('{"messages": [{"role": "user", "content": "a"}]}\n', "row-answer"),
    ('["text"]\n', "row-mapping"),
    ("not json\n", "row-json"),
)


@pytest.mark.parametrize(("rows", "rule"), ROWS)
def test_data_that_no_rank_could_read_is_refused(
    rows: str,
    rule: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is written, in seconds; the ranks would find out after minutes."""
    monkeypatch.chdir(tmp_path)
    Path("odd.jsonl").write_text(rows)
    options = ["--model", "smollm2-135m", "--gpu", "rtx-4090", "--data", "odd.jsonl"]

    code = gen(monkeypatch, *options, "--for", "deepspeed", "--out", "run")

    shown = capsys.readouterr().err
    assert code == 1
    assert f"[{rule}]" in shown
    assert "odd.jsonl" in shown
    assert not Path("run").exists()


def test_one_good_row_among_the_first_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What to do with single bad rows is the question of `dsforge train --on-bad-row`."""
    monkeypatch.chdir(tmp_path)
    Path("some.jsonl").write_text('{"foo": 1}\n' * 60 + '{"text": "a"}\n')
    options = ["--model", "smollm2-135m", "--gpu", "rtx-4090", "--data", "some.jsonl"]

    assert gen(monkeypatch, *options, "--for", "deepspeed", "--out", "run") == 0


def test_data_that_is_not_here_is_a_step_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plans are made far from the cluster; the file may lie there already."""
    monkeypatch.chdir(tmp_path)
    options = ["--model", "smollm2-135m", "--gpu", "rtx-4090", "--data", "far/away.jsonl"]

    code = gen(monkeypatch, *options, "--for", "deepspeed", "--out", "run")

    assert code == 0
    assert "1. copy the data to far/away.jsonl on every host" in capsys.readouterr().out


@pytest.mark.parametrize(("length", "continues"), [((), True), (("--tokens", "1t"), False)])
def test_the_weights_that_a_script_of_megatron_needs_are_a_step(
    length: tuple[str, ...],
    continues: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where the run continues from published weights; a pretraining run has none."""
    card = ("--gpu", "h100-80gb", "--gpus-per-node", "8", "--for", "megatron")
    code = gen(monkeypatch, "--model", "llama-3.1-8b", *card, *length, "--out", str(tmp_path / "r"))

    assert code == 0
    assert ("PRETRAINED_PATH" in capsys.readouterr().out) is continues
