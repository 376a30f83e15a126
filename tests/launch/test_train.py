"""`dsforge train` on two real ranks: loss, stages, resume, stop; ZeRO-2 under the launcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from tiny_job import ds_config, write_job

pytestmark = [pytest.mark.launch, pytest.mark.engine]
STAGES = (0, 1, 2, 3)
LAUNCHED = 2


@pytest.fixture(scope="module")
def outputs(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The output folders of the same job under ZeRO 0 to 3; each holds 8 steps.

    ZeRO-2 starts as users start it, the others from the process that has imported everything.
    """
    found: dict[int, Path] = {}
    for stage in STAGES:
        more: dict[str, Any] = {"checkpoint_every": 4} if stage == LAUNCHED else {}
        job = write_job(
            tmp_path_factory.mktemp(f"zero{stage}"), tiny_llama, ds_config(stage), **more
        )
        if stage == LAUNCHED:
            runs.succeeded(runs.deepspeed("train.yaml"), job.parent)
        else:
            ranks.train(job.parent, 2)
        found[stage] = job.parent / "output"
    return found


def test_the_loss_falls(outputs: dict[int, Path]) -> None:
    """Eight steps bring the loss of a tiny model down by more than noise."""
    curve = runs.figures(outputs[2], "loss")

    assert curve[-1] < curve[0] - 0.3


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_zero_stage_gives_the_same_losses(outputs: dict[int, Path], stage: int) -> None:
    """ZeRO changes where state lives, not what is computed: within 1e-2 at each step."""
    plain = runs.figures(outputs[0], "loss")

    assert runs.figures(outputs[stage], "loss") == pytest.approx(plain, abs=1e-2)


@pytest.mark.parametrize("stage", STAGES)
def test_the_weights_open_in_transformers(outputs: dict[int, Path], stage: int) -> None:
    """The exported model gives the logits of the ZeRO-0 run."""
    import torch
    from transformers import AutoModelForCausalLM

    tokens = torch.arange(2, 40).reshape(2, 19)
    found = AutoModelForCausalLM.from_pretrained(outputs[stage] / "model")(tokens).logits
    expected = AutoModelForCausalLM.from_pretrained(outputs[0] / "model")(tokens).logits

    torch.testing.assert_close(found, expected, atol=2e-2, rtol=0)


def test_a_measurement_counts_bytes_and_seconds(outputs: dict[int, Path]) -> None:
    """ZeRO-0 sends one all-reduce of the gradients a step: 4 bytes a parameter on two ranks."""
    from safetensors import safe_open

    measured = json.loads((outputs[0] / "measurement.json").read_text(encoding="utf-8"))
    with safe_open(outputs[0] / "model" / "model.safetensors", "pt") as weights:
        parameters = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118

    assert measured["sent_bytes"] == pytest.approx(4 * parameters, rel=0.01)
    assert len(measured["step_s"]) == 8 - measured["warmup_steps"]
    assert measured["memory"]["host_bytes"] > 10**8


def test_resume_goes_on_exactly(outputs: dict[int, Path]) -> None:
    """A run that is taken back to step 4 gives the same last four losses to the last digit."""
    output = outputs[2]
    undisturbed = runs.figures(output, "loss")
    back = ["--resume", "output/checkpoints/global_step4", "--overwrite", "--no-export"]
    ranks.train(output.parent, 2, *back)

    assert runs.figures(output, "loss") == undisturbed


def test_sigterm_saves_a_checkpoint_and_ends(tiny_llama: Path, tmp_path: Path) -> None:
    """Ranks that get SIGTERM finish the step, save, and export nothing."""
    write_job(tmp_path, tiny_llama, ds_config(2), steps=100_000)
    processes = ranks.begun(tmp_path, 2)
    runs.wait_for_lines(tmp_path, 1, lambda: processes[0].exitcode)
    for process in processes:  # as the launcher of a node does
        process.terminate()
    codes, _ = ranks.outcome(tmp_path, processes)

    assert codes == [0, 0]
    saved = list((tmp_path / "output" / "checkpoints").glob("global_step*/dsforge.json"))
    assert len(saved) == 1
    step = json.loads(saved[0].read_text())["step"]
    assert step == len(runs.figures(tmp_path / "output", "loss"))
    assert not (tmp_path / "output" / "model").exists()


def test_bad_rows_stop_the_run_before_it_begins(tiny_llama: Path, tmp_path: Path) -> None:
    """Every bad row is named with its line, once, and nothing is written."""
    write_job(tmp_path, tiny_llama, ds_config(2))
    (tmp_path / "data.jsonl").write_text('{"prompt": "a"}\n{"text": "fine"}\nnot json\n')
    done = runs.finished(runs.deepspeed("train.yaml"), tmp_path)

    assert done.returncode == 1
    assert done.stderr.count("data.jsonl:1: `completion` must be text") == 1
    assert done.stderr.count("data.jsonl:3: is not JSON") == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "output").exists()
