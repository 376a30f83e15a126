"""YAML from people: values, places, and everything that is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsforge.errors import SpecError
from dsforge.job import TrainJob
from dsforge.reading.files import ClusterFile
from dsforge.reading.problems import Collector, read_file, validated
from dsforge.reading.source import MAX_BYTES, Setting, Source, parse_source, read_source
from dsforge.strategy import Constraints

REFUSED = {
    "syntax": ("a: [1, 2", "yaml-syntax"),
    "tab": ("a:\n\tb: 1", "yaml-syntax"),
    "null byte": ("a: \x00", "yaml-syntax"),
    "list": ("- a\n- b", "yaml-not-a-mapping"),
    "word": ("hello", "yaml-not-a-mapping"),
    "null": ("~", "yaml-not-a-mapping"),
    "duplicate key": ("a: 1\nb: {c: 1, c: 2}", "yaml-duplicate-key"),
    "alias": ("a: &x [1]\nb: *x", "yaml-alias"),
    "depth": ("a: " + "[" * 200, "yaml-depth"),
    "python object": ("a: !!python/object/apply:os.system [reboot]", "yaml-tag"),
    "own tag": ("a: !thing 1", "yaml-tag"),
    "infinity": ("a: .inf", "yaml-number"),
    "not a number": ("a: .NaN", "yaml-number"),
    "overflow": ("a: 1e999", "yaml-number"),
    "endless integer": ("a: " + "9" * 5000, "yaml-number"),
    "second document": ("a: 1\n---\nb: 2", "yaml-documents"),
    "list as a key": ("? [a]\n: 1", "yaml-key"),
}


def problems(text: str, kind: type = Constraints) -> list[str]:
    """The messages of a text that must be refused."""
    with pytest.raises(SpecError) as caught:
        validated(kind, parse_source(text, "f.yaml"))
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(("text", "rule"), REFUSED.values(), ids=REFUSED)
def test_unsafe_or_ambiguous_yaml_is_refused(text: str, rule: str) -> None:
    """Each is one problem with the name of the file."""
    with pytest.raises(SpecError) as caught:
        parse_source(text, "f.yaml")

    assert [p.rule for p in caught.value.problems] == [rule]
    assert caught.value.problems[0].place.startswith("f.yaml")


def test_values_follow_the_core_schema_of_yaml() -> None:
    """What PyYAML would turn into booleans, sexagesimal numbers and dates stays text."""
    text = "{a: 1e-4, b: no, c: 12:30, d: '1', e: 2026-01-01, f: true, g: }"
    expected = {"a": 1e-4, "b": "no", "c": "12:30", "d": "1", "e": "2026-01-01"}

    assert parse_source(text, "f").values == {**expected, "f": True, "g": None}


def test_every_value_knows_its_line() -> None:
    """Places go down to list entries; a missing key has the place of its parent."""
    source = parse_source("hosts:\n  - address: a\n    slots: 1\n", "c.yaml")

    assert source.place(("hosts", 0, "slots")) == "c.yaml:3"
    assert source.place(("hosts", 0, "missing")) == "c.yaml:2"
    assert source.place(("missing",)) == "c.yaml"


def test_a_setting_wins_over_the_file_and_keeps_its_neighbours() -> None:
    """A flag replaces one value, deep inside too, and names itself as the place."""
    source = parse_source("data: {train: a, shape: text}\n", "w.yaml")

    laid = source.overlaid([Setting(("data", "train"), "b", "--data")])

    assert laid.values == {"data": {"train": "b", "shape": "text"}}
    assert laid.place(("data", "train")) == "--data"
    assert source.values["data"]["train"] == "a"


@pytest.mark.parametrize(
    ("content", "rule"),
    [(b"\xff\xfe", "file-not-text"), (b"#" * (MAX_BYTES + 1), "file-too-large")],
    ids=["not UTF-8", "too large"],
)
def test_files_that_are_no_short_text_are_refused(
    tmp_path: Path, content: bytes, rule: str
) -> None:
    """The file is named, its content is not shown."""
    path = tmp_path / "f.yaml"
    path.write_bytes(content)

    with pytest.raises(SpecError) as caught:
        read_source(path)

    assert caught.value.problems[0].rule == rule
    assert str(path) in caught.value.problems[0].place


@pytest.mark.parametrize("name", ["missing.yaml", ".", "a\0b"], ids=["missing", "folder", "null"])
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    """The operating system's reason is passed on."""
    with pytest.raises(SpecError, match="1 problem"):
        read_source(tmp_path / name)


def test_every_problem_of_a_file_comes_with_path_value_and_way_out() -> None:
    """Unknown key, wrong type, wrong choice, value out of range: all at once."""
    text = "zero_stage: 5\nrecompute: ful\nmicrobatch_size: 2\nmicro_batch_size: 0\n"

    found = problems(text + "tensor_parallel_size: two\n")

    assert sorted(found) == [
        "f.yaml:1: `zero_stage` (=5) must be `0`, `1`, `2` or `3`",
        "f.yaml:2: `recompute` (=ful) must be `none`, `selective` or `full` (did you mean `full`?)",
        "f.yaml:3: `microbatch_size` is not a key (did you mean `micro_batch_size`?)",
        "f.yaml:4: `micro_batch_size` (=0) must be at least 1",
        "f.yaml:5: `tensor_parallel_size` (=two) must be a whole number",
    ]


def test_nested_problems_have_dotted_paths() -> None:
    """Lists count from 0, and unions do not show which branch was tried."""
    text = "gpu: {name: x, memory_gib: -1, memory_bandwith_gb_s: 1, peak_tflops: {bf16: 1}}\n"

    found = "\n".join(problems(text + "hosts:\n- {address: a, slots: 0}\n", ClusterFile))

    assert "`gpu.memory_gib` (=-1) must be greater than 0" in found
    assert (
        "`gpu.memory_bandwith_gb_s` is not a key (did you mean `memory_bandwidth_gb_s`?)" in found
    )
    assert "f.yaml:3: `hosts[0].slots` (=0) must be at least 1" in found


@pytest.mark.parametrize("value", ["yes", "true", "'2'", "2.5", "[2]", "{}"])
def test_numbers_are_not_guessed_from_other_types(value: str) -> None:
    """Text, booleans, fractions and collections are no whole number."""
    assert problems(f"tensor_parallel_size: {value}") == [
        f"f.yaml:1: `tensor_parallel_size` (={_shown(value)}) must be a whole number"
    ]


def _shown(value: str) -> str:
    return {"true": "True", "'2'": "2", "[2]": "(2,)"}.get(value, value)


def test_a_file_is_read_into_its_type(tmp_path: Path) -> None:
    """The trainer's job file goes the same way."""
    path = tmp_path / "train.yaml"
    path.write_text("model: m\ndeepspeed_config: d\nsequence_length: 8\ndata: {train: t}\n")

    assert read_file(TrainJob, path).data.train == "t"


def test_problems_of_several_parts_are_raised_together() -> None:
    """The collector keeps going, and shows each problem once."""
    parts = Collector()
    bad = Source("f", {"zero_stage": 9})

    first = parts.attempt(lambda: validated(Constraints, bad))
    parts.attempt(lambda: first.value)
    parts.attempt(lambda: parse_source("- a", "g"))

    with pytest.raises(SpecError) as caught:
        parts.check()
    assert [p.place for p in caught.value.problems] == ["f", "g"]
