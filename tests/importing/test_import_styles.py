"""Each style is read as its program reads it: defaults, quirks, and what stays open."""

from __future__ import annotations

import pytest
from import_cases import CASES, Case

from dsforge.errors import SpecError
from dsforge.importing.read import read_texts
from dsforge.importing.recognition import STYLES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_file_is_read_as_its_program_reads_it(case: Case) -> None:
    """Fields of the setup, and what is open."""
    found = read_texts(case.texts)
    values = found.setup.model_dump()

    assert {field: values[field] for field in case.setup} == case.setup
    assert {left.key for left in found.open} >= set(case.open)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_value_has_a_place(case: Case) -> None:
    """What a file says has its file and line; a default the place in the program."""
    found = read_texts(case.texts)

    assert [held.field for held in found.said if not held.place] == []
    told = [held for held in found.said if held.origin == "said" and held.field != "engine"]
    names = tuple(case.texts)
    assert [held.place for held in told if not held.place.startswith(names)] == []


def test_places_are_the_lines_of_the_text() -> None:
    """A value of an array of a script has the line where it is written."""
    text = "A=(\n  --output_dir o\n  --bf16\n  --per_device_train_batch_size 4\n)\n"
    found = read_texts({"a.sh": text + 'torchrun --nproc_per_node 2 t.py "${A[@]}"\n'})
    places = {held.field: held.place for held in found.said}

    assert places["precision"] == "a.sh:3"
    assert places["micro_batch_size"] == "a.sh:4"
    assert places["gpus_per_node"] == "a.sh:6"


def test_what_has_no_field_is_lost_by_name() -> None:
    """No key is dropped silently."""
    found = read_texts({"a.yaml": "finetuning_type: lora\ncutoff_len: 8\nneat_packing: true\n"})

    assert [(left.key, left.place) for left in found.lost] == [("neat_packing", "a.yaml:3")]


def test_an_optimizer_without_figures_is_lost_with_a_reason() -> None:
    """It is not replaced by another."""
    found = read_texts(
        {"a.json": '{"save_strategy": "no", "eval_strategy": "no", "optim": "lomo"}'}
    )

    assert [left.reason for left in found.lost if left.key == "optimizer"] != [""]


def test_files_of_nobody_are_refused_with_what_is_known() -> None:
    """The message names the programs."""
    with pytest.raises(SpecError) as caught:
        read_texts({"a.yaml": "apiVersion: v1\nkind: Pod\n"})

    problem = caught.value.problems[0]
    assert problem.rule == "style-unknown"
    assert "axolotl" in problem.hint


def test_styles_have_names_of_their_own() -> None:
    """Each is listed once, with the place in its program."""
    names = [style.name for style in STYLES]

    assert len(names) == len(set(names)) >= 14
    assert [style.name for style in STYLES if not style.evidence or not style.label] == []
