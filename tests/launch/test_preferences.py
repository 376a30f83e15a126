"""DPO: two ranks train what one rank trains, and a step is what the formula says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from tiny_job import ds_config, pairs, write_job

from dsforge.train.data.samples import indices_of_step
from dsforge.train.run.references import FILE as REFERENCES

pytestmark = [pytest.mark.launch, pytest.mark.engine]
BETA = 0.5
TORCH = {"precision": "fp32", "micro_batch_size": 2, "learning_rate": 3e-2, "optimizer": "sgd"}


def preferences(count: int) -> list[dict[str, Any]]:
    """The right answers to questions, and answers to other questions; texts and messages."""
    rows: list[dict[str, Any]] = []
    right = pairs(count)
    for number, row in enumerate(right):
        wrong = right[(number * 7 + 3) % count]["completion"]
        if number % 2:
            question = [{"role": "user", "content": row["prompt"]}]
            chosen, rejected = (
                [{"role": "assistant", "content": text}] for text in (row["completion"], wrong)
            )
            rows.append({"prompt": question, "chosen": chosen, "rejected": rejected})
        else:
            rows.append({"prompt": row["prompt"], "chosen": row["completion"], "rejected": wrong})
    return rows


def run(folder: Path, model: Path, config: dict[str, Any], count: int, **more: Any) -> str:
    """What a run of eight steps on so many ranks says."""
    job = {"preference": {"kind": "dpo", "beta": BETA}, **more}
    write_job(folder, model, config, **job)
    lines = "".join(json.dumps(row) + "\n" for row in preferences(48))
    (folder / "data.jsonl").write_text(lines, encoding="utf-8")
    return ranks.train(folder, count)


def by_hand(model: Path) -> dict[str, list[float]]:
    """Log probabilities of every chosen and rejected answer, by plain torch, row by row."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    words, found = AutoTokenizer.from_pretrained(model), {"chosen": [], "rejected": []}
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for row in preferences(48):
        for side, values in found.items():
            asked = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][0]["content"]
            said = row[side] if isinstance(row[side], str) else row[side][0]["content"]
            head = words(f"<|user|>{asked}</s><|assistant|>", add_special_tokens=False)["input_ids"]
            whole = words(f"<|user|>{asked}</s><|assistant|>{said}</s>", add_special_tokens=False)
            ids = torch.tensor(whole["input_ids"][:96])[None]
            with torch.no_grad():
                scores = policy(input_ids=ids).logits[0, :-1].log_softmax(-1)
            each = scores.gather(1, ids[0, 1:, None])[:, 0]
            values.append(float(each[len(head) - 1 :].sum()))
    return found


@pytest.mark.parametrize(
    "stage", [2, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (0, 1, 3))]
)
@pytest.mark.parametrize("lora", [None, {"rank": 8, "alpha": 16}], ids=["full", "lora"])
def test_two_ranks_train_what_one_trains(
    stage: int, lora: dict[str, Any] | None, tiny_llama: Path, tmp_path: Path
) -> None:
    """Losses, margins and accuracies under each ZeRO stage are those of one rank."""
    rate = {"type": "AdamW", "params": {"lr": 3e-2 if lora else 3e-3, "torch_adam": True}}
    one = ds_config(0, gradient_accumulation_steps=4, optimizer=rate)
    run(tmp_path / "one", tiny_llama, one, 1, lora=lora)
    run(tmp_path / "two", tiny_llama, ds_config(stage, optimizer=rate), 2, lora=lora)
    for name in ("loss", "reward_margin", "reward_accuracy"):
        alone, both = (runs.figures(tmp_path / n / "output", name) for n in ("one", "two"))
        assert both == pytest.approx(alone, abs=1e-3), name
        assert abs(alone[-1] - alone[0]) > 0.005, name
    assert runs.figures(tmp_path / "one/output", "loss")[0] == pytest.approx(0.693147, abs=1e-5)


def test_a_step_is_what_the_formula_says(tiny_llama: Path, tmp_path: Path) -> None:
    """Loss, margin and accuracy of the fifth step, from the weights after four, by plain torch.

    The run that resumes for it reads the references of the first launch.
    """
    import numpy as np

    more = {"schedule": "constant", "warmup_steps": 0}
    folder = tmp_path / "run"
    first = run(folder, tiny_llama, ds_config(2), 2, **more, steps=4)
    shutil.copytree(folder / "output/model", tmp_path / "after")
    kept = (folder / "output" / REFERENCES).stat().st_mtime_ns
    second = ranks.train(folder, 2, "--steps", "5")
    base, after = by_hand(tiny_llama), by_hand(tmp_path / "after")
    batch = indices_of_step(42, 4, count=48, global_batch_size=8)
    chosen, rejected = (
        np.array([after[side][at] - base[side][at] for at in batch]) for side in base
    )
    margins = BETA * (chosen - rejected)

    assert "left out" not in first + second
    assert "resumed from" in second
    assert (folder / "output" / REFERENCES).stat().st_mtime_ns == kept
    expected = {
        "loss": float(np.log1p(np.exp(-margins)).mean()),
        "reward_margin": float(margins.mean()),
        "reward_accuracy": float((margins > 0).mean()),
    }
    assert abs(expected["loss"] - np.log(2)) > 0.01
    for name, value in expected.items():
        assert runs.figures(folder / "output", name)[-1] == pytest.approx(value, abs=1e-3), name


@pytest.mark.parametrize(
    "strategy",
    ["fsdp2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddp", "zero1"))],
)
@pytest.mark.parametrize("lora", [None, {"rank": 8, "alpha": 16}], ids=["full", "lora"])
def test_plain_torch_trains_the_same(
    strategy: str, lora: dict[str, Any] | None, tiny_llama: Path, tmp_path: Path
) -> None:
    """Losses of two ranks of torch's own strategies are those of one rank of DeepSpeed."""
    config = ds_config(0, gradient_accumulation_steps=4)
    config["optimizer"] = {"type": "SGD", "params": {"lr": 3e-2}}
    run(tmp_path / "one", tiny_llama, config, 1, lora=lora)
    torch = {**TORCH, "strategy": strategy, "gradient_accumulation_steps": 2}
    run(tmp_path / "two", tiny_llama, {}, 2, lora=lora, torch=torch, deepspeed_config=None)
    for name in ("loss", "reward_margin"):
        alone, both = (runs.figures(tmp_path / n / "output", name) for n in ("one", "two"))
        assert both == pytest.approx(alone, abs=1e-3), name


def test_references_computed_before_are_those_of_each_step(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """With adapters, `precomputed` and `adapters_off` give the same losses; validation, too."""
    losses = {}
    for reference in ("precomputed", "adapters_off"):
        preference = {"kind": "dpo", "beta": BETA, "reference": reference}
        data = {"train": "data.jsonl", "validation_fraction": 0.15}
        more = {"lora": {"rank": 8, "alpha": 16}, "preference": preference, "data": data}
        run(tmp_path / reference, tiny_llama, ds_config(3), 2, **more)
        output = tmp_path / reference / "output"
        losses[reference] = [
            *runs.figures(output, "loss"),
            *runs.figures(output, "validation_loss"),
        ]
        assert (output / REFERENCES).is_file() == (reference == "precomputed")
        assert (output / "adapter/adapter_model.safetensors").is_file()

    assert len(losses["precomputed"]) == 9
    assert losses["precomputed"] == pytest.approx(losses["adapters_off"], abs=1e-4)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"packing": True}, "packing=true cannot be combined with preference=dpo"),
        ({"data": {"train": "data.jsonl", "shape": "messages"}}, "`data.shape` (=messages)"),
        (
            {"preference": {"kind": "dpo", "reference": "adapters_off"}},
            "`preference.reference` (=adapters_off) requires `lora`",
        ),
        ({"preference": {"kind": "dpo", "beta": -1}}, "preference.beta"),
    ],
)
def test_what_preferences_do_not_go_with_is_refused(
    more: dict[str, Any], words: str, tiny_llama: Path, tmp_path: Path
) -> None:
    """With the value, before any step."""
    with pytest.raises(AssertionError) as failed:
        run(tmp_path / "run", tiny_llama, ds_config(0, gradient_accumulation_steps=4), 1, **more)
    assert words in str(failed.value)
    assert "Traceback" not in str(failed.value)
