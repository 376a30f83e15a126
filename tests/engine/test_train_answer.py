"""`dsforge generate` with a real, tiny model: one question, a file of them, the table of times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsforge.cli.main import main
from dsforge.errors import SpecError
from dsforge.train.model.generation import Speaker, Timing, read_questions

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::UserWarning:transformers"),
]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `dsforge generate` prints."""
    with pytest.raises(SystemExit) as ended:
        main(["generate", *words])
    captured = capsys.readouterr()
    assert ended.value.code in (0, None), captured.err
    return captured.out


def test_one_question_is_answered(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Question and answer; the same again, as decoding is greedy."""
    words = (str(tiny_llama), "--prompt", "What is it?", "--max-tokens", "5")
    first = said(capsys, *words)

    assert first.startswith("> What is it?\n")
    assert said(capsys, *words) == first


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # in peft
def test_adapters_answer_on_the_base_that_they_name(tiny_llama: Path, tmp_path: Path) -> None:
    """`output/adapter` of a run: all that QLoRA writes."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = AutoModelForCausalLM.from_pretrained(tiny_llama)
    adapted = get_peft_model(base, LoraConfig(target_modules="all-linear", init_lora_weights=False))
    adapted.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_llama).save_pretrained(tmp_path)
    speaker = Speaker(str(tmp_path))
    tokens = torch.arange(2, 40).reshape(2, 19)

    torch.testing.assert_close(speaker.network(tokens).logits, adapted(tokens).logits)
    assert speaker.answer("why?", max_tokens=4, exactly=True).tokens == 4


def test_a_file_of_questions_gives_a_line_each(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON: question, answer, its tokens and seconds."""
    path = tmp_path / "questions.txt"
    path.write_text("one?\n\ntwo?\n")
    options = ("--prompts", str(path), "--json", "--max-tokens", "4")
    rows = [json.loads(line) for line in said(capsys, str(tiny_llama), *options).splitlines()]

    assert [row["question"] for row in rows] == ["one?", "two?"]
    assert all(1 <= row["tokens"] <= 4 and row["seconds"] > 0 for row in rows)


def test_the_table_of_times_has_a_row_for_each_length(tiny_llama: Path) -> None:
    """Answers have exactly the length that is timed, whatever the model would say."""
    speaker = Speaker(str(tiny_llama))
    timings = list(speaker.timings(2, lengths=(3, 9)))

    assert [timing.tokens for timing in timings] == [3, 9]
    assert [len(timing.runs_s) for timing in timings] == [2, 2]
    assert speaker.answer("why?", max_tokens=9, exactly=True).tokens == 9


def test_seconds_per_100_characters() -> None:
    """Three runs of 1, 2 and 3 seconds for 50 characters: 4 seconds for 100."""
    assert Timing(12, 50, (1.0, 2.0, 3.0)).per_100_characters_s == pytest.approx(4.0)


def test_questions_of_training_data_are_read(tmp_path: Path) -> None:
    """`prompt`, or the user's first words in `messages`."""
    rows = [
        {"prompt": "a?", "completion": "b"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "c?"}]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert read_questions(path) == ("a?", "c?")


def test_rows_without_a_question_are_named(tmp_path: Path) -> None:
    """All of them at once, with their lines."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a?"}\n{"text": "b"}\n\nbroken\n')
    with pytest.raises(SpecError) as raised:
        read_questions(path)

    assert [problem.place for problem in raised.value.problems] == [f"{path}:2", f"{path}:4"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere/model", "--prompt", "a?"], "does not exist"),
        (["model"], "there are no prompts"),
    ],
    ids=["no-model", "no-question"],
)
def test_mistakes_are_explained(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing folder and a missing question: one message and exit code 1."""
    words = [f"./{words[0]}", *words[1:]]
    with pytest.raises(SystemExit) as ended:
        main(["generate", *words])

    assert ended.value.code == 1
    assert message in capsys.readouterr().err
