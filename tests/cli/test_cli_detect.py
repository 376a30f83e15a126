"""`dsforge detect` on the machine that runs the tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsforge.cli.main import main
from dsforge.reading.cluster import cluster_of
from dsforge.reading.source import read_source


def forge(*arguments: str) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as caught:
        main(["detect", *arguments])
    return int(caught.value.code or 0)


def test_the_written_file_is_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It reads back, and stdout holds the same cluster as JSON."""
    path = tmp_path / "cluster.yaml"

    code = forge("--out", str(path), "--json")

    shown = json.loads(capsys.readouterr().out)
    assert code == 0
    cluster, facts = cluster_of(read_source(path))[0], shown["facts"]
    assert (cluster.nodes, cluster.cpu_cores) == (1, facts["cpu_cores"])
    assert cluster.host_memory_bytes == pytest.approx(facts["memory_bytes"], rel=1e-3)
    assert cluster.gpu.is_cpu == (not facts["gpus"])
    assert set(shown) == {"cluster", "facts", "notes"}


def test_a_file_that_exists_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A person may have edited it; `--force` is the way out."""
    path = tmp_path / "cluster.yaml"
    path.write_text("mine\n")

    code = forge("--out", str(path))

    assert code == 1
    assert "--force" in capsys.readouterr().err
    assert path.read_text() == "mine\n"


def test_a_folder_that_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is created on the way."""
    code = forge("--out", str(tmp_path / "no" / "cluster.yaml"))

    assert code == 1
    assert "cannot be written" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
