"""Sentences and titles: what they quote is read, and what tells no failure stays without answer."""

from __future__ import annotations

import time

import pytest

from dsforge.diagnose import diagnose_text
from dsforge.diagnose.failures_in_words import LONGEST, QUOTED, told
from dsforge.diagnose.rulebook import rulebook


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "I got a ValueError(Attempting to unscale FP16 gradients) when I train (with LoRA).",
            "ValueError: Attempting to unscale FP16 gradients",
        ),
        ("lora training fails with KeyError:'qwen2'", "KeyError: 'qwen2'"),
        ("训练时报错 KeyError\N{FULLWIDTH COLON} 'qwen2'", "KeyError: 'qwen2'"),
        (
            "Dataset object has no attribute 'add_column'",
            "AttributeError: 'Dataset' object has no attribute 'add_column'",
        ),
        (
            'It stops with "return code = -11" and I see no error',
            "return code = -11",
        ),
        (
            "My GRPO run fails, format_reward() missing 1 required positional argument: 'answer'",
            "TypeError: format_reward() missing 1 required positional argument: 'answer'",
        ),
    ],
)
def test_what_a_sentence_quotes_is_its_message(text: str, message: str) -> None:
    """The exception by its name, or what stands between quotes."""
    assert (1, message) in told(text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("zero3 training hangs with mixed data", "hang-told"),
        ("Loss=0 and grad_norm=nan when I fine-tune a 7b model", "loss-zero-told"),
        ("Cuda Out of Memory in the time of saving the checkpoint", "memory-told"),
        ("NCCL timeout at the end of the first epoch with two GPUs", "timeout-told"),
        ("The training process was suddenly killed.", "exit-told"),
        ("generate.py stops while the shards load with message `killed`.", "exit-told"),
        ('when i run the notebook it prints "Killed" and that is all', "exit-told"),
        ("# Training hangs on two nodes", "hang-told"),
        ("My training hangs, what could be the reason?", "hang-told"),
    ],
)
def test_a_title_is_answered_by_what_it_tells(text: str, rule: str) -> None:
    """Even where it quotes nothing; the evidence is the sentence itself."""
    cause = diagnose_text(text)[0]

    assert cause.rule == rule
    assert cause.evidence[0].text == text
    assert cause.confidence <= max(r.confidence for r in rulebook(in_words=True).values()) * QUOTED


def test_an_end_without_an_error_is_a_failure() -> None:
    """The words that nothing is wrong tell what is."""
    text = "My training hangs after the first epoch without any error message."

    assert diagnose_text(text)[0].rule == "hang-told"


@pytest.mark.parametrize("title", ["Training fails with ZeRO-3", "训练到一半就失败了"])
def test_errors_that_lines_of_a_report_name_are_read(title: str) -> None:
    """Whatever settings and code stand around them."""
    settings = "\n".join(f"- option_{number}: {number}" for number in range(12))
    text = f"{title}\n\n{settings}\n\nThe first step ended with KeyError: 'qwen2'"

    assert diagnose_text(text)[0].rule == "architecture-name"
    assert diagnose_text(text.replace(title, "Options of the release")) == ()


def test_words_above_a_traceback_that_breaks_off_are_its_message() -> None:
    """Who reports a failure says the error, and pastes the frames without it."""
    log = 'Traceback (most recent call last):\n  File "/work/train.py", line 3, in main\n    load()'
    text = f"训练时报错\N{FULLWIDTH COLON}KeyError: 'qwen2'\n{log}"

    assert diagnose_text(log)[0].rule == "unknown-end"
    assert diagnose_text(text)[0].rule == "architecture-name"


SETTINGS = "\n".join(f"--option_{number}={number} \\" for number in range(30))


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (
            'the run says "CUDA out of memory. Tried to allocate 108.00 MiB. GPU 0"',
            "cuda-out-of-memory",
        ),
        (
            "I get `element 0 of tensors does not require grad and does not have a grad_fn`",
            "no-gradient",
        ),
        ("I set bf16, now it prints 'the frobnicator has no handle'", "unknown-end"),
    ],
)
def test_what_somebody_says_to_have_met_is_read(said: str, rule: str) -> None:
    """However long the command below it, and with no title; a command or code meets nothing."""
    cause = diagnose_text(f"{said}\n\n{SETTINGS}\nIs this how it should be?")[0]

    assert cause.rule == rule
    assert cause.evidence[0].text == said
    assert diagnose_text(f"print({said!r})\n\n{SETTINGS}") == ()


@pytest.mark.parametrize(
    "text",
    [
        "I trained the model and it prints `all checks passed, training complete`.",
        "When I run the tests, pytest reports `12 passed in 3.4 s`.",
        "I see 'Saved model to /tmp/x' as expected. Can I close this?",
        "I get `accuracy of 92.1 percent` on the test set with my model.",
        "My notes: the tokenizer returns `a list of ints` for each row.",
        "For how I did it see `docs/how to run.md`.",
        'message: "Build finished and image pushed"\nquestion: is it ok? yes',
        """## Troubleshooting

- You get `RuntimeError: CUDA out of memory`: reduce the batch size.
- It says `NCCL timeout in watchdog`: check the network.

Questions? Open an issue.""",
    ],
)
def test_what_was_met_and_is_no_failure_stays_without_answer(text: str) -> None:
    """People quote what went well, too, and pages tell their readers what they may meet."""
    assert diagnose_text(text) == ()


@pytest.mark.parametrize(
    "said",
    [
        """I release my library today.
I fixed the hang with two nodes. My trainer no longer runs out of memory.
I am happy. Questions?""",
        """I review my pull request.
I think training is slow with one worker, so I use eight.
My GPU has 24 GB, and my batch of 32 runs out of memory, so I take 16. Does that help?""",
        """I wrote my own tutorial.
I explain how the loss becomes NaN in fp16 and why my model hangs.
Do you like it?""",
    ],
)
def test_what_somebody_tells_of_his_own_work_is_no_question(said: str) -> None:
    """However long the list below it."""
    assert diagnose_text(f"{said}\n\n{SETTINGS}") == ()


@pytest.mark.parametrize(
    "text",
    [
        "I followed the official guide and training hangs with two nodes. Why?",
        "Following the setup guide my training hangs at NCCL init on two nodes, why?",
    ],
)
def test_who_followed_a_guide_writes_none(text: str) -> None:
    """A guide that somebody names is not what they write."""
    assert diagnose_text(text)[0].rule == "hang-told"


@pytest.mark.parametrize("quote", ["' ", "'a b c d e' ", '"RuntimeError: no" '])
def test_many_quotes_take_no_time(quote: str) -> None:
    """Of a line a few messages are read, and of what stands before each only the end."""
    start = time.process_time()
    diagnose_text("I see " + quote * (4_400 // len(quote)))

    assert time.process_time() - start < 2


def test_a_long_question_is_read_where_somebody_speaks_of_himself() -> None:
    """Between lists and settings that say nothing."""
    asked = "My training takes 140 seconds per iteration with an RTX 3060."
    more = f"I followed the guide to the letter.\n\n{SETTINGS}\nWhat am I doing wrong?"

    assert diagnose_text(f"- a card of my own\n\n{asked}\n{more}")[0].rule == "training-slow-told"
    assert diagnose_text(f"{SETTINGS}\n{asked}") == ()


@pytest.mark.parametrize(
    ("frame", "where"),
    [
        ("File /venv/lib/python3.11/site-packages/frob/core.py:99, in call(self)", "frob"),
        (r"File c:\venv\Lib\site-packages\frob\core.py:99, in call(self)", "frob"),
        (r"File c:\Users\me\train.py:12, in main()", r"c:\Users\me\train.py:12 in main"),
        ("[/content/train.py](https://colab.example) in main(args)", "/content/train.py in main"),
    ],
)
@pytest.mark.parametrize("above", ["", "-" * 75 + "\n", "Here is what I see\n"])
def test_a_notebook_whose_traceback_breaks_off_names_its_error(
    frame: str, where: str, above: str
) -> None:
    """Notebooks put the name above the frames; the message, which stands below them, is missing."""
    heading = "FrobError" + " " * 33 + "Traceback (most recent call last)"
    text = f"{above}{heading}\nCell In[3], line 1\n{frame}"
    cause = diagnose_text(text)[0]

    assert cause.rule == "unknown-end"
    assert "FrobError" in cause.message
    assert where in cause.message
    steps = "\n".join(
        f"{{'loss': 2.{step}, 'grad_norm': 1.5, 'epoch': 0.{step}}}" for step in range(9)
    )
    assert diagnose_text(f"{text}\n{steps}") == ()


def test_a_title_above_a_description_is_read() -> None:
    """Of what nobody says of himself only the title counts."""
    title = "Training hangs with two GPUs"
    body = "The script of the second stage runs on two cards, both at 100 %."

    assert diagnose_text(f"{title}\n{body}")[0].rule == "hang-told"
    assert diagnose_text(f"{body}\n{title}.") == ()


@pytest.mark.parametrize(
    "text",
    [
        "Fix CUDA out of memory in the export",
        "fix(ckpt): avoid the OOM of the optimizer when resuming",
        "Why do errors like this usually go away with a smaller batch size?",
        "I tried to reproduce this. The basic case runs clean, no NCCL hang at weight sync.",
        "I was thinking of a flag. For some models it will almost certainly run out of memory.",
        "We would like a flag for it, as a slow rank could lead to an NCCL timeout of my job.",
        "The run works now, without any NCCL timeout.",
        "The watchdog timeout is 30 minutes by default",
        "I would like to know whether training can be resumed after a node is killed",
        "WARNING: the dataloader hangs on this platform; using one worker instead",
        "I saw an error once. " * 100,
    ],
)
def test_what_tells_no_failure_stays_without_answer(text: str) -> None:
    """Changes, questions of a general kind, notices of programs, long texts."""
    assert told(text) == []
    assert diagnose_text(text) == ()


def test_an_unknown_ending_does_not_hide_what_the_text_tells() -> None:
    """A title that begins as an error line does, of which no rule knows more."""
    text = "Failed on `Loading checkpoint shards: 52%`\nIt ends there, with message `killed`."

    assert diagnose_text(text.partition("\n")[0])[0].rule == "unknown-end"
    assert diagnose_text(text)[0].rule == "exit-told"


def test_a_log_is_never_read_as_a_sentence() -> None:
    """Where a log shows a cause, its words are not read again."""
    text = "RuntimeError: CUDA error: device-side assert triggered\nI get this when training hangs"

    assert diagnose_text(text)[0].rule == "device-assert"
    assert told("x" * (LONGEST + 1)) == []
