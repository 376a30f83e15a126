"""The same run through the Hugging Face Trainer with DeepSpeed, written as its documentation says.

Started by every rank. Takes one JSON file (see `sides.py`) and writes what was measured beside it:
the Unix time at which each step ended, its loss, the tokens of each micro batch without padding,
and the peak resident memory, for each rank.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

IGNORED = -100


def samples(rows: list[dict[str, Any]], tokenizer: Any, limit: int) -> list[dict[str, Any]]:
    """Token ids of each conversation, cut at the limit; the loss counts the answer only."""
    made = []
    for row in rows:
        messages = row["messages"]
        whole = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
        prompt = tokenizer.apply_chat_template(
            messages[:-1], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        labels = [IGNORED] * len(prompt) + whole[len(prompt) :]
        ids = whole[:limit]
        made.append({"input_ids": ids, "labels": labels[:limit], "length": len(ids)})
    return made


class Collator:
    """Batches padded to their longest sample, rounded up to a multiple of 8; counts real tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The tensors of one micro batch."""
        import torch

        self.tokens.append(sum(len(row["input_ids"]) for row in rows))
        inputs = [{"input_ids": row["input_ids"]} for row in rows]
        batch = dict(self.tokenizer.pad(inputs, pad_to_multiple_of=8, return_tensors="pt"))
        width = batch["input_ids"].shape[1]
        padded = [row["labels"] + [IGNORED] * (width - len(row["labels"])) for row in rows]
        batch["labels"] = torch.tensor(padded)
        return batch


class Clock(TrainerCallback):
    """Remembers when each step ended and what it lost."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.losses: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Called by the Trainer after the optimizer."""
        self.ends.append(time.time())

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        """Called by the Trainer after each step."""
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))


def peak_bytes() -> int:
    """Peak resident bytes of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def arguments(case: dict[str, Any], output: Path) -> TrainingArguments:
    """What the case asks, in the Trainer's own words; nothing saved, nothing reported."""
    return TrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=case["micro_batch_size"],
        max_steps=case["steps"],
        learning_rate=case["learning_rate"],
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        weight_decay=0.0,
        seed=42,
        use_cpu=case["device"] == "cpu",
        bf16=case["precision"] == "bf16",
        deepspeed=case["ds_config"],
        train_sampling_strategy=case["sampling"],
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )


def main(path: Path) -> None:
    """Train as the case says and write what was measured."""
    case = json.loads(path.read_text(encoding="utf-8"))
    settings = arguments(case, path.parent / "out")  # first: loading looks for its ZeRO-3
    tokenizer = AutoTokenizer.from_pretrained(case["model"])
    model = AutoModelForCausalLM.from_pretrained(case["model"], dtype=case["dtype"])
    model.config.use_cache = False
    lines = Path(case["data"]).read_text(encoding="utf-8").splitlines()
    rows = samples([json.loads(line) for line in lines], tokenizer, case["sequence_length"])
    clock, collator = Clock(), Collator(tokenizer)
    trainer = Trainer(
        model=model,
        args=settings,
        train_dataset=rows,
        data_collator=collator,
        callbacks=[clock],
    )
    trainer.train()
    found = {
        "ends": clock.ends,
        "losses": clock.losses,
        "tokens": collator.tokens,
        "peak_bytes": peak_bytes(),
    }
    rank = os.environ.get("RANK", "0")
    (path.parent / f"rank{rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(next(Path(word) for word in sys.argv[1:] if word.endswith(".json")))
