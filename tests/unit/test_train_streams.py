"""Streams of a rank: a reader that goes, a full disk, a closed stream, one that does not wait."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

START = "import os, sys; from dsforge.train.run.streams import keep_writable; keep_writable();"
GOES_ON = "open('done', 'w').write('yes')"
TALK = (
    "import logging, warnings; logging.basicConfig();"
    "[(print('x' * 500, flush=True), logging.error('x'), warnings.warn(str(i)),"
    " sys.stderr.write('x\\n'), sys.stderr.flush(), sys.stdout.flush()) for i in range(100)];"
)


def run(folder: Path, program: str, **streams: object) -> subprocess.CompletedProcess[bytes]:
    """A Python process with our streams."""
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-c", START + program + GOES_ON],
        cwd=folder,
        timeout=60,
        check=False,
        **streams,
    )


def test_a_reader_that_goes(tmp_path: Path) -> None:
    """The lines that nobody reads are dropped, and the process goes on."""
    reader, writer = os.pipe()
    os.close(reader)
    done = run(tmp_path, TALK, stdout=writer, stderr=writer)
    os.close(writer)

    assert done.returncode == 0
    assert (tmp_path / "done").read_text() == "yes"


def test_a_terminal_that_goes(tmp_path: Path) -> None:
    """A pseudo-terminal whose other end is closed answers with EIO."""
    master, slave = os.openpty()
    os.close(master)
    done = run(tmp_path, TALK, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)

    assert done.returncode == 0
    assert (tmp_path / "done").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device without room here")
def test_a_log_on_a_full_disk(tmp_path: Path) -> None:
    """No room for a log is no reason to lose a step."""
    with Path("/dev/full").open("w") as full:
        done = run(tmp_path, TALK, stdout=full, stderr=full)

    assert done.returncode == 0
    assert (tmp_path / "done").is_file()


def test_a_reader_that_is_slow(tmp_path: Path) -> None:
    """A stream that does not wait drops lines instead of an exception, and recovers."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    program = "print('x' * 300_000, flush=True); print('end', flush=True);"
    found: list[bytes] = []

    def read() -> None:
        with os.fdopen(reader, "rb") as stream:
            found.append(stream.read())

    thread = threading.Thread(target=read)
    thread.start()
    done = run(tmp_path, program, stdout=writer)
    os.close(writer)
    thread.join(30)

    assert done.returncode == 0
    assert found[0].endswith(b"end\n")
    assert (tmp_path / "done").is_file()


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)], ids=str)
def test_a_closed_stream_is_nobody_elses(closed: tuple[int, ...], tmp_path: Path) -> None:
    """A file that is opened later does not get the number of stderr, and what is said with it."""
    program = (
        f"[os.close(i) for i in {closed}];"
        "from dsforge.train.run.streams import keep_writable;"
        "sys.stdout = None if 1 in {0} else sys.stdout;".format(set(closed))
        + "keep_writable(); f = open('data', 'wb'); assert f.fileno() > 2;"
        "os.write(2, b'native'); print('said', flush=True); f.write(b'bytes'); f.close();"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import os, sys;" + program + GOES_ON],
        cwd=tmp_path,
        timeout=60,
        check=False,
        capture_output=True,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data").read_bytes() == b"bytes"


def test_the_command_line_keeps_a_closed_stream_open(tmp_path: Path) -> None:
    """`dsforge train >&-`: what the command line opened in its place stays open."""
    program = (
        "import gc, os, sys; os.close(1); sys.stdout = sys.__stdout__ = None;"
        "from dsforge.cli.streams import steady; steady();"
        "from dsforge.train.run.streams import keep_writable; keep_writable(); gc.collect();"
        "f = open('data', 'wb'); assert f.fileno() > 2; print('said', flush=True);"
    )
    done = subprocess.run(
        [sys.executable, "-c", program + GOES_ON],
        cwd=tmp_path,
        timeout=60,
        check=False,
        capture_output=True,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data").read_bytes() == b""


def test_what_is_said_arrives(tmp_path: Path) -> None:
    """Healthy streams are as before, in order and with every character."""
    done = run(tmp_path, "print('\\u2264'); sys.stderr.write('a\\n');", capture_output=True)

    assert done.stdout == "\u2264\n".encode()
    assert done.stderr == b"a\n"


def test_streams_of_others_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """What a test captures stays captured."""
    from dsforge.train.run.streams import keep_writable

    before = sys.stdout, sys.stderr
    keep_writable()

    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr() == ("", "")
