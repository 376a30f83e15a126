"""Each function answers what its command prints with `--json`, as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

import dsforge
from dsforge.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "benchmarks/published/training.csv"
RUNS = Path(__file__).parents[1] / "calibrate" / "runs.csv"
REPORTED = ROOT / "tests/report/data"
LOG = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
CLUSTER = {"gpu": "a100-80gb", "nodes": 2, "gpus_per_node": 8}
WORK = {"sequence_length": "2k", "tokens": "2b"}
INPUTS = ("llama-2-7b", CLUSTER, WORK)
MACHINES = "--gpu a100-80gb --nodes 2 --gpus-per-node 8"
FLAGS = f"--model llama-2-7b {MACHINES} --seq-len 2k --tokens 2b"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a wrong config, a log, a generated run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds_config.json").write_text('{"zero_optimization": {"stage": 5}}')
    (tmp_path / "run.log").write_text(LOG)
    dsforge.gen(*INPUTS, out="run")
    return tmp_path


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "plan": (lambda: dsforge.plan(*INPUTS), f"plan {FLAGS} --json"),
    "plan-argued": (
        lambda: dsforge.plan(*INPUTS, top=2, front=True, flips=True),
        f"plan {FLAGS} --top 2 --argue --json",
    ),
    "plan-aimed": (
        lambda: dsforge.plan(*INPUTS, objective="cheapest", prefer=1, risk=True),
        f"plan {FLAGS} --objective cheapest --prefer 1 --risk --json",
    ),
    "estimate": (
        lambda: dsforge.estimate(*INPUTS, strategy={"zero_stage": 3}),
        f"estimate {FLAGS} --zero-stage 3 --json",
    ),
    "estimate-exact": (
        lambda: dsforge.estimate(
            "llama-2-7b", CLUSTER, strategy={"zero_stage": 3, "hpz_partition_size": 1}, exact=True
        ),
        f"estimate --model llama-2-7b {MACHINES} --zero-stage 3 --hpz 1 --exact --json",
    ),
    "estimate-ds-config": (
        lambda: dsforge.estimate(*INPUTS, ds_config="run/deepspeed/ds_config.json"),
        f"estimate {FLAGS} --ds-config run/deepspeed/ds_config.json --json",
    ),
    "find": (
        lambda: dsforge.find("seq-len", "llama-2-7b", CLUSTER),
        f"estimate {MACHINES} --model llama-2-7b --find seq-len --json",
    ),
    "find-gpus": (
        lambda: dsforge.find("gpus", "llama-2-7b", {"gpu": "a100-80gb"}),
        "estimate --model llama-2-7b --gpu a100-80gb --find gpus --json",
    ),
    "find-model": (
        lambda: dsforge.find("model", None, CLUSTER),
        f"estimate {MACHINES} --find model --json",
    ),
    "explain": (lambda: dsforge.explain("run"), "explain run --json"),
    "explain-figure": (
        lambda: dsforge.explain(dsforge.load_plan("run/plan.json"), "step_s"),
        "explain run step_s --json",
    ),
    "gen": (lambda: dsforge.gen(*INPUTS, out="run"), f"gen {FLAGS} --out run --json"),
    "lint": (lambda: dsforge.lint("."), "lint . --format json"),
    "import_config": (
        lambda: dsforge.import_config("ds_config.json", model="gpt2", cluster="v100-32gb"),
        "import ds_config.json --model gpt2 --gpu v100-32gb --json",
    ),
    "diagnose": (lambda: dsforge.diagnose("run.log"), "diagnose run.log --json"),
    "calibrate": (
        lambda: dsforge.calibrate([RUNS]),
        f"calibrate {RUNS} --json",
    ),
    "validate": (lambda: dsforge.validate(TABLE), f"validate {TABLE} --json"),
    "validate_figures": (
        lambda: dsforge.validate_figures(TABLE.with_name("figures.csv")),
        f"validate {TABLE.with_name('figures.csv')} --json",
    ),
    "report": (lambda: dsforge.report("run"), "report run --json"),
    "report-measured": (
        lambda: dsforge.report([REPORTED / "run", REPORTED / "bench"]),
        f"report {REPORTED / 'run'} {REPORTED / 'bench'} --json",
    ),
    "rehearse": (
        lambda: dsforge.rehearse("gpt2", {"gpu": "v100-32gb", "gpus_per_node": 2}),
        "rehearse --model gpt2 --gpu v100-32gb --gpus-per-node 2 --json",
    ),
}
MARKS = {"rehearse": pytest.mark.engine, "validate_figures": pytest.mark.slow}
MARKED = [pytest.param(*case, id=name, marks=MARKS.get(name, [])) for name, case in CASES.items()]


OF_JOBS = {"submit", "status", "logs", "cancel"}  # of runs that were started: tests/jobs


def timeless(value: Any) -> Any:
    """A document without the wall times of searches."""
    if isinstance(value, Mapping):
        return {k: timeless(v) for k, v in value.items() if k != "seconds"}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def test_every_verb_has_a_case() -> None:
    """A new public function is compared with its command, too."""
    verbs = {name for name in dsforge.__all__ if name.islower() and not name.startswith("load_")}

    assert verbs - {"__version__"} - OF_JOBS == {name.partition("-")[0] for name in CASES}


@pytest.mark.parametrize(("call", "command"), MARKED)
@pytest.mark.usefixtures("folder")
def test_results_are_what_the_command_prints(call: Callable[[], Any], command: str) -> None:
    """The document of a result and the output of `--json` are equal, and it keeps to its type."""
    result = call()
    document = getattr(result, "document", result)
    printed = CliRunner().invoke(app, command.split())

    assert isinstance(document, BaseModel)
    values = document.model_dump(mode="json")
    assert timeless(values) == timeless(json.loads(printed.stdout))
    assert type(document).model_validate_json(json.dumps(values)).model_dump(mode="json") == values


def test_charts_are_those_of_the_command(folder: Path) -> None:
    """`plan --plots` writes what a result draws; two of the charts need the front."""
    result = dsforge.plan(*INPUTS, front=True)
    CliRunner().invoke(app, [*f"plan {FLAGS} --plots charts".split()], catch_exceptions=False)

    written = {path.name: path.read_text("utf-8") for path in (folder / "charts").iterdir()}
    assert written == result.charts()
    assert set(dsforge.plan(*INPUTS).charts()) == {"memory.svg", "time.svg"} < set(written)


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """The functions answer; only commands talk."""
    for name, (call, _) in CASES.items():
        if name != "rehearse":
            call()

    assert capsys.readouterr() == ("", "")
    assert folder.exists()
