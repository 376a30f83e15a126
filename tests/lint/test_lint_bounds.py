"""What lint did not look at is never "nothing found": a finding says so, whoever asks.

How much it looks at is counted in entries, files and bytes, so that a busy machine finds the same.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsforge import walk
from dsforge.cli.main import main
from dsforge.findings.writers import WRITERS
from dsforge.lint import bounds
from dsforge.units import MIB

RULE = "files-left-out"
BROKEN = '{"train_batch_size": 8, "zero_optimization": {"stage": 7}}'
LARGE = '{"zero_optimization": {"stage": 2}, "notes": "%s"}'
MANY = json.dumps([{"caption": f"picture {n}", "width": n} for n in range(300)])


def linted(*arguments: str | Path) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as caught:
        main(["lint", *map(str, arguments)])
    return int(caught.value.code or 0)


def tree_of(folder: Path) -> Path:
    """A folder with the data of a project and, last, a config that is broken."""
    for number in range(6):
        (folder / f"data{number}.json").write_text(MANY)
        (folder / f"values{number}.yaml").write_text("a:\n" + "- {b: 1}\n" * 300)
    (folder / "zz").mkdir()
    (folder / "zz" / "ds_config.json").write_text(BROKEN)
    return folder


def test_a_slow_machine_finds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a minute passes between any two looks at the clock, nothing is left out."""
    tree_of(tmp_path)
    code, calm = linted("--brief", tmp_path), capsys.readouterr()
    ticks = itertools.count(time.monotonic(), 60)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))

    assert linted("--brief", tmp_path) == code == 3
    assert capsys.readouterr() == calm
    assert "stage" in calm.out


@pytest.mark.parametrize("shape", WRITERS)
@pytest.mark.parametrize(
    ("where", "name", "value"),
    [(walk, "MOST_ENTRIES", 5), (bounds, "MOST_FILES", 4), (bounds, "MOST_BYTES", 50_000)],
    ids=["entries", "files", "bytes"],
)
def test_a_bound_is_a_finding_in_every_format(
    *,
    where: object,
    name: str,
    value: int,
    shape: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Text, JSON, SARIF and the lines for GitHub name the rule, and the exit code is 3."""
    tree_of(tmp_path)
    monkeypatch.setattr(where, name, value)

    assert linted("--format", shape, tmp_path) == 3
    shown = capsys.readouterr()
    assert RULE in shown.out
    assert "nothing found" not in shown.err


def test_whoever_accepts_the_bound_may_ignore_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like any other rule."""
    tree_of(tmp_path)
    monkeypatch.setattr(bounds, "MOST_FILES", 4)

    assert linted("--ignore", RULE, tmp_path) == 0


@given(most=st.integers(0, 14))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_either_everything_was_looked_at_or_it_is_said(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the bound is, the broken config is found or the finding says what was left out."""
    if not (tmp_path / "zz").exists():
        tree_of(tmp_path)
    monkeypatch.setattr(bounds, "MOST_FILES", most)

    assert linted("--brief", tmp_path) == 3
    shown = capsys.readouterr().out
    assert ("value-choice" in shown) != (RULE in shown)


def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that cannot be listed is not an empty one."""
    tree_of(tmp_path)
    scandir = os.scandir

    def refused(path: str) -> object:
        if path.endswith("zz"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)

    assert linted("--brief", tmp_path) == 3
    assert "Permission denied" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["\x00\x01", LARGE % ("x" * 600_000)], ids=["binary", "large"])
@pytest.mark.parametrize("name", ["ds_config.json", "hostfile", ".deepspeed_env"])
def test_a_config_by_its_name_that_cannot_be_read_is_named(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder does not hide what the same file is accused of when it is named itself."""
    (tmp_path / name).write_text(text)

    assert linted("--brief", tmp_path) == 3
    assert "file-unreadable" in capsys.readouterr().out


def test_data_that_is_no_config_by_its_size_is_passed_over(tmp_path: Path) -> None:
    """A large or binary file with any other name is no config."""
    (tmp_path / "data.json").write_text("[" + "1," * 600_000 + "1]")
    (tmp_path / "weights.json").write_text("\x00\x01")

    assert linted("--brief", tmp_path) == 0


PATCH = "diff --git a/h b/h\n--- a/h\n+++ b/h\n@@ -1 +1 @@\n-one slots=8\n+two slots=4\n"


@pytest.mark.parametrize("ending", ["patch", "diff", "md", "py", "j2", "orig", "log"])
@pytest.mark.parametrize("name", ["hostfile", ".deepspeed_env", "args.txt"])
def test_a_name_that_goes_on_is_another_file(name: str, ending: str, tmp_path: Path) -> None:
    """`hostfile.patch` is no hostfile, nor is what begins like a patch."""
    (tmp_path / f"{name}.{ending}").write_text(PATCH)

    assert linted("--brief", tmp_path) == 0


@pytest.mark.parametrize("name", ["hostfile", "hostfile.txt", "hostfile_2", "hostfile.example"])
def test_a_hostfile_keeps_its_name(name: str, tmp_path: Path) -> None:
    """The names that launchers are given are looked at; a patch under one of them is none."""
    (tmp_path / name).write_text("one slots=0\n")
    assert linted("--brief", tmp_path) == 3
    (tmp_path / name).write_text(PATCH)
    assert linted("--brief", tmp_path) == 0


UNREAD = {
    "ds.yaml": "zero_optimization:\n\tstage: 3\n",
    "settings.yaml": "a: [1, 2\nb: 3\n",
    "settings.yml": "a:\n\tb: 1\n",
    "settings.json": '{"a": 1,, }',
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_named_file_that_is_not_what_its_name_says_is_an_error(name: str, tmp_path: Path) -> None:
    """Whoever names it wants to know more of it than that its kind is unknown."""
    (tmp_path / name).write_text(UNREAD[name])

    assert linted("--brief", tmp_path / name) == 3
    assert linted("--brief", tmp_path) == (3 if name == "ds.yaml" else 0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("values.yaml", "a: {{ .Values.b }}\n"),
        ("a.yaml", "a: &x 1\nb: *x\n"),
        ("ds_template.json", '{"a": AUTO}'),
        ("two.yaml", "a: 1\n---\nb: 2\n"),
        ("rows.jsonl", '{"a": 1}\n{"a": 2}\n'),
    ],
)
def test_what_is_sound_or_filled_in_later_is_of_no_known_kind(
    name: str, text: str, tmp_path: Path
) -> None:
    """Templates, and YAML of a form that no config of lint's has."""
    (tmp_path / name).write_text(text)

    assert linted("--brief", tmp_path / name) == 0


def test_each_named_folder_has_bounds_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a large folder takes is not taken from a small one beside it, and the sum is said."""
    for name in ("large", "small"):
        (tmp_path / name).mkdir()
    for number in range(9):
        text = json.dumps({"train_batch_size": 8, "comment": "x" * 20_000})
        (tmp_path / "large" / f"ds_config_{number}.json").write_text(text)
    (tmp_path / "small" / "ds_config.json").write_text('{"zero_optimization": {"stage": 9}}')
    monkeypatch.setattr(bounds, "MOST_BYTES", 200_000)

    assert linted("--brief", tmp_path / "large", tmp_path / "small") == 3
    shown = capsys.readouterr().out
    assert shown.count(RULE) == 1
    assert "value-choice" in shown
    stop = re.search(r"ds_config_(\d)\.json and the files behind it, after (\S+) MiB", shown)
    assert stop is not None
    assert float(stop[2]) == pytest.approx(int(stop[1]) * len(text) / MIB, rel=0.01)


def test_75_large_configs_are_all_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have 32 MB together, and no more of them is read than a config has."""
    text = json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 2}})
    for number in range(75):
        path = tmp_path / f"ds_config_{number}.json"
        path.write_text(text + " " * (434 * 1024 - len(text)))

    assert linted("--brief", tmp_path) == 0
    assert "75 files" in capsys.readouterr().err
