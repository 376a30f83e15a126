"""`dsforge train` on plain torch, on real ranks: every strategy gives the losses of one rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from test_parity import check_same, logits
from tiny_job import ds_config, write_job
from tiny_models import write_kind
from torch_jobs import switch, write_torch_job

pytestmark = [pytest.mark.launch, pytest.mark.engine]

# strategy -> ranks, settings, kind of model
STRATEGIES: dict[str, tuple[int, dict[str, Any], str]] = {
    "ddp": (2, {"strategy": "ddp"}, "llama"),
    "ddp-buckets": (2, {"strategy": "ddp", "bucket_mb": 0.01}, "llama"),
    "zero1": (2, {"strategy": "zero1"}, "llama"),
    "fsdp2": (2, {"strategy": "fsdp2"}, "llama"),
    "fsdp2-uneven": (3, {"strategy": "fsdp2", "global_batch_size": 6}, "llama"),
    "fsdp2-gradients": (2, {"strategy": "fsdp2", "sharding": "gradients"}, "llama"),
    "fsdp2-no-sync": (2, {"strategy": "fsdp2", "no_sync": True}, "llama"),
    "fsdp2-hybrid": (
        4,
        {"sharding": "hybrid", "shard_size": 2, "micro_batch_size": 1},
        "llama",
    ),
    "fsdp2-offload": (2, {"strategy": "fsdp2", "cpu_offload": True}, "llama"),
    "tensor": (2, {"strategy": "fsdp2", "tensor_parallel_size": 2}, "llama"),
    "fsdp2-tensor": (4, {"strategy": "fsdp2", "tensor_parallel_size": 2}, "qwen3"),
    "pipeline": (2, {"strategy": "fsdp2", "pipeline_parallel_size": 2}, "llama"),
    "fsdp2-pipeline": (4, {"pipeline_parallel_size": 2}, "mistral"),
    "pipeline-tensor": (
        4,
        {"pipeline_parallel_size": 2, "tensor_parallel_size": 2},
        "llama",
    ),
    "hybrid-tensor": (
        4,
        {"sharding": "hybrid", "shard_size": 1, "tensor_parallel_size": 2},
        "qwen3",
    ),
}
SLOW = (
    "fsdp2-pipeline",
    "pipeline-tensor",
    "ddp-buckets",
    "fsdp2-no-sync",
    "fsdp2-uneven",
    "fsdp2-gradients",
    "hybrid-tensor",
)


class Runs:
    """Models and finished runs, each made once."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def model(self, kind: str) -> Path:
        """The folder of a tiny model."""
        folder = self.home / "models" / kind
        return folder if folder.exists() else write_kind(kind, folder)

    def output(self, name: str, kind: str, count: int, **torch: Any) -> Path:
        """The output folder of six steps on so many ranks."""
        folder = self.home / kind / name
        if not folder.exists():
            write_torch_job(folder, self.model(kind), torch, steps=6)
            ranks.train(folder, count)
        return folder / "output"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs that tests share."""
    return Runs(tmp_path_factory.mktemp("torch"))


def names(every: dict[str, Any], slow: tuple[str, ...]) -> list[Any]:
    """One parameter for each name, some of them slow."""
    return [pytest.param(n, marks=pytest.mark.slow) if n in slow else n for n in every]


@pytest.mark.parametrize("name", names(STRATEGIES, SLOW))
def test_a_strategy_gives_the_losses_of_one_rank(name: str, made: Runs) -> None:
    """Losses, gradient norms and final weights; every rank takes several micro steps."""
    count, settings, kind = STRATEGIES[name]
    total = settings.get("global_batch_size", 8)
    alone = made.output(f"alone-{total}", kind, 1, strategy="ddp", global_batch_size=total)

    check_same(made.output(name, kind, count, **settings), alone)


def test_the_losses_are_those_of_deepspeed(made: Runs, tmp_path: Path) -> None:
    """One definition of the loss, one order of the data, one schedule."""
    config = ds_config(1, gradient_accumulation_steps=4)
    config["optimizer"]["params"]["weight_decay"] = 0.0
    write_job(tmp_path, made.model("llama"), config, steps=6)
    ranks.train(tmp_path, 1)

    check_same(made.output("ddp", "llama", 2, strategy="ddp"), tmp_path / "output")


@pytest.mark.parametrize(
    ("strategy", "precision"),
    [
        ("fsdp2", "bf16"),
        pytest.param("pipeline", "bf16", marks=pytest.mark.slow),
        pytest.param("ddp", "bf16", marks=pytest.mark.slow),
        pytest.param("fsdp2", "fp16", marks=pytest.mark.slow),
        pytest.param("zero1", "fp16", marks=pytest.mark.slow),
    ],
)
def test_half_precision_stays_near(strategy: str, precision: str, made: Runs) -> None:
    """Weights stay in fp32: six steps in 16 bits differ by rounding alone."""
    alone = made.output("alone-8", "llama", 1, strategy="ddp", global_batch_size=8)
    settings = {**STRATEGIES[strategy][1], "precision": precision}
    found = made.output(f"{strategy}-{precision}", "llama", 2, **settings)

    check_same(found, alone, tolerance=2e-2)


def test_what_is_sent_is_counted(made: Runs) -> None:
    """DDP reduces each gradient once a step, whatever the accumulation; 4 bytes a parameter."""
    from safetensors import safe_open

    output = made.output("ddp", "llama", 2, strategy="ddp")
    measured = json.loads((output / "measurement.json").read_text(encoding="utf-8"))
    with safe_open(output / "model/model.safetensors", "pt") as weights:
        parameters = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118

    assert measured["engine"] == "torch"
    assert measured["sent_bytes"] == pytest.approx(4 * parameters, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mistral", "qwen2", "gpt_neox"])
def test_kinds_that_tensor_ranks_share(kind: str, made: Runs) -> None:
    """Windows, biases and tied embeddings; fused queries, keys and values."""
    alone = made.output("alone-8", kind, 1, strategy="ddp", global_batch_size=8)

    check_same(made.output("tensor", kind, 2, tensor_parallel_size=2), alone)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mistral", "gpt_neox"])
def test_kinds_that_are_divided_into_stages(kind: str, made: Runs) -> None:
    """Windows; an embedding with a dropout after it."""
    alone = made.output("alone-8", kind, 1, strategy="ddp", global_batch_size=8)

    check_same(made.output("pipeline", kind, 2, pipeline_parallel_size=2), alone)


def test_tensor_ranks_sum_twice_forward_and_twice_backward(made: Runs) -> None:
    """Four all-reduces of hidden states (64 of 4 bytes) in each of four layers, on two ranks."""
    output = made.output("tensor", "llama", 2, strategy="fsdp2", tensor_parallel_size=2)
    measured = json.loads((output / "measurement.json").read_text(encoding="utf-8"))
    padded = measured["sent_bytes"] / (4 * 4 * 64 * 4)

    assert measured["tokens_per_step"] <= padded <= 8 * 96


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # in peft
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_adapters_train_and_merge(strategy: str, made: Runs, tmp_path: Path) -> None:
    """LoRA in bf16 under recomputation; the merged model is base and adapter together."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    more = {"lora": {"rank": 8, "alpha": 16, "dropout": 0.0}, "gradient_checkpointing": True}
    settings = {"strategy": strategy, "learning_rate": 1e-2, "precision": "bf16"}
    base = made.model("llama")
    write_torch_job(tmp_path, base, settings, steps=6, **more)
    ranks.train(tmp_path, 2)
    curve = runs.figures(tmp_path / "output", "loss")
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tokens = torch.arange(2, 40).reshape(2, 19)
    before = plain(tokens).logits
    adapted = PeftModel.from_pretrained(plain, tmp_path / "output/adapter")(tokens).logits

    assert curve[-1] < curve[0] - 0.05
    assert (adapted - before).abs().max() > 1e-2
    torch.testing.assert_close(logits(tmp_path / "output"), adapted, atol=5e-2, rtol=0)


PATHS: list[tuple[str, ...]] = [
    ("ddp", "fsdp2", "zero1"),
    ("zero1", "fsdp2-tensor", "fsdp2-hybrid", "ddp"),
    ("deepspeed-2", "fsdp2", "deepspeed-3"),
    ("ddp", "deepspeed-1", "zero1"),
    ("deepspeed-0", "tensor", "deepspeed-0"),
    ("pipeline", "ddp", "pipeline-tensor"),
    ("deepspeed-1", "pipeline", "deepspeed-2"),
]
STEPS = 8


def go_on(folder: Path, model: Path, name: str, steps: int) -> str:
    """What a run says that goes on under an engine up to a step."""
    path = folder / "train.yaml"
    if name.startswith("deepspeed"):
        config = ds_config(int(name[-1]))
        config["optimizer"]["params"]["weight_decay"] = 0.0
        if not path.exists():
            write_job(folder, model, config, steps=STEPS)
        job = json.loads(path.read_text())
        job.pop("torch", None)
        path.write_text(json.dumps({**job, "deepspeed_config": "ds_config.json"}))
        (folder / "ds_config.json").write_text(json.dumps(config))
        count = 2
    else:
        count, settings, _ = STRATEGIES[name]
        if not path.exists():
            write_torch_job(folder, model, settings, steps=STEPS)
        switch(path, settings)
    kept = ["--steps", str(steps)] if steps < STEPS else []
    return ranks.train(folder, count, "--no-export", *kept)


@pytest.mark.parametrize(
    "path", [PATHS[0], *(pytest.param(p, marks=pytest.mark.slow) for p in PATHS[1:])], ids="-".join
)
def test_a_run_goes_on_under_another_engine(
    path: tuple[str, ...], made: Runs, tmp_path: Path
) -> None:
    """Weights, moments, schedule and data order: the curve of a run that never stopped."""
    settings = {"strategy": "ddp"}
    write_torch_job(tmp_path / "whole", made.model("llama"), settings, schedule="constant")
    ranks.train(tmp_path / "whole", 1, "--no-export")
    write_torch_job(tmp_path / "parts", made.model("llama"), settings, schedule="constant")
    ends = [STEPS * (number + 1) // len(path) for number in range(len(path))]
    for name, end in zip(path, ends, strict=True):
        go_on(tmp_path / "parts", made.model("llama"), name, end)

    whole, parts = (runs.figures(tmp_path / n / "output", "loss") for n in ("whole", "parts"))
    assert parts == pytest.approx(whole, abs=2e-4)


@pytest.mark.parametrize("name", names(STRATEGIES, tuple(STRATEGIES)[1:]))
def test_the_same_ranks_go_on_bit_for_bit(name: str, made: Runs, tmp_path: Path) -> None:
    """Losses after a resume are those of a run that never stopped, to the last digit."""
    count, settings, kind = STRATEGIES[name]
    for folder, stops in (("whole", ()), ("parts", ("3", "5"))):
        write_torch_job(tmp_path / folder, made.model(kind), settings, schedule="constant")
        for steps in (*stops, "8"):
            ranks.train(tmp_path / folder, count, "--no-export", "--steps", steps)

    whole, parts = (runs.figures(tmp_path / n / "output", "loss") for n in ("whole", "parts"))
    assert parts == whole


def test_deepspeed_is_not_needed(made: Runs, tmp_path: Path) -> None:
    """Where it is not installed a `torch` block trains, validates and exports."""
    (tmp_path / "sitecustomize.py").write_text('import sys\nsys.modules["deepspeed"] = None\n')
    data = {"train": "data.jsonl", "validation_fraction": 0.2}
    write_torch_job(
        tmp_path / "run", made.model("llama"), {"strategy": "fsdp2"}, steps=2, data=data
    )
    runs.succeeded(runs.alone("train.yaml"), tmp_path / "run", PYTHONPATH=str(tmp_path))

    assert len(runs.figures(tmp_path / "run/output", "validation_loss")) == 1
    assert (tmp_path / "run/output/model/model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2", "pipeline"])
def test_validation_is_that_of_one_rank(strategy: str, made: Runs, tmp_path: Path) -> None:
    """Ranks share the held-out samples; one of them may have none in the last pass."""
    data = {"train": "data.jsonl", "validation_fraction": 0.2}
    for name, count in (("one", 1), ("two", 2)):
        settings = STRATEGIES[strategy][1] if count > 1 else {"strategy": "ddp"}
        write_torch_job(tmp_path / name, made.model("llama"), settings, steps=2, data=data)
        ranks.train(tmp_path / name, count, "--no-export")

    one, two = (runs.figures(tmp_path / n / "output", "validation_loss") for n in ("one", "two"))
    assert two == pytest.approx(one, abs=2e-4)


@pytest.mark.slow
def test_sigterm_saves_and_the_run_goes_on(made: Runs, tmp_path: Path) -> None:
    """Ranks that get SIGTERM finish the step and save; the next start goes on from there."""
    write_torch_job(tmp_path, made.model("llama"), {"strategy": "fsdp2"}, steps=10_000)
    processes = ranks.begun(tmp_path, 2)
    runs.wait_for_lines(tmp_path, 1, lambda: processes[0].exitcode)
    for process in processes:
        process.terminate()
    codes, _ = ranks.outcome(tmp_path, processes)
    done = len(runs.figures(tmp_path / "output", "loss"))
    said = ranks.train(tmp_path, 2, "--no-export", "--steps", str(done + 1))

    assert codes == [0, 0]
    assert f"global_step{done} after step {done}" in said
    assert len(runs.figures(tmp_path / "output", "loss")) == done + 1
