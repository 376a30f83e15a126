"""Failures of public threads get their cause; ordinary lines and healthy texts change nothing."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scoring import PAGE, SURE, UNKNOWN, Answer, answered, document, failures, page, proven

from dsforge.diagnose import diagnose_text
from dsforge.diagnose.report import CONFIDENT
from dsforge.diagnose.rulebook import rulebook

LEAST_RIGHT = 0.97
LEAST_SAME_CUT = 0.9
GROUP = 12  # harmless lines that are tried together
LEAST_CAUSES, LEAST_FAILURES = 100, 400
ANSWERS = [answered(failure) for failure in failures()]
KINDS = {rule.id: rule.kind for rule in rulebook().values()}
# Left out: a launcher's last word, and what only the frames above tell from another cause.
ENDED = [
    a
    for a in ANSWERS
    if KINDS.get(a.rule) in ("cause", "death", "stall") and a.rule != "json-broken"
]
STEPS = "\n".join(f"{{'loss': 2.{step}, 'grad_norm': 1.5, 'epoch': 0.{step}}}" for step in range(4))
HARMLESS: list[str] = document("harmless")["lines"]
HEALTHY = document("healthy")["texts"]
HINTS = {rule.id for rule in rulebook().values() if rule.kind == "hint"}


def first(text: str) -> str:
    """The rule that answers first; empty where none does."""
    causes = diagnose_text(text)
    return causes[0].rule if causes else ""


def test_the_corpus_is_large_and_labelled() -> None:
    """Enough failures and causes, each from a thread and with a label that exists."""
    causes = {answer.failure.cause for answer in ANSWERS}

    assert len(ANSWERS) >= LEAST_FAILURES
    assert len(causes) >= LEAST_CAUSES
    assert causes <= {*rulebook(), UNKNOWN}
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", answer.failure.source) for answer in ANSWERS)
    before = sum(answer.failure.rules == "later" for answer in ANSWERS)
    assert before >= len(ANSWERS) / 2


def test_first_causes_are_right(record_property: pytest.RecordProperty) -> None:
    """Nearly all are, none is wrong with confidence, and no error stays without an answer."""
    right = sum(answer.right for answer in ANSWERS)
    record_property("count", f"diagnose: failures of threads right {right} / {len(ANSWERS)}")

    assert right / len(ANSWERS) >= LEAST_RIGHT, [a for a in ANSWERS if not a.right]
    assert [a for a in ANSWERS if a.known and not a.right] == []
    assert [a for a in ANSWERS if not a.rule] == []


def test_only_proven_rules_are_sure() -> None:
    """A high confidence needs a failure that the rule was right on, and none it was wrong on."""
    sure = {rule.id for rule in rulebook().values() if rule.confidence >= SURE}

    assert sure - proven() == set()


def test_answers_say_nothing_empty() -> None:
    """No quotation without content, no placeholder, and always a way on."""
    for answer in ANSWERS:
        cause = diagnose_text(answer.failure.text)[0]
        said = cause.message + cause.fix
        assert "``" not in said, answer.failure.source
        assert not re.search(r"\{[a-z_]+[|}]|\[\[|\]\]|: *$", cause.message), cause.message
        assert cause.fix, answer.failure.source


@pytest.mark.parametrize("width", [80, 100, 132])
def test_a_line_that_a_terminal_has_cut_is_read(width: int) -> None:
    """Known one-line errors, cut at any width, are still answered; most by the same rule."""
    same = tried = 0
    for answer in ANSWERS:
        text = answer.failure.text
        if "\n" in text or len(text) <= width or answer.failure.cause == UNKNOWN:
            continue
        tried += 1
        found = first("\n".join(text[i : i + width] for i in range(0, len(text), width)))
        same += found == answer.rule
        assert found, answer.failure.source

    assert tried > 5
    assert same / tried >= LEAST_SAME_CUT


def test_the_page_is_of_this_state() -> None:
    """`docs/diagnosis.md` is what the command writes."""
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.failure.source)
def test_harmless_lines_take_over_no_failure(answer: Answer) -> None:
    """All ordinary lines, before and after a failure, leave its answer as it was."""
    text = answer.failure.text
    groups = [
        "\n".join(HARMLESS[start : start + GROUP]) for start in range(0, len(HARMLESS), GROUP)
    ]
    changed = {
        lines[:200]: found
        for lines in (*groups, *random.Random(text).sample(HARMLESS, 4))  # noqa: S311
        for found in (first(f"{lines}\n{text}"), first(f"{text}\n{lines}"))
        if found != answer.rule
    }

    assert changed == {}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ANSWERS), st.sampled_from(ENDED))
def test_an_error_that_a_run_survived_is_not_why_it_failed(one: Answer, other: Answer) -> None:
    """After any error training went on for some steps; what ended it then is the answer."""
    text = f"{one.failure.text}\n{STEPS}\n{other.failure.text}"

    assert first(text) == other.rule, (one.failure.source, other.failure.source)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(ANSWERS), st.integers(0, 2**32))
def test_many_harmless_lines_take_over_no_failure(answer: Answer, seed: int) -> None:
    """Any number of them, in any order, before, between and after."""
    chance = random.Random(seed)  # noqa: S311
    lines = answer.failure.text.split("\n")
    for line in chance.sample(HARMLESS, 6):
        between = 0 if answer.failure.wrapped else chance.randrange(len(lines))
        lines.insert(chance.choice((0, len(lines), between)), line)

    assert first("\n".join(lines)) == answer.rule


@pytest.mark.parametrize("line", HARMLESS, ids=lambda line: line[:40])
def test_a_harmless_line_is_no_cause(line: str) -> None:
    """Alone, it is nothing or a hint."""
    assert first(line) in {"", *HINTS}


@pytest.mark.parametrize("row", HEALTHY, ids=lambda row: row["name"])
def test_healthy_and_unrelated_texts_give_no_alarm(row: dict[str, str]) -> None:
    """Runs that ended well, documents, code and tables."""
    assert first(row["text"]) == ""


def test_an_unknown_error_says_what_is_known() -> None:
    """The user's deepest frame, the package with its version, and words to search for."""
    text = (
        "transformers==4.41.2\n"
        "Traceback (most recent call last):\n"
        '  File "/home/me/project/train.py", line 90, in main\n'
        "    model.prepare()\n"
        '  File "/venv/lib/python3.11/site-packages/transformers/x.py", line 7, in prepare\n'
        "    raise QuirkError('no such quirk: 17')\n"
        "transformers.errors.QuirkError: no such quirk: 17\n"
    )

    cause = diagnose_text(text)[0]

    assert cause.confidence < CONFIDENT
    assert "/home/me/project/train.py:90 in main" in cause.message
    assert "transformers 4.41.2" in cause.message
    assert "search for: QuirkError no such quirk transformers" in cause.fix


@pytest.mark.parametrize(
    "prefix",
    ["", "> ", "[rank3]: ", "(Worker pid=811, ip=10.0.0.2) ", "E       ", "10.0.0.2: ",
     "  3%|3   | 9/300 [00:31<14:02,  2.9s/it]", "ERROR 04-22 21:41:28 [worker_base.py:598] "],
)  # fmt: skip
@pytest.mark.parametrize(
    "name", ["KeyError: 'labels'", "xyz.OddError: it is odd", "AssertionError"]
)
def test_an_error_without_its_traceback_is_never_nothing(prefix: str, name: str) -> None:
    """Whatever stands before it; the answer does not pretend to know."""
    causes = diagnose_text(f"step 1/9 loss 2.0\n{prefix}{name}\n")

    assert causes
    assert causes[0].confidence < CONFIDENT


def test_a_module_without_a_package_is_not_passed_to_pip() -> None:
    """No import name is advised as a package unless it is one."""
    for module in ("amp_C", "my_utils", "flash_attn_2_cuda", "yaml", "fused_layer_norm_cuda"):
        fix = diagnose_text(f"ModuleNotFoundError: No module named '{module}'")[0].fix
        assert f"install {module}" not in fix


@pytest.mark.parametrize(
    ("name", "module", "direction"),
    [
        ("is_mlu_available", "accelerate.utils", "accelerate is too old"),
        ("top_k_top_p_filtering", "transformers", "transformers is too new"),
        ("cached_download", "huggingface_hub", "huggingface-hub is too new"),
    ],
)
def test_a_missing_name_says_which_version_is_off(name: str, module: str, direction: str) -> None:
    """The message names the package and the direction, the fix installs that way."""
    cause = diagnose_text(f"ImportError: cannot import name '{name}' from '{module}' (/x.py)")[0]

    assert direction in cause.message
    assert ("--upgrade" in cause.fix) == ("too old" in direction)


@pytest.mark.parametrize(
    ("code", "how"),
    [("1", "exit code 1"), ("-4", "signal 4 (SIGILL)"), ("132", "signal 4 (SIGILL)")],
)
def test_the_table_of_torchrun_is_read(code: str, how: str) -> None:
    """The rank and the host that failed first, and signals by their names."""
    table = (
        f"  host      : node-7\n  rank      : 13 (local_rank: 5)\n  exitcode  : {code} (pid: 1)\n"
    )

    cause = diagnose_text(f"Root Cause (first observed failure):\n[0]:\n{table}")[0]

    assert cause.message == f"rank 13 on node-7 ended with {how}; its reason is not in this log"
