"""The pre-commit hooks and the GitHub action: what they run is run here, word for word."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
BROKEN = (ROOT / "examples/broken_ds_config.json").read_text()
PATH = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
CHECKED = (
    *("ds_config.json", "conf/ds_config_zero3.yaml", "deepspeed.json", "zero2.json"),
    *("accelerate_config.yaml", "train.yaml", "hostfile", "conf/hostfile.example"),
    *(".deepspeed_env", "a/.deepspeed_env", "dsconfig.json"),
    *("ds_z3_config.json", "stage2.json", "fsdp_config.yaml", "ds_my_config.json"),
)
PASSED_OVER = ("package.json", "README.md", "retrain.py", "conf/model.yaml", "hostfiles/x.py")


def run(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A shell line as the hook or the action runs it."""
    return subprocess.run(
        ["/bin/bash", "-e", "-c", command],
        cwd=folder,
        env={**os.environ, **PATH, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def hook(number: int, folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    """A hook on these files: entry, arguments, names, as pre-commit puts them together."""
    words = [*shlex.split(HOOKS[number]["entry"]), *HOOKS[number]["args"], *names]
    return run(shlex.join(words), folder)


def action(folder: Path, paths: str, arguments: str = "") -> subprocess.CompletedProcess[str]:
    """The last step of the action with these inputs."""
    step = ACTION["runs"]["steps"][-1]
    values = {"inputs.paths": paths, "inputs.arguments": arguments, "github.action_path": str(ROOT)}
    given = {name: expression.strip("${} ") for name, expression in step["env"].items()}
    return run(step["run"], folder, **{n: values.get(text, text) for n, text in given.items()})


@pytest.mark.parametrize("number", range(len(HOOKS)), ids=[hook["id"] for hook in HOOKS])
def test_a_hook_takes_the_files_that_lint_knows(number: int) -> None:
    """The usual names of configs are checked; other files are left alone."""
    files = re.compile(HOOKS[number]["files"])

    assert [name for name in CHECKED if not files.search(name)] == []
    assert [name for name in PASSED_OVER if files.search(name)] == []


def test_a_hook_stops_a_commit_with_errors(tmp_path: Path) -> None:
    """A file with errors, its name beginning with a dash, fails; a good one passes."""
    (tmp_path / "-x.ds_config.json").write_text(BROKEN)
    (tmp_path / "hostfile").write_text("10.0.0.1 slots=8\n")

    bad, good = hook(0, tmp_path, "-x.ds_config.json"), hook(0, tmp_path, "hostfile")

    assert (bad.returncode, good.returncode) == (3, 0), bad.stderr + good.stderr
    assert "[key-misspelt]" in bad.stdout


def test_the_fixing_hook_writes_what_is_safe(tmp_path: Path) -> None:
    """A fractional bucket is written as a whole number."""
    path = tmp_path / "ds_config.json"
    path.write_text(BROKEN)

    hook(1, tmp_path, path.name)

    assert '"stage3_prefetch_bucket_size": 15099494,' in path.read_text()


def test_the_action_writes_annotations(tmp_path: Path) -> None:
    """Each finding is a workflow command with file and line; errors fail the step."""
    (tmp_path / "ds_config.json").write_text(BROKEN)

    done = action(tmp_path, ".", "--ignore batch-product")

    assert done.returncode == 3
    assert "::error file=ds_config.json,line=5" in done.stdout
    assert "batch-product" not in done.stdout


def test_inputs_of_the_action_are_only_words(tmp_path: Path) -> None:
    """Metacharacters in the inputs run nothing, and a path with a dash is no option."""
    (tmp_path / "ds_config.json").write_text("{}")

    done = action(tmp_path, "ds_config.json;touch${IFS}made $(touch made) `touch made` --fix")

    assert done.stdout.count("title=file-unreadable") == 6
    assert not (tmp_path / "made").exists()


def test_code_in_the_checked_repository_is_not_run(tmp_path: Path) -> None:
    """Modules named as ours and as our libraries stay files: a pull request may bring them."""
    for name in ("click", "yaml", "dsforge", "json", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("from pathlib import Path\nPath('ran').touch()\n")

    done = action(tmp_path, ".")

    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


def test_the_action_passes_inputs_through_the_environment() -> None:
    """No expression of GitHub stands in a shell line, where it would be text of the script."""
    steps = ACTION["runs"]["steps"]

    assert all("${{" not in step["run"] for step in steps)
    assert all(step["shell"] == "bash" for step in steps)
    assert set(ACTION["inputs"]) == {"paths", "arguments"}
