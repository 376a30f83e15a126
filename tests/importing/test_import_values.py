"""No value of a file is replaced without a word, and none is both used and listed as left over."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_cases import CASES, Case
from import_scoring import cases, read_case

from dsforge.importing.read import read_texts
from dsforge.importing.values import Settings, Value

NO_NUMBERS = (
    ".nan",
    ".NaN",
    ".inf",
    "-.inf",
    "9" * 60,
    "1e999",
    "nan",
    "-5",
    "1:30",
    "two",
    "true",
)
FIELDS = {"micro_batch_size": "micro_batch_size", "sequence_len": "sequence_length"}
TRAINER = "output_dir: o\nper_device_eval_batch_size: 1\n"


@pytest.mark.parametrize("text", NO_NUMBERS)
@pytest.mark.parametrize("key", ["micro_batch_size", "gradient_accumulation_steps", "sequence_len"])
def test_what_is_no_number_is_a_problem(key: str, text: str) -> None:
    """It is not replaced by a default without a word."""
    lines = {"base_model": "gpt2", "adapter": "lora", "micro_batch_size": "1", "sequence_len": "8"}
    lines[key] = text
    found = read_texts({"a.yaml": "".join(f"{name}: {one}\n" for name, one in lines.items())})

    assert [problem.rule for problem in found.problems] == ["value-range"]
    assert FIELDS.get(key, key) in found.problems[0].message
    assert text[:40] in found.problems[0].message or text == "true"


@pytest.mark.parametrize("text", [".nan", ".inf", "9" * 60, "-1", "fast"])
@pytest.mark.parametrize("key", ["per_device_train_batch_size", "learning_rate"])
def test_the_trainers_files_too(key: str, text: str) -> None:
    """Whatever reads the number."""
    found = read_texts({"a.yaml": f"{TRAINER}save_strategy: 'no'\n{key}: {text}\n"})

    assert [problem.rule for problem in found.problems] == ["value-range"]


@pytest.mark.parametrize("text", ["null", "~", ""])
def test_nothing_is_the_default(text: str) -> None:
    """A key without a value is none that is wrong."""
    found = read_texts({"a.yaml": f"{TRAINER}per_device_train_batch_size: {text}\n"})

    assert (found.setup.micro_batch_size, found.problems) == (8, ())


YAML = (
    "language_model:\n  num_layers: 24\n  hidden_size: 64\n  num_attention_heads: 8\n"
    "model_parallel:\n  bf16: True\n  tensor_model_parallel_size: 2\n"
    "  pipeline_model_parallel_size: 3\n  sequence_parallel: True\n"
    "micro_batch_size: 2\nglobal_batch_size: 128\nseq_length: 4096\nlr: 2.5e-4\n"
    "num_layers_per_virtual_pipeline_stage: 4\nuse_distributed_optimizer: true\n"
)


def test_blocks_of_megatrons_own_file_are_arguments() -> None:
    """`--yaml-cfg`: sizes and precision stand in blocks."""
    found = read_texts({"gpt_config.yaml": YAML})
    setup = found.setup

    assert (setup.engine, setup.precision, setup.sequence_parallel) == ("megatron", "bf16", True)
    assert (setup.tensor_parallel_size, setup.pipeline_parallel_size) == (2, 3)
    assert (setup.virtual_stages, setup.zero_stage, setup.global_batch_size) == (2, 1, 128)
    lost = {left.key for left in found.lost}
    assert lost == {"language_model.hidden_size", "language_model.num_attention_heads"}
    assert {h.field: h.place for h in found.said}["precision"] == "gpt_config.yaml:6"


SWIFT = (
    "swift sft --model m/n --dataset d --tuner_type full --per_device_train_batch_size 2 "
    "--learning_rate 1e-5 --max_length 512 --deepspeed zero2 --split_dataset_ratio 0.1\n"
)


def test_what_was_used_is_not_left_over() -> None:
    """ms-swift's name of a built-in ds_config, after which all else is read."""
    found = read_texts({"run.sh": SWIFT})

    assert (found.setup.zero_stage, found.setup.micro_batch_size) == (2, 2)
    assert {left.key for left in found.lost} == {"dataset", "split_dataset_ratio"}


def test_what_is_left_over_is_listed_once() -> None:
    """A ds_config is read by a part, whose rest its caller lists, too."""
    text = '{"zero_optimization": {"stage": 1, "round_robin_gradients": true}, "dump_state": true}'
    found = read_texts({"ds.json": text})

    lost = ["dump_state", "zero_optimization.round_robin_gradients"]
    assert sorted(left.key for left in found.lost) == lost


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_case_lists_a_key_twice(case: Case) -> None:
    """Neither with nor without a reason."""
    lost = Counter((left.key, left.place) for left in read_texts(case.texts).lost)

    assert [key for key, count in lost.items() if count > 1] == []


def test_no_public_file_lists_a_key_twice() -> None:
    """Every file of the corpus."""
    for case in cases():
        lost = Counter((left.key, left.place) for left in read_case(case).lost)
        assert [key for key, count in lost.items() if count > 1] == [], case.name


KEYS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9), min_size=1)


@given(KEYS, KEYS, st.sets(st.sampled_from("abcdef")), st.sampled_from("abcdef"))
def test_what_is_read_of_made_settings_is_read_in_their_own(
    one: dict[str, int], other: dict[str, int], left_out: set[str], asked: str
) -> None:
    """Joined, without some, under other names: in any order."""
    first = Settings({key: Value(number, "a") for key, number in one.items()})
    second = Settings({key: Value(number, "b") for key, number in other.items()})
    made = first.joined(second).without(*left_out).renamed({asked: "new"})
    found = made.find("new")

    known = asked not in left_out and (asked in one or asked in other)
    assert (found is not None) == known
    for settings, keys in ((first, one), (second, other)):
        assert {key for key, _ in settings.unread()} == keys.keys() - ({asked} if known else set())
