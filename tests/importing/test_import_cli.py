"""`dsforge import`, `--from` and `dsforge.import_config`, as a person uses them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import dsforge
from dsforge.cli.main import main
from dsforge.errors import SpecError
from dsforge.importing.read import read_files
from dsforge.importing.request import is_name

SCHEMA = Path(__file__).parents[2] / "schemas" / "import.schema.json"
SCRIPT = (
    "#!/bin/bash\ntorchrun --nproc_per_node 8 train.py \\\n  --deepspeed ds_z3.json \\\n"
    "  --model_name_or_path meta-llama/Llama-2-7b-hf --output_dir out --bf16 \\\n"
    "  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --model_max_length 2048\n"
)
GPU = ("--model", "llama-2-7b", "--gpu", "a100-80gb")

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A launch script with its ds_config beside it."""
    (tmp_path / "ds_z3.json").write_text(
        '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"},\n'
        ' "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}\n'
    )
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    return path


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints."""
    with pytest.raises(SystemExit) as end:
        main(list(words))
    text = capsys.readouterr()
    assert not end.value.code, text.err
    return text.out


def test_the_setup_is_shown_with_places_price_and_changes(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Style, values with file and line, price, a better plan and what it changes."""
    text = shown(capsys, "import", str(script), *GPU)

    assert text.startswith("transformers (")
    assert f"{script}:5" in text
    assert f"{script.parent / 'ds_z3.json'}:1" in text
    for part in ("as it stands", "device memory", "step time"):
        assert part in text


@pytest.mark.parametrize(("inside", "said"), [(".", ""), ("..", "job/")])
def test_a_file_beside_is_named_as_the_one_that_refers_to_it(
    inside: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    """A path that was given relative to the current folder does not become an absolute one."""
    job = tmp_path / "job"
    job.mkdir()
    (job / "ds_z3.json").write_text('{"zero_optimization": {"stage": 3}}')
    (job / "run.sh").write_text(SCRIPT)
    monkeypatch.chdir(job / inside)
    text = shown(capsys, "import", f"{said}run.sh")

    assert text.startswith(f"transformers ({said}run.sh, {said}ds_z3.json)\n")
    assert str(tmp_path) not in text


def test_without_a_cluster_it_says_what_is_missing(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The setup is shown all the same."""
    text = shown(capsys, "import", str(script))

    assert "zero_stage" in text
    assert "not priced" in text
    assert "`gpu` is missing" in text


def test_the_document_follows_its_schema(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints one document."""
    document = json.loads(shown(capsys, "import", str(script), *GPU, "--json"))
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)

    assert document["imported"]["setup"]["global_batch_size"] == 64
    assert document["plan"]["choice"]["strategy"]["zero_stage"] == 3


def test_out_writes_the_same_job_as_a_run_folder(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stage and batch of the script, also for another program."""
    out = tmp_path / "run"
    words = ("--out", str(out), "--for", "accelerate")
    shown(capsys, "import", str(script), *GPU, "--seq-len", "2048", *words)
    plan = dsforge.load_plan(out)

    assert plan.strategy.zero_stage == 3
    assert plan.strategy.micro_batch_size == 2
    assert plan.strategy.gradient_accumulation_steps == 4
    assert (out / "for" / "accelerate" / "accelerate.yaml").is_file()


def test_what_is_written_is_read_as_the_same_setup(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run folder's accelerate config and ds_config give the plan's stage, batch and ranks."""
    out = tmp_path / "run"
    shown(capsys, "import", str(script), *GPU, "--out", str(out), "--for", "accelerate")
    engine = next((out / "deepspeed").glob("zero3*.json"))
    found = read_files([out / "for" / "accelerate" / "accelerate.yaml", engine]).setup
    plan = dsforge.load_plan(out)

    assert (found.nodes, found.gpus_per_node) == (plan.cluster.nodes, plan.cluster.gpus_per_node)
    assert found.zero_stage == plan.strategy.zero_stage
    assert found.global_batch_size == plan.strategy.global_batch_size
    assert found.micro_batch_size == plan.strategy.micro_batch_size
    assert found.precision == plan.workload.precision


@pytest.mark.parametrize("command", ["estimate", "plan"])
def test_from_takes_the_settings_of_a_file(
    command: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--from` fixes what the file says."""
    words = ("--from", str(script), *GPU, "--seq-len", "2048", "--json")
    document = json.loads(shown(capsys, command, *words))
    text = json.dumps(document if command == "estimate" else document["plans"][0])

    assert '"zero_stage": 3' in text
    assert '"micro_batch_size": 2' in text


def test_flags_win_over_the_file(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A flag replaces one value, and the batch of a step follows."""
    words = ("--from", str(script), *GPU, "--micro-batch", "4", "--gpus-per-node", "4")
    document = json.loads(shown(capsys, "estimate", *words, "--json"))
    text = json.dumps(document)

    assert '"micro_batch_size": 4' in text
    assert '"global_batch_size": 64' in text  # 4 x 4 steps x 4 ranks


def test_gen_writes_from_a_file(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gen --from` makes a run folder of dsforge's own scripts."""
    shown(capsys, "gen", "--from", str(script), *GPU, "--out", str(tmp_path / "run"))

    assert dsforge.load_plan(tmp_path / "run").strategy.zero_stage == 3


def test_from_python(script: Path) -> None:
    """The function answers what the command shows."""
    found = dsforge.import_config(script, model="llama-2-7b", cluster="a100-80gb")

    assert found.plan is not None
    assert found.plan.cluster.gpus == 8
    assert {change.field for change in found.changes} <= set(found.setup.__class__.model_fields)
    with pytest.raises(SpecError):
        dsforge.import_config(script.parent)


@pytest.mark.parametrize("text", ["/etc/passwd", "../model", "~/weights", "a/b/c", "x\n", "."])
def test_no_path_of_a_file_becomes_a_model(text: str) -> None:
    """Only names and hub ids do."""
    assert not is_name(text)
    assert is_name("meta-llama/Llama-2-7b-hf")
