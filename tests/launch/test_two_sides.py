"""T5: two ranks train what one rank trains, and the export is what transformers loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import ranks
import runs
from tiny_job import ds_config, pairs, tokenizer, write_job

import dsforge

pytestmark = [pytest.mark.launch, pytest.mark.engine]
STEPS = 8


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny T5."""
    return write_tiny_t5(tmp_path_factory.mktemp("t5"), "t5")


def write_tiny_t5(folder: Path, kind: str) -> Path:
    """A tiny model of T5's family with random weights; its tokenizer has no chat template."""
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    words = tokenizer([f"{row['prompt']} {row['completion']}" for row in pairs(64)])
    words.chat_template = None
    words.save_pretrained(folder)
    torch.manual_seed(7)
    config = AutoConfig.for_model(
        kind,
        vocab_size=384,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
    return folder


def by_hand(model: Path, limit: int) -> tuple[float, int]:
    """Summed loss and count of the answer tokens of all rows, by transformers, row by row."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    words = AutoTokenizer.from_pretrained(model)
    network = AutoModelForSeq2SeqLM.from_pretrained(model, dtype=torch.float32).eval()
    total, count = 0.0, 0
    for row in pairs(64):
        asked, said = (
            torch.tensor([[*words(row[side])["input_ids"], words.eos_token_id][:limit]])
            for side in ("prompt", "completion")
        )
        with torch.no_grad():
            loss = network(input_ids=asked, labels=said).loss
        total, count = total + float(loss) * said.shape[1], count + said.shape[1]
    return total, count


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("t5", 3),
        *(pytest.param("t5", stage, marks=pytest.mark.slow) for stage in (0, 1, 2)),
        *(pytest.param(kind, 3, marks=pytest.mark.slow) for kind in ("mt5", "umt5")),
    ],
)
def test_two_ranks_train_what_one_trains(kind: str, stage: int, tmp_path: Path) -> None:
    """Losses under each ZeRO stage are those of one rank; the export has the loss of validation."""
    model = write_tiny_t5(tmp_path / "model", kind)
    one = ds_config(0, gradient_accumulation_steps=4)
    for name, config, count in (("one", one, 1), ("two", ds_config(stage), 2)):
        data = {"train": "data.jsonl", "validation": "data.jsonl"}
        write_job(tmp_path / name, model, config, data=data)
        ranks.train(tmp_path / name, count)
    alone, both = (
        [*runs.figures(folder, "loss"), *runs.figures(folder, "validation_loss")]
        for folder in (tmp_path / "one/output", tmp_path / "two/output")
    )
    total, count = by_hand(tmp_path / "two/output/model", limit=96)
    card = (tmp_path / "two/output/model/README.md").read_text(encoding="utf-8")

    assert len(both) == STEPS + 1
    assert both == pytest.approx(alone, abs=1e-3)
    assert alone[STEPS - 1] < alone[0] - 0.1
    assert both[-1] == pytest.approx(total / count, abs=1e-3)
    assert "AutoModelForSeq2SeqLM" in card
    assert "AutoModelForCausalLM" not in card


def test_a_run_that_gen_writes_trains(tiny_t5: Path, tmp_path: Path) -> None:
    """The run folder of a T5 trains as it is, with losses that fall."""
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs(64)))
    cluster = {"nodes": 1, "gpus_per_node": 2, "gpu": "cpu", "cpu_cores": 2}
    work = {
        "sequence_length": 96,
        "global_batch_size": 8,
        "tokens": 96 * 8 * STEPS,
        "learning_rate": 3e-3,
        "data": {"train": str(tmp_path / "data.jsonl")},
        "precision": "fp32",
    }
    strategy = {"zero_stage": 3, "micro_batch_size": 2}
    dsforge.gen(str(tiny_t5), cluster, work, strategy=strategy, out=tmp_path / "run")
    ranks.train(tmp_path / "run", 2)
    losses = runs.figures(tmp_path / "run" / "output", "loss")

    assert len(losses) == STEPS
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize(
    ("settings", "more", "words"),
    [
        ({}, {"packing": True}, "cannot be combined with packing=true"),
        ({}, {"compile": True}, "cannot be combined with compile=true"),
        ({}, {"lora": {"rank": 8, "alpha": 16}}, "cannot be combined with lora"),
    ],
)
def test_what_an_encoder_does_not_go_with_is_refused(
    settings: dict[str, Any], more: dict[str, Any], words: str, tiny_t5: Path, tmp_path: Path
) -> None:
    """In a line, before the ranks meet."""
    config = ds_config(0, gradient_accumulation_steps=4, **settings)
    write_job(tmp_path, tiny_t5, config, **more)
    codes, text = ranks.ended(tmp_path, 1)
    assert codes != [0]
    assert words in text
    assert "Traceback" not in text


def test_rows_that_are_no_prompt_with_one_answer_are_named(tiny_t5: Path, tmp_path: Path) -> None:
    """A text has no side for the encoder."""
    write_job(tmp_path, tiny_t5, ds_config(0, gradient_accumulation_steps=4))
    rows = [json.dumps({"prompt": "a b", "completion": "c d"}), json.dumps({"text": "abc def"})]
    (tmp_path / "data.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    codes, text = ranks.ended(tmp_path, 1)
    assert codes != [0]
    assert "data.jsonl:2" in text
    assert "must be a prompt with one answer" in text
