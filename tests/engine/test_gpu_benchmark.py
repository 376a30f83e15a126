"""`benchmarks/gpu.py`: its lists without torch, and the whole way on CPU ranks with --dry-run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dsforge.constraints import check
from dsforge.planner import price
from dsforge.reading.cluster import cluster_of
from dsforge.reading.source import Source
from dsforge.validate.cases import case_of, counter_of
from dsforge.validate.table import parse_table

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from gpu import configurations, published, ranks, records, wheels  # noqa: E402

PLAIN, LORA, BEYOND = "tiny-llama-3-8b/zero2", "tiny-qwen2.5-0.5b/zero0", "mbs2048x1"


def command(*options: str) -> list[str]:
    """The benchmark on CPU ranks."""
    return [sys.executable, str(BENCHMARKS / "gpu.py"), *options]


def finished(*options: str) -> subprocess.CompletedProcess[str]:
    """A whole run of the benchmark."""
    return subprocess.run(
        command(*options), capture_output=True, text=True, timeout=400, check=False
    )


def written(out: Path) -> dict[str, dict[str, Any]]:
    """The records of a result file by name, up to its first two parts."""
    found = json.loads(out.read_text(encoding="utf-8"))["records"]
    return {"/".join(record["name"].split("/")[:2]): record for record in found}


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for path in lists for word in path.read_text().split()]


def kill_a_rank(run: subprocess.Popen[str], name: str) -> None:
    """SIGKILL for one rank of a configuration, as the kernel sends it when memory ends."""
    assert run.stdout is not None
    while name not in run.stdout.readline():
        assert run.poll() is None
    end = time.monotonic() + 30
    while not (found := children(run.pid)):
        assert time.monotonic() < end, "no rank was started"
    time.sleep(0.3)
    os.kill(found[-1], signal.SIGKILL)


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result file of a run of three configurations whose first one lost a rank."""
    out = tmp_path_factory.mktemp("gpu") / "gpu_dry_202611.json"
    only = ("--only", PLAIN, "--only", LORA, "--only", BEYOND)
    run = subprocess.Popen(
        command("--dry-run", "--out", str(out), *only), stdout=subprocess.PIPE, text=True
    )
    kill_a_rank(run, PLAIN)
    printed, _ = run.communicate(timeout=300)
    assert run.returncode == 0, printed
    out.with_suffix(".txt").write_text(printed, encoding="utf-8")
    return out


@pytest.mark.engine
def test_a_rank_that_is_killed_is_a_record_and_not_the_end(dry_run: Path) -> None:
    """The record names signal and phase; the configurations behind it are measured."""
    found = written(dry_run)

    assert found[PLAIN]["outcome"] == "crashed"
    assert "SIGKILL" in found[PLAIN]["error"]
    assert found[LORA]["outcome"] == "measured"


@pytest.mark.engine
def test_a_record_is_complete_in_itself(dry_run: Path) -> None:
    """Versions, hardware, command, plan, ds_config, prediction and measurement."""
    record = written(dry_run)[LORA]
    measured = record["measured"]

    assert record["versions"]["deepspeed"] != "absent"
    assert record["hardware"]["gpus"] == 2
    assert record["command"].startswith("python benchmarks/gpu.py --dry-run")
    assert record["plan"]["ds_config"]["train_batch_size"] == 2
    assert record["plan"]["workload"]["lora"]["rank"] == 4
    assert record["predicted"]["time"]["step_s"]["likely"] > 0
    assert len(measured["step_s"]) >= 5
    assert measured["peak"]["device_bytes"] > measured["context_bytes"] > 0
    assert measured["losses"][-1] < measured["losses"][0]  # it trains
    assert record["dry_run"] is True


@pytest.mark.engine
def test_running_out_of_memory_is_a_record_with_its_prediction(dry_run: Path) -> None:
    """The allocator's refusal, the phase, and that it was foreseen."""
    record = written(dry_run)["tiny-llama-2-7b/zero0"]

    assert record["outcome"] == "oom"
    assert "allocate memory" in record["error"]
    assert record["measured"]["phase"] == "step"
    low = record["predicted"]["memory"]["allocated_bytes"]["low"]
    assert low > record["plan"]["cluster"]["gpu"]["memory_bytes"]


@pytest.mark.engine
def test_predicted_stands_beside_measured(dry_run: Path) -> None:
    """A line for each configuration, the errors, the ceilings."""
    printed = dry_run.with_suffix(".txt").read_text(encoding="utf-8")

    assert "bf16 product" in printed
    assert "step time: |error| median" in printed
    assert "3 configurations: 1 crashed, 1 measured, 1 oom" in printed
    assert "left] tiny-qwen2.5-0.5b" in printed


@pytest.mark.engine
def test_what_is_settled_is_not_measured_again(dry_run: Path) -> None:
    """Measured and out-of-memory records stay as they are; nothing heavy is even imported."""
    before = dry_run.read_bytes()
    again = finished("--dry-run", "--out", str(dry_run), "--only", LORA, "--only", BEYOND)

    assert "2 of 2 are measured already" in again.stdout
    assert "importing" not in again.stdout
    assert dry_run.read_bytes() == before


@pytest.mark.engine
def test_the_table_is_one_that_validate_reads(dry_run: Path) -> None:
    """Columns and cells pass its reader; a dry run says that it is no fair test."""
    text = dry_run.with_suffix(".csv").read_text(encoding="utf-8")
    rows = parse_table(text, "gpu.csv")

    assert tuple(text.splitlines()[0].split(",")) == published.COLUMNS
    assert [row.tag for row in rows] == ["incomplete"]
    assert rows[0].peak_mem_gib is not None
    assert rows[0].step_time_s is not None


@pytest.mark.engine
@pytest.mark.slow
def test_a_crashed_configuration_is_tried_again_with_all_others(dry_run: Path) -> None:
    """The whole list, in fresh interpreters instead of forked ones for one of them."""
    fresh = finished("--dry-run", "--out", str(dry_run), "--only", PLAIN, "--start", "spawn")
    rest = finished("--dry-run", "--out", str(dry_run))
    found = written(dry_run)

    assert "tiny-llama-3-8b/zero2" in fresh.stdout
    assert rest.returncode == 0, rest.stderr
    assert len(json.loads(dry_run.read_text())["records"]) == len(configurations.DRY_RUN)
    assert {record["outcome"] for record in found.values()} == {"measured", "oom"}


@pytest.mark.engine
@pytest.mark.slow
def test_a_run_ends_in_time(tmp_path: Path) -> None:
    """What there is no time for is recorded as skipped, with its prediction."""
    out = tmp_path / "out.json"
    done = finished("--dry-run", "--out", str(out), "--minutes", "0.02")
    found = written(out)

    assert done.returncode == 0
    assert {record["outcome"] for record in found.values()} == {"skipped"}
    assert all("time" in record["error"] for record in found.values())


def cluster(gpu: str, gpus: int) -> Any:
    """One node of a card."""
    return cluster_of(Source("test", {"gpu": gpu, "gpus_per_node": gpus, "nodes": 1}))[0]


@pytest.mark.parametrize("gpus", [1, 8])
def test_every_configuration_is_legal_and_the_list_covers_what_was_asked(gpus: int) -> None:
    """The rules of the engine; ZeRO stages, offload, recomputation, LoRA, lengths, sizes."""
    cases = [
        configurations.case_of(c, cluster("h100-80gb", gpus)) for c in configurations.CONFIGURATIONS
    ]
    listed = configurations.CONFIGURATIONS

    assert not [
        problem
        for case in cases
        for problem in check(case.model, case.cluster, case.workload, case.priced.strategy)
    ]
    assert len({c.name for c in listed}) == len(listed)
    assert {c.zero_stage for c in listed} == {0, 1, 2, 3}
    assert {c.offload for c in listed} == {"none", "optimizer", "everything"}
    assert {1024, 32768} <= {c.sequence_length for c in listed}


@pytest.mark.parametrize("gpu", ["rtx-4090", "a100-40gb", "h100-80gb", "h200-141gb"])
def test_enough_configurations_should_fit(gpu: str) -> None:
    """At least 24 on every card from 24 GB on; what should not fit comes last."""
    on = cluster(gpu, 1)
    cases = configurations.ordered(
        [configurations.case_of(c, on) for c in configurations.CONFIGURATIONS]
    )
    fitting = [configurations.fits_device(case) for case in cases]

    assert sum(fitting) >= 24
    assert fitting == sorted(fitting, reverse=True)


def measured_record(
    configuration: configurations.Configuration = configurations.CONFIGURATIONS[0],
) -> records.Record:
    """A record as a GPU run makes it, from reports of two ranks."""
    gpu = "h100-80gb"
    case = configurations.case_of(configuration, cluster(gpu, 2))
    peaks = [
        {"allocated_bytes": 40 << 30, "reserved_bytes": 42 << 30, "device_bytes": 43 << 30},
        {"allocated_bytes": 41 << 30, "reserved_bytes": 41 << 30, "device_bytes": 44 << 30},
    ]
    reports = tuple(
        {"phase": "done", "warmup_steps": 2, "step_s": [9.0, 1.0, 0.5, 0.3, 0.4], "peak": peak}
        for peak in peaks
    )
    facts = {
        "versions": {"torch": "2", "deepspeed": "0.19", "dsforge": "0"},
        "hardware": {"gpu": gpu, "gpus": 2},
        "command": "",
        "dry_run": False,
    }
    ended = ranks.Ended("measured", "", reports, 10.0)
    return records.record_of(case, ended, facts=facts, ds_config={}, notes=())


def test_the_worst_rank_counts_and_warm_up_does_not() -> None:
    """Peaks are the largest of any rank, the step the median of counted ones."""
    record = measured_record()

    assert [record.measured_bytes(name) for name in records.COUNTERS] == [
        *(41 << 30, 42 << 30, 44 << 30)
    ]
    assert record.step_s == 0.4


def test_a_measured_record_is_scored_once_for_each_counter() -> None:
    """Three rows that validate understands: counter, sharding and shape; one of them has time."""
    rows = parse_table(published.csv_text((measured_record(),), "gpu-h100"), "gpu.csv")
    case = case_of(rows[0])

    assert [counter_of(row) for row in rows] == ["allocated", "reserved", "device"]
    assert [row.tag for row in rows] == [None] * 3
    assert [row.step_time_s for row in rows] == [0.4, None, None]
    assert not isinstance(case, str)
    assert case.strategy.zero_stage == 1
    assert (case.model.layers, case.strategy.micro_batch_size) == (10, 2)


@pytest.mark.parametrize("configuration", configurations.CONFIGURATIONS, ids=lambda c: c.name)
def test_a_row_says_enough_to_predict_it_again(configuration: Any) -> None:
    """What validate predicts from the columns is what the record has, or the row says it cannot."""
    record = measured_record(configuration)
    row = parse_table(published.csv_text((record,), "gpu-h100"), "gpu.csv")[0]
    case = case_of(row)
    assert not isinstance(case, str)
    again = price(*case)

    if row.tag is None:
        assert again.memory.allocated_bytes.likely == pytest.approx(
            record.predicted_bytes("allocated"), rel=0.003
        )
    if row.tag is None and row.step_time_s is not None:
        likely = record.predicted["time"]["step_s"]["likely"]
        assert again.time.step_s.likely == pytest.approx(likely, rel=0.03)


def test_results_of_another_machine_are_not_mixed(tmp_path: Path) -> None:
    """A file of two cards would tell nothing about either."""
    path = tmp_path / "out.json"
    records.write_results(path, records.Results().with_record(measured_record()))

    assert records.read_results(path, {"gpu": "h100-80gb", "gpus": 2}).records
    with pytest.raises(Exception, match="was measured on 2 x h100-80gb"):
        records.read_results(path, {"gpu": "h200-141gb", "gpus": 2})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--list", "--gpu", "abacus"), "'abacus' is not in the catalog"),
        (("--dry-run", "--only", "nothing"), "no configuration has nothing in its name"),
        (("--wheels", "/nowhere"), "holds no wheels; make it with --pack"),
        (("--minutes", "0"), "invalid"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_mistakes_are_explained(options: tuple[str, ...], words: str) -> None:
    """A message and a failing exit code, no traceback."""
    done = finished(*options)

    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_gpu_the_benchmark_says_what_to_do() -> None:
    """No GPU is no crash."""
    done = finished()
    if done.returncode == 0:
        pytest.skip("this machine has a GPU")

    assert "no NVIDIA GPU here" in done.stderr
    assert "--dry-run" in done.stderr


def test_the_list_needs_no_torch(tmp_path: Path) -> None:
    """`--list` works where only dsforge's own packages are."""
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')\n")
    done = subprocess.run(
        command("--list", "--gpu", "h100-80gb"),
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "llama-3-8b/zero2/s4096/mbs1x1/recompute" in done.stdout
    assert "should run out of memory" in done.stdout


def test_packages_are_packed_without_what_belongs_to_the_machine() -> None:
    """Required, but never downloaded: torch and transformers."""
    names = {wheels._name(requirement) for requirement in wheels.requirements()}

    assert {"torch", "transformers", "deepspeed", "pydantic", "jinja2"} <= names
    assert {"torch", "transformers"} <= wheels.OF_THE_MACHINE
    assert "click" not in names
