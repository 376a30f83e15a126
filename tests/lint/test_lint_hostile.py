"""Hostile files: bounded time, no traceback, a finding that says what is wrong."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lint_cases import CASES

from dsforge import walk
from dsforge.cli.main import main
from dsforge.lint.files import Against, checked, read_document, release_named
from dsforge.lint.reading.document import KINDS, Kind, applied
from dsforge.lint.reading.json_text import parsed
from dsforge.lint.reading.kind import document_of
from dsforge.lint.schemas.releases import frozen

AGAINST = Against(*release_named(None))
LONGEST_S = 5.0
QUICK = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ALIASES = "fp16: &a [x]\n" + "".join(f"b{n}: [*a, *a, *a]\n" for n in range(50))
HOSTILE = {
    "aliases.yaml": (ALIASES, "yaml-syntax"),
    "deep.json": ('{"fp16": ' + "[" * 100_000, "too-deep"),
    "deep.yaml": ("fp16: " + "[" * 50_000, "yaml-syntax"),
    "tag.yaml": ("fp16: !!python/object/apply:os.system [id]\n", "yaml-syntax"),
    "unclosed.json": ('{"fp16": "' + "x" * 400_000, "json-syntax"),
    "comments.json": ('{"fp16": ' + "/*" * 200_000, "json-syntax"),
    "digits.json": ('{"fp16": {"hysteresis": ' + "9" * 400_000 + "}}", "json-number"),
    "unknown.json": (
        json.dumps({"fp16": {}, **{f"zero_optimization{n}": n for n in range(15_000)}}),
        "key-misspelt",
    ),
    "twice.json": ('{"fp16": {}' + ', "fp16": {}' * 40_000 + "}", "duplicate-key"),
    "hostfile": ("-oProxyCommand=sh slots=1\n" * 15_000, "host-name"),
    ".deepspeed_env": ("$(reboot)=`id`;\n" * 20_000, "env-name"),
    "args.txt": ("".join(f"--tensor-model-paralel-size{n} 1\n" for n in range(9_000)), "megatron-"),
    "words.txt": ("--num-layers x\n--data-path " + "x " * 240_000, "megatron-value"),
    ".deepspeed_env.own": (
        "a b=1\n" + "".join(f"A{n}=$A{n}:/x\n" for n in range(27_000)),
        "env-name",
    ),
    "large.json": ("x" * (1 << 20), "file-unreadable"),
    "binary.json": ("\x00\x01\x02", "file-unreadable"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_named_in_bounded_time(name: str, tmp_path: Path) -> None:
    """Each is reported by the rule that fits, within seconds, in few findings."""
    text, rule = HOSTILE[name]
    (tmp_path / name).write_text(text)
    begun = time.process_time()
    found = checked(read_document(tmp_path / name), AGAINST)

    assert any(f.rule.startswith(rule) for f in found)
    assert time.process_time() - begun < LONGEST_S  # of the CPU: other work on it does not count
    assert len(found) < 500
    assert all(len(f.message) < 400 and f.message.isprintable() for f in found)


def test_a_file_of_100_mb_is_refused_unread(tmp_path: Path) -> None:
    """Only as much is read as a config may have."""
    path = tmp_path / "ds_config.json"
    with path.open("wb") as stream:
        stream.truncate(100_000_000)
    (finding,) = checked(read_document(path), AGAINST)

    assert "larger than 512 KiB" in finding.message


def test_a_pipe_that_nobody_fills_is_given_up(tmp_path: Path) -> None:
    """A pipe that nobody writes to is given up after seconds."""
    pipe = tmp_path / "ds_config.json"
    os.mkfifo(pipe)
    (finding,) = checked(read_document(pipe), AGAINST)

    assert "a pipe without data" in finding.message


@given(st.binary(max_size=2000), st.sampled_from(["a.json", "b.yaml", "hostfile", "x.txt"]))
@QUICK
def test_any_bytes_are_answered(tmp_path: Path, data: bytes, name: str) -> None:
    """Whatever the bytes are, there are findings and no exception."""
    path = tmp_path / name
    path.write_bytes(data)

    checked(read_document(path), AGAINST)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["auto", "true", "cpu", "nvme", "5e8", "fp16", ""]),
    st.text(max_size=20),
)
NAMES = sorted({key for block in frozen().blocks.values() for key in block.keys})
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=15)), inner, max_size=6),
    ),
    max_leaves=25,
)
CONFIGS = st.dictionaries(
    st.one_of(st.sampled_from(sorted(frozen().blocks[""].keys)), st.text(max_size=15)),
    VALUES,
    max_size=12,
)


@given(CONFIGS, st.sampled_from(KINDS), st.sampled_from(["0.14.0", "0.16.4", None]))
@QUICK
def test_any_values_are_answered(
    config: dict[str, object], kind: Kind, release: str | None
) -> None:
    """Whatever stands at the keys that rules look at, none of them raises."""
    against = Against(*release_named(release))
    document = document_of("ds_config.json", json.dumps(config), kind)

    for finding in checked(document, against):
        assert finding.line >= 1


@given(CONFIGS)
@QUICK
def test_repairs_leave_json(config: dict[str, object]) -> None:
    """After every repair of a pass the text is still JSON."""
    document = document_of("ds_config.json", json.dumps(config, indent=1), "ds_config")
    edits = [edit for finding in checked(document, AGAINST) for edit in finding.edits]

    assert parsed(applied(document.text, edits)).complete


@given(VALUES)
@QUICK
def test_json_reads_as_python_reads_it(value: object) -> None:
    """The positioned reader gives the values that the standard library gives."""
    text = json.dumps(value, indent=1)

    assert parsed(text).root == json.loads(text)


@given(st.sampled_from(sorted(CASES)), st.data())
@QUICK
def test_cut_files_are_answered(name: str, data: st.DataObject) -> None:
    """Every example, cut anywhere and with bytes of others in it, gets an answer."""
    pair = CASES[name]
    cut = data.draw(st.integers(0, len(pair.bad)))
    other = data.draw(st.sampled_from(['"', "{", "}", "\n", ":", "=", "&", "*", "\t", "\u2028"]))
    text = pair.bad[:cut] + other + pair.bad[cut:]

    checked(document_of(pair.name, text), AGAINST)


@pytest.mark.parametrize("character", ["\xa0", "\x1b", "\u202e", "\x07", "\u2028", "\x00"])
def test_no_message_holds_a_character_that_is_obeyed(character: str) -> None:
    """A key of the file, quoted in a message, cannot drive a terminal (found by fuzzing)."""
    text = f'"a{character}b": 1\n"a{character}b": 1\n'
    found = checked(document_of("ds_config.yaml", text, "ds_config"), AGAINST)

    assert all(finding.message.isprintable() for finding in found)
    assert all(finding.fix.isprintable() for finding in found)


def test_the_whole_machine_is_looked_at_for_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`lint /` comes to an end, and says what was left out if that was before the last file."""
    begin = time.monotonic()
    with pytest.raises(SystemExit) as caught:
        main(["lint", "/", "--brief"])

    assert caught.value.code in (None, 0, 3)
    assert time.monotonic() - begin < 30
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "files" in said


def test_a_tree_without_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a number of entries or levels; the rest is named."""
    monkeypatch.setattr(walk, "MOST_ENTRIES", 50)
    for number in range(60):
        (tmp_path / f"f{number}").touch()
    wide = walk.Walk(tmp_path, lambda name: False)
    assert len([*wide]) <= 51
    assert "after 50 entries" in wide.left_out

    deep = tmp_path / "/".join("d" * (walk.MOST_LEVELS + 5))
    deep.mkdir(parents=True)
    (deep / "x.json").touch()
    monkeypatch.setattr(walk, "MOST_ENTRIES", 5000)
    found = walk.Walk(tmp_path, lambda name: False)
    assert "x.json" not in {entry.name for entry in found}
    assert "levels deep" in found.left_out
