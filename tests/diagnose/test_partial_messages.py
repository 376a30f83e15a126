"""Messages pasted in part, without their exception, on one line, or above their frames."""

from __future__ import annotations

import pytest
from scoring import all_answers

from dsforge.diagnose import diagnose_text
from dsforge.diagnose.line_forms import exception_in
from dsforge.diagnose.partial_messages import PART, nearest
from dsforge.diagnose.report import CONFIDENT
from dsforge.diagnose.rule import ANSWERS
from dsforge.diagnose.rulebook import rulebook

LEAST_RIGHT = 0.9  # of the parts that are answered
SHARE = 0.6  # of a message's words
SHORTEST = 8  # words


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Expected to mark a variable ready only", "ddp-ready-twice"),
        ("optimizer got an empty parameter", "empty-optimizer"),
        ("ran for 1800042 milliseconds before timing out.", "nccl-timeout"),
    ],
)
def test_a_part_of_a_message_is_known(text: str, rule: str) -> None:
    """The answer says that only a part is there, and is less sure than the rule is of the whole."""
    cause = diagnose_text(text)[0]

    assert cause.rule == rule
    assert PART in cause.message
    assert cause.evidence[0].text == text
    assert CONFIDENT <= cause.confidence < rulebook()[rule].confidence


@pytest.mark.parametrize(
    "line",
    [
        "AttributeError: 'Foo' object has no attribute 'bar'",
        "TypeError: forward() got an unexpected keyword argument 'bar'",
        "IndexError: list index out of range",
        "RuntimeError: Error(s) in loading state_dict for Net:",
        "RuntimeError: The size of tensor a (3) must match the size of tensor b (4)",
        "please try again",
        "",
    ],
)
def test_what_many_failures_say_is_no_part_of_one(line: str) -> None:
    """Messages of Python and headers that several rules' examples have are nobody's."""
    assert nearest(line) is None


def test_parts_of_the_messages_of_failures_are_answered_right() -> None:
    """The begin and the end of the last error of each failure, where no pattern reads them."""
    right = wrong = 0
    for answer in all_answers()[::2]:
        rule = rulebook().get(answer.rule)
        lines = [line for line in answer.failure.text.splitlines() if exception_in(line.strip())]
        words = lines[-1].split() if lines else []
        if rule is None or rule.kind not in ANSWERS or len(words) < SHORTEST:
            continue
        count = int(len(words) * SHARE)
        for part in (words[:count], words[-count:]):
            causes = diagnose_text(" ".join(part))
            if causes and PART in causes[0].message:
                right += causes[0].rule == rule.id
                wrong += causes[0].rule != rule.id

    assert right >= 100
    assert right >= LEAST_RIGHT * (right + wrong)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Expected 2 lr_lambdas, but got 1", "scheduler-groups-count"),
        ("The size of tensor a (4096) must match the size of tensor b (0)", "tensor-shape"),
    ],
)
def test_a_message_without_its_exception_is_read(text: str, rule: str) -> None:
    """As people type it into a search box."""
    assert diagnose_text(text)[0].rule == rule


@pytest.mark.parametrize(
    "text",
    [
        "/bin/sh: 1: nvcc: not found",
        "Token indices sequence length is longer than the specified maximum sequence length",
        "Fix: The size of tensor a (4096) must match the size of tensor b (0)",
    ],
)
def test_notices_and_titles_of_changes_stay_without_answer(text: str) -> None:
    """What healthy programs print, and what somebody did about a message."""
    assert diagnose_text(text) == ()


def test_a_traceback_on_one_line_is_read() -> None:
    """Line ends were lost; the evidence is the line as it was pasted."""
    text = (
        'Traceback (most recent call last): File "C:\\run\\sft.py", line 14, in <module> from '
        'unsloth import FastLanguageModel File "C:\\env\\unsloth\\__init__.py", line 103, in '
        "<module> import triton ModuleNotFoundError: No module named 'triton'"
    )
    cause = diagnose_text(f"it stops here:\n{text}")[0]

    assert cause.rule == "module-missing"
    assert cause.evidence[0].line == 2


def test_frames_below_a_title_are_those_of_its_error() -> None:
    """The log breaks off before its error, which stands in the title."""
    title = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    frames = (
        'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n'
        '    trainer.evaluate()\n  File "/x/transformers/trainer.py", line 2113, in evaluate\n'
        "    output = eval_loop("
    )
    whole = diagnose_text(f"{frames}\n{title}")[0]
    below = diagnose_text(f"{title}\n{frames}")[0]
    ended = diagnose_text(f"{title}\n{frames}\nValueError: x")[0]

    assert below.message == whole.message
    assert below.fix == whole.fix
    assert ended.hits[0].before == ""
