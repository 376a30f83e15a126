"""What ranks and NCCL write, read from a stream that anybody may write into."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsforge.probe.answer_lines import line
from dsforge.probe.messages import (
    LONGEST_LINE,
    MARK,
    Answer,
    Ended,
    Question,
    Rate,
    Skipped,
    Timed,
    answer_line,
    read_answer,
)
from dsforge.probe.nccl_log import MOST_NAMES, NcclWords
from dsforge.probe.question import usual_question
from dsforge.reading.cluster import cluster_of
from dsforge.reading.source import parse_source

QUICK = settings(max_examples=200, deadline=None)
TIMED = Timed(
    scope="inter_node",
    collective="all_gather",
    nodes=2,
    ranks=4,
    payload_bytes=1 << 20,
    seconds=0.01,
)
ANSWERS: tuple[Answer, ...] = (
    TIMED,
    Rate(what="memory", per_s=2e9, best_per_s=3e9, slowest="a rank 0"),
    Skipped(what="disk", why="full"),
    Ended(seconds=3.0),
)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.kind)
def test_an_answer_comes_back_through_a_launcher(answer: Answer) -> None:
    """The one over ssh writes the host before each line."""
    assert read_answer("10.0.0.1: " + answer_line(answer)) == answer
    assert line(answer)


@pytest.mark.parametrize(
    "text",
    [
        MARK,
        MARK + "{}",
        MARK + '{"kind": "timed"}',
        MARK + '{"kind": "ended", "seconds": -1}',
        MARK + '{"kind": "ended", "seconds": 1, "more": 1}',
        MARK + '{"kind": "rate", "what": "rm", "per_s": 1, "best_per_s": 1, "slowest": "x"}',
        MARK + "{" * 10_000,
        MARK + '{"kind": "skipped", "what": "' + "x" * LONGEST_LINE + '", "why": ""}',
        answer_line(TIMED).replace("0.01", "NaN"),
        answer_line(TIMED).replace("0.01", "1e999"),
    ],
)
def test_what_is_not_an_answer_to_the_last_letter_is_none(text: str) -> None:
    """Half lines, wrong types, more keys, endless nesting."""
    assert read_answer(text) is None


@QUICK
@given(st.text(max_size=200))
def test_any_text_after_the_mark_is_read_without_a_traceback(text: str) -> None:
    """It is an answer or none."""
    read_answer(MARK + text)
    read_answer(MARK + '{"kind": "ended", "seconds": ' + text + "}")


def test_a_question_is_one_harmless_word() -> None:
    """No shell on the way to a rank finds anything to expand in it."""
    cluster = cluster_of(parse_source("gpu: a100-80gb\nnodes: 2\ngpus_per_node: 8\n", "c"))[0]
    question = usual_question(cluster)

    assert question.word().replace("=", "").replace("-", "").replace("_", "").isalnum()
    assert Question.of_word(question.word()) == question


@pytest.mark.parametrize(
    ("lines", "transport"),
    [
        ((), None),
        (("a:1:2 [0] NCCL INFO Using network Socket",), "sockets"),
        (("a:1:2 [0] NCCL INFO Using network IB",), "rdma"),
        (("a:1:2 [0] NCCL INFO Using network AWS Libfabric",), "rdma"),
        (("a:1:2 [0] NCCL INFO Assigned NET plugin Socket to comm",), "sockets"),
        (
            (
                "x NCCL INFO Using network IB",
                "y NCCL INFO Channel 00 : 0[0] -> 1[0] via NET/Socket/0",
            ),
            "sockets",
        ),
        (("x NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/CUMEM",), None),
        (("Using network Socket",), None),
    ],
    ids="nothing socket verbs plugin new-form one-rank-of-many inside-a-node somebody-else".split(),
)
def test_nccl_names_what_carries_the_bytes(lines: tuple[str, ...], transport: str | None) -> None:
    """One rank over sockets is enough: all wait for it."""
    words = NcclWords()
    for one in lines:
        words.hear(one)

    assert words.transport == transport


def test_adapters_are_named() -> None:
    """Those that NCCL says it uses, InfiniBand and sockets alike."""
    words = NcclWords()
    words.hear(
        "a [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    )

    assert words.devices == {"mlx5_0", "mlx5_3"}


def test_hostile_lines_cost_bounded_memory_and_time() -> None:
    """Names are counted, lines are cut, nothing backtracks."""
    words, begin = NcclWords(), time.monotonic()
    for number in range(2_000):
        words.hear(f"NCCL INFO Using network N{number}")
        words.hear(f"NCCL INFO NET/IB : Using [{number}]d{number}:1" + "[0]a" * 400)
    words.hear("NCCL INFO Channel " + "via " * 1_000_000 + "NET/")

    assert len(words.networks) <= MOST_NAMES
    assert len(words.devices) <= MOST_NAMES
    assert time.monotonic() - begin < 5


@QUICK
@given(st.text(max_size=300))
def test_any_text_from_nccl_is_heard(text: str) -> None:
    """Nothing raises."""
    words = NcclWords()
    words.hear("NCCL INFO " + text)
    words.hear(f"NCCL INFO NET/IB : Using [{text}")
    words.hear(f"NCCL INFO Channel {text} via {text}")
