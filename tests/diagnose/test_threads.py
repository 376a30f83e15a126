"""Failures of public threads get their cause; ordinary lines and healthy texts change nothing."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import each
from scoring import (
    BROAD_AT_MOST,
    KEPT,
    MEASURED,
    NARROW,
    PAGE,
    PARTS,
    SURE,
    UNKNOWN,
    Answer,
    all_answers,
    answered,
    document,
    erring,
    failures,
    logs,
    page,
    part_of_logs,
    proven,
)

from dsforge.diagnose import diagnose_text
from dsforge.diagnose.releases import CAME, SETTINGS_CAME, SETTINGS_WENT, WENT, release_of
from dsforge.diagnose.report import CONFIDENT
from dsforge.diagnose.rulebook import rulebook

LEAST_RIGHT = 0.97
LEAST_SAME_CUT, LEAST_LONG = 0.92, 200
LEAST_KEPT_RIGHT, MOST_KEPT_WRONG = 0.85, 0.04
GROUP = 12  # harmless lines that are tried together
LEAST_CAUSES, LEAST_FAILURES = 100, 400
LOGS = st.sampled_from(logs()).map(answered)
KINDS = {rule.id: rule.kind for rule in rulebook().values()}
# Left out: a launcher's last word, and what only the frames above tell from another cause.
ENDED = LOGS.filter(
    lambda one: KINDS.get(one.rule) in ("cause", "death", "stall") and one.rule != "json-broken"
)
# A line that is known by ending a text is not its end where others follow.
ENDLESS = LOGS.filter(lambda one: one.rule != "unknown-end")
STEPS = "\n".join(f"{{'loss': 2.{step}, 'grad_norm': 1.5, 'epoch': 0.{step}}}" for step in range(4))
HARMLESS: list[str] = document("harmless")["lines"]
HEALTHY = document("healthy")["texts"]
HINTS = {rule.id for rule in rulebook().values() if rule.kind == "hint"}


def hard_cut(line: str, width: int) -> list[str]:
    """The line as a terminal shows it: a new one after each `width` characters."""
    return [line[start : start + width] for start in range(0, len(line), width)] or [""]


def word_wrapped(line: str, width: int) -> list[str]:
    """The line as a mail program or an editor breaks it: between words."""
    return textwrap.wrap(line, width) or [""]


def first(text: str) -> str:
    """The rule that answers first; empty where none does."""
    causes = diagnose_text(text)
    return causes[0].rule if causes else ""


def test_the_corpus_is_large_and_labelled() -> None:
    """Enough failures and causes, each from a thread and with a label that exists."""
    known = failures()
    causes = {failure.cause for failure in known}

    assert len(known) >= LEAST_FAILURES
    assert len(causes) >= LEAST_CAUSES
    assert causes <= {*rulebook(in_words=True), UNKNOWN}
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", failure.source) for failure in known)
    assert sum(failure.rules == "later" for failure in known) >= len(known) / 2


def test_first_causes_are_right(record_property: pytest.RecordProperty) -> None:
    """Nearly all are, none is wrong with confidence, and no error stays without an answer."""
    answers = all_answers()
    right = sum(answer.right for answer in answers)
    record_property("count", f"diagnose: failures of threads right {right} / {len(answers)}")

    assert right / len(answers) >= LEAST_RIGHT, [a for a in answers if not a.right]
    assert [a for a in answers if a.known and not a.right] == []
    assert [a for a in answers if not a.rule] == []


def test_most_failures_that_were_kept_aside_are_understood() -> None:
    """Of failures that no rule was written from; few answers are wrong with confidence."""
    kept = [answered(failure) for failure in failures(KEPT)]
    wrong = [a for a in kept if a.known and not a.right]

    assert sum(a.right for a in kept) / len(kept) >= LEAST_KEPT_RIGHT, [
        a for a in kept if not a.right
    ]
    assert len(wrong) / len(kept) <= MOST_KEPT_WRONG, wrong
    assert {a.failure.source for a in kept}.isdisjoint(failure.source for failure in failures())


def test_a_family_is_no_confident_answer() -> None:
    """The form of a message tells the kind of a cause, not the cause."""
    families = [rule for rule in rulebook().values() if rule.kind == "family"]

    assert families
    assert all(rule.confidence < CONFIDENT for rule in families)


def test_only_proven_rules_are_sure() -> None:
    """A high confidence needs a failure that the rule was right on, and none it was wrong on."""
    sure = {rule.id for rule in rulebook().values() if rule.confidence >= SURE}

    assert sure - proven() == set()


def test_no_rule_is_surer_than_new_failures_have_shown() -> None:
    """Sure ones were right on four in five; those of many patterns that ever erred on half."""
    broad = [rule for rule in rulebook().values() if len(rule.patterns) > NARROW]
    often_wrong = erring()

    assert max(rule.confidence for rule in rulebook().values()) <= MEASURED
    assert [
        rule.id for rule in broad if rule.id in often_wrong and rule.confidence > BROAD_AT_MOST
    ] == []


def test_answers_say_nothing_empty() -> None:
    """No quotation without content, no placeholder, and always a way on."""
    for answer in all_answers():
        assert "``" not in answer.message + answer.fix, answer.failure.source
        assert not re.search(r"\{[a-z_]+[|}]|\[\[|\]\]|: *$", answer.message), answer.message
        assert answer.fix, answer.failure.source


@pytest.mark.parametrize("step", each(2, (3, 1)))
@pytest.mark.parametrize("width", each(3, (100, 80, 120)))
@pytest.mark.parametrize("cut", [hard_cut, word_wrapped])
def test_lines_that_a_terminal_has_cut_are_read(
    width: int, cut: Callable[..., list[str]], step: int
) -> None:
    """Known errors with long lines, cut at any place, are answered; most by the same rule."""
    long = [
        answer
        for answer in all_answers()[::step]
        if answer.known and any(len(line) > width for line in answer.failure.text.split("\n"))
    ]
    found = [
        first("\n".join(piece for line in a.failure.text.split("\n") for piece in cut(line, width)))
        for a in long
    ]
    same = sum(rule == answer.rule for rule, answer in zip(found, long, strict=True))

    assert len(long) > LEAST_LONG
    assert same / len(long) >= LEAST_SAME_CUT


def test_the_page_is_of_this_state() -> None:
    """`docs/diagnosis.md` is what the command writes."""
    assert PAGE.read_text(encoding="utf-8") == page()


def taken_over(answer: Answer, groups: list[str]) -> dict[tuple[str, str], str]:
    """The lines that change the answer to a failure, before it or after it, and what it becomes."""
    text = answer.failure.text
    return {
        (answer.failure.source, lines[:200]): found
        for lines in groups
        for found in (first(f"{lines}\n{text}"), first(f"{text}\n{lines}"))
        if found != answer.rule
    }


@pytest.mark.parametrize("part", each(len(PARTS), PARTS))
def test_harmless_lines_take_over_no_failure(part: int) -> None:
    """Some ordinary lines, others for each failure, leave its answer as it was."""
    changed: dict[tuple[str, str], str] = {}
    for answer in part_of_logs(part):
        chance = random.Random(answer.failure.text)  # noqa: S311
        lines = chance.sample(HARMLESS, len(HARMLESS))
        some = ["\n".join(lines[:GROUP]), "\n".join(lines[GROUP : 3 * GROUP]), *lines[-2:]]
        changed |= taken_over(answer, some)

    assert changed == {}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", PARTS)
def test_no_harmless_line_takes_over_a_failure(part: int) -> None:
    """All ordinary lines, in groups and one by one."""
    starts = range(0, len(HARMLESS), GROUP)
    groups = ["\n".join(HARMLESS[start : start + GROUP]) for start in starts]
    changed: dict[tuple[str, str], str] = {}
    for answer in part_of_logs(part):
        changed |= taken_over(answer, [*groups, *HARMLESS])

    assert changed == {}


@pytest.mark.parametrize("part", each(len(PARTS), PARTS))
def test_a_harmless_line_between_two_lines_of_a_failure_changes_nothing(part: int) -> None:
    """Another thread or a child process writes whenever it likes."""
    changed = {}
    for answer in part_of_logs(part):
        lines = answer.failure.text.split("\n")
        chance = random.Random(answer.failure.text)  # noqa: S311
        for place in () if answer.failure.wrapped else range(1, len(lines)):
            text = "\n".join((*lines[:place], chance.choice(HARMLESS), *lines[place:]))
            if (found := first(text)) != answer.rule:
                changed[answer.failure.source, place] = found

    assert changed == {}


@settings(max_examples=300, deadline=None)
@given(LOGS, ENDED)
def test_an_error_that_a_run_survived_is_not_why_it_failed(one: Answer, other: Answer) -> None:
    """After any error training went on for some steps; what ended it then is the answer."""
    text = f"{one.failure.text}\n{STEPS}\n{other.failure.text}"

    assert first(text) == other.rule, (one.failure.source, other.failure.source)


@settings(max_examples=150, deadline=None)
@given(ENDLESS, st.integers(0, 2**32))
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


def test_frames_of_an_earlier_traceback_are_not_those_of_a_later() -> None:
    """Neither has its header; the assertion of a survived one is no context of the next."""
    one = '  File "a.py", line 70, in step\n    assert size % len(devices) == 0\nAssertionError'
    other = '  File "b.py", line 16, in check\n    assert len(self.ckpt_list) > 0\nAssertionError'

    assert first(f"{one}\n{STEPS}\n{other}") == "zero-model-files"
    assert first(f"{other}\n{STEPS}\n{one}") == "assertion-remainder"


@pytest.mark.parametrize("prefix", ["", "[rank7]: "])
@pytest.mark.parametrize("source", ["", "    assert workers + ranks == devices\n"])
def test_a_traceback_without_its_begin_and_end_names_the_last_frame(
    prefix: str, source: str
) -> None:
    """People paste frames only; the place is known, the error only where an assertion is the last.

    Then it is what failed, unless the run went on.
    """
    frames = (
        '  File "/home/me/train.py", line 9, in main\n    prefetch()\n'
        f'  File "/venv/lib/python3.11/site-packages/x.py", line 253, in infer_rank\n{source}'
    )

    cause = diagnose_text(textwrap.indent(f"step 1/9 loss 2.0\n{frames}", prefix))[0]

    assert cause.rule == ("assertion-equal" if source else "unknown-end")
    named = "workers + ranks == devices" if source else "x.py:253 in infer_rank"
    assert named in cause.message
    assert diagnose_text(f"{frames}{STEPS}\n") == ()


ASSERTION = (
    'Traceback (most recent call last):\n  File "/v/deepspeed/zero/stage3.py", line 9, in g\n'
    "    assert len(set(p.ds_id for p in params_in_bucket)) == len(params_in_bucket){}\n"
)


@pytest.mark.parametrize(
    ("after", "rule"),
    [
        ("\nAssertionError", "zero-gradient-twice"),
        ("\n           ^^^^^^^^^^^^\nAssertionError", "zero-gradient-twice"),
        ("\nAssertionError: one more", "python-error"),
        ("\nValueError", "python-error"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_an_assertion_without_a_message_is_its_own(after: str, rule: str, prefix: str) -> None:
    """Its source says what failed, as no other source line of a traceback does."""
    lines = ASSERTION.format(after).split("\n")

    assert first("\n".join(prefix + line if line else line for line in lines)) == rule


def test_an_exception_between_backticks_is_an_error() -> None:
    """A line of its own that quotes one reports it, as people write in issues."""
    error = "RuntimeError: CUDA error: named symbol not found"

    assert first(f"`{error}`") == first(f"> `{error}`.") == "cuda-symbol-missing"


def test_a_module_without_a_package_is_not_passed_to_pip() -> None:
    """No import name is advised as a package unless it is one."""
    for module in ("amp_C", "my_utils", "flash_attn_2_cuda", "yaml", "fused_layer_norm_cuda"):
        fix = diagnose_text(f"ModuleNotFoundError: No module named '{module}'")[0].fix
        assert f"install {module}" not in fix


@pytest.mark.parametrize(
    ("module", "package"),
    [("causal_conv1d_cuda", "causal-conv1d"), ("flash_attn_2_cuda", "flash-attn")],
)
def test_a_missing_compiled_part_is_built_with_its_package(module: str, package: str) -> None:
    """The package itself may be there, so that pip would find nothing to do."""
    fix = diagnose_text(f"ModuleNotFoundError: No module named '{module}'")[0].fix

    assert "--force-reinstall" in fix
    assert f"--no-build-isolation {package}" in fix


@pytest.mark.parametrize("lead", ["Exception training model: '", 'Error loading model: "'])
def test_a_message_that_a_program_quotes_is_its_error(lead: str) -> None:
    """A program names its step and quotes what it caught; a quotation alone is no error."""
    quoted = "No such operator xformers_flash::flash_fwd"

    assert first(f"{lead}{quoted}{lead[-1]}") == "operators-not-loaded"
    assert first(f"see {lead[-1]}{quoted}{lead[-1]}") == ""


@pytest.mark.parametrize(
    ("name", "module", "direction"),
    [
        ("is_mlu_available", "accelerate.utils", "accelerate is too old"),
        ("top_k_top_p_filtering", "transformers", "transformers is too new"),
        ("HfFolder", "huggingface_hub", "huggingface-hub is too new"),
        ("Qwen2_5_VLForConditionalGeneration", "transformers", "transformers is too old"),
        ("GRPOTrainer", "trl", "trl is too old for the code that uses it (`GRPOTrainer` came"),
        ("prepare_model_for_int8_training", "peft", "peft is too new"),
        ("_prepare_mask", "transformers.models.llama", "most likely transformers is too new"),
        ("Newest9ForCausalLM", "transformers", "most likely transformers is too old"),
    ],
)
def test_a_missing_name_says_which_version_is_off(name: str, module: str, direction: str) -> None:
    """The message names the package and the direction, the fix installs that way."""
    cause = diagnose_text(f"ImportError: cannot import name '{name}' from '{module}' (/x.py)")[0]

    assert direction in cause.message
    if not direction.startswith("most likely"):
        assert ("--upgrade" in cause.fix) == ("too old" in direction)


@pytest.mark.parametrize(
    ("code", "how"),
    [("1", "exit code 1"), ("-8", "signal 8 (SIGFPE)"), ("136", "signal 8 (SIGFPE)")],
)
def test_the_table_of_torchrun_is_read(code: str, how: str) -> None:
    """The rank and the host that failed first, and signals by their names."""
    table = (
        f"  host      : node-7\n  rank      : 13 (local_rank: 5)\n  exitcode  : {code} (pid: 1)\n"
    )

    cause = diagnose_text(f"Root Cause (first observed failure):\n[0]:\n{table}")[0]

    assert cause.message == f"rank 13 on node-7 ended with {how}; its reason is not in this log"


@pytest.mark.parametrize(
    ("error", "direction", "remedy"),
    [
        ("GRPOConfig' object has no attribute 'epsilon'", "older than the script", "'trl>=0.16'"),
        ("SFTConfig' object has no attribute 'max_seq_length'", "newer than", "max_length=..."),
        ("DPOConfig' object has no attribute 'rpo_alpha'", "gone since 0.29", "'trl<0.29'"),
        ("DPOConfig' object has no attribute 'betaa'", "has no setting `betaa`", "trl=="),
    ],
)
def test_a_missing_setting_of_trl_says_which_release_has_it(
    error: str, direction: str, remedy: str
) -> None:
    """The release that brought it or dropped it; none is invented for an unknown name."""
    cause = diagnose_text(f"AttributeError: '{error}")[0]

    assert direction in cause.message
    assert remedy in cause.fix


def number(release: str) -> tuple[int, ...]:
    """A release as numbers, which compare."""
    return tuple(int(part) for part in release.split("."))


def test_no_name_came_and_went_with_one_release() -> None:
    """What a release dropped had come with an earlier one."""
    for came, went in ((CAME, WENT), (SETTINGS_CAME, SETTINGS_WENT)):
        for owner, releases in went.items():
            for release, names in releases.items():
                for name in names.split():
                    first_one = release_of(name, came.get(owner, {}))
                    assert not first_one or not release or number(first_one) < number(release)
