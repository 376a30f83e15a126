"""The files of the page: complete, pinned, of one version; and the server on localhost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from email.message import Message
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from dsforge.cli.main import app
from dsforge.errors import DsforgeError
from dsforge.ui import runtime
from dsforge.ui.export import export
from dsforge.ui.runtime import Component, components, fetched

PLAIN = {"licence": "MIT", "use": "a test"}


def listed(exported: Path) -> tuple[str, list[str]]:
    """The version of an export, and the files that it keeps offline."""
    text = (exported / "precache.js").read_text()
    version = text.partition('version: "')[2].partition('"')[0]
    return version, json.loads(text.partition("files: ")[2].rpartition(" };")[0])


def test_every_file_is_kept_offline(exported: Path) -> None:
    """The listing names all files but the service worker and itself."""
    version, files = listed(exported)
    below = {str(p.relative_to(exported)) for p in exported.rglob("*") if p.is_file()}

    assert version.startswith("0.1.0-")
    assert set(files) == below - {"sw.js", "precache.js"} | {"./"}


def test_the_same_page_has_the_same_version(exported: Path, tmp_path: Path) -> None:
    """An export is a function of its content: a version changes with it alone."""
    from conftest import CACHE

    again = export(tmp_path / "again", print, cache=CACHE)

    assert listed(again.folder) == listed(exported)
    assert (again.folder / "python.zip").read_bytes() == (exported / "python.zip").read_bytes()


def test_the_planner_of_the_page_is_unmodified(exported: Path) -> None:
    """Each module in the archive is the one of the package; rooms that need torch are not there."""
    package = Path(runtime.__file__).parents[1]
    names = zipfile.ZipFile(exported / "python.zip").namelist()
    own = [name for name in names if name.startswith("dsforge/") and name.endswith(".py")]

    assert "dsforge/api/planning.py" in own
    assert not [name for name in own if name.startswith(("dsforge/train/", "dsforge/cli/"))]
    with zipfile.ZipFile(exported / "python.zip") as archive:
        for name in own:
            assert archive.read(name) == (package.parent / name).read_bytes(), name


def test_licences_of_all_third_parties_are_shipped(exported: Path) -> None:
    """Each component stands there with its version and licence."""
    text = (exported / "licences.txt").read_text()

    for each in components():
        assert f"{each.name} {each.version}, {each.licence}" in text


def test_every_component_is_pinned() -> None:
    """Name, version, file, checksum and licence of each."""
    for each in components():
        assert len(each.sha256) == 64
        assert each.version in each.file
        assert each.licence


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_folder_with_other_files_is_refused(kind: str, tmp_path: Path) -> None:
    """An export never writes among files that are not its own."""
    from conftest import CACHE

    target = tmp_path / "site"
    if kind == "file":
        target.write_text("mine")
    elif kind == "folder":
        target.mkdir()
        (target / "index.html").write_text("mine")
    else:
        target.symlink_to(tmp_path)

    with pytest.raises(DsforgeError, match=r"is not (a folder|empty)"):
        export(target, print, cache=CACHE)
    if kind == "folder":
        assert (target / "index.html").read_text() == "mine"


def test_what_cannot_be_fetched_is_named_with_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without network the error names file, checksum and the folder to put it into."""
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:9")
    wanted = Component("left", "1.0", "npm", "left-1.0.tgz", "0" * 64, 10, **PLAIN)

    with pytest.raises(DsforgeError, match="the npm registry does not answer") as caught:
        fetched((wanted,), tmp_path / "cache", print)
    assert "left-1.0.tgz" in caught.value.hint
    assert "0" * 64 in caught.value.hint
    assert str(tmp_path / "cache") in caught.value.hint


def test_a_file_with_another_checksum_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: str
) -> None:
    """What a registry sends counts only with the checksum of the list."""
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", served)
    wanted = Component("left", "1.0", "npm", "left-1.0.tgz", "0" * 64, 10, **PLAIN)
    cache = tmp_path / "cache"

    with pytest.raises(DsforgeError, match="another checksum"):
        fetched((wanted,), cache, print)
    assert list(cache.iterdir()) == []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """A registry that sends another file."""
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    folder = tmp_path / "registry" / "left" / "-"
    folder.mkdir(parents=True)
    (folder / "left-1.0.tgz").write_bytes(b"0123456789")
    from functools import partial

    make = partial(Quiet, directory=str(tmp_path / "registry"))
    with ThreadingHTTPServer(("127.0.0.1", 0), make) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_file_put_there_by_hand_is_taken(tmp_path: Path) -> None:
    """The way out without network: the cache folder."""
    import hashlib

    content = b"by hand"
    checksum = hashlib.sha256(content).hexdigest()
    wanted = Component("left", "1.0", "npm", "left-1.0.tgz", checksum, len(content), **PLAIN)
    (tmp_path / "left-1.0.tgz").write_bytes(content)

    fetched((wanted,), tmp_path, print)


def get(address: str, host: str = "") -> tuple[int, Message]:
    """Status and headers of an answer."""
    parts = urlsplit(address)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.request("GET", parts.path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, answer.headers


def test_the_server_answers_to_its_own_name_only(address: str) -> None:
    """Another site that points a name of its own here gets nothing."""
    port = urlsplit(address).port

    assert get(address)[0] == 200
    assert get(f"http://127.0.0.1:{port}/")[0] == 200
    assert get(address, host="evil.example")[0] == 403
    assert get(address, host=f"evil.example:{port}")[0] == 403


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("pyodide/pyodide.asm.wasm", 200),
        ("nosuch", 404),
        ("../../etc/passwd", 404),
        ("%2e%2e/%2e%2e/etc/passwd", 404),
        ("hub/../../etc/passwd/config.json", 404),
        ("hub/x/config.json", 404),
    ],
)
def test_paths_lead_to_files_of_the_page_only(address: str, path: str, status: int) -> None:
    """Neither a path nor a hub id reaches another file."""
    found, headers = get(address + path)

    assert found == status
    if status == 200:
        assert headers["Content-Type"] == "application/wasm"
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_policy_of_the_page_names_no_other_site(exported: Path) -> None:
    """The content security policy allows the page's own origin alone, and no inline script."""
    html = (exported / "index.html").read_text()
    policy = html.partition('Content-Security-Policy" content="')[2].partition('"')[0]

    assert policy.startswith("default-src 'none'; script-src 'self' 'wasm-unsafe-eval';")
    assert "http" not in policy
    assert "'unsafe-inline'" not in policy
    assert " style=" not in html
    assert " onclick=" not in html


def test_the_command_serves_the_page_until_it_is_interrupted(tmp_path: Path) -> None:
    """`dsforge ui` prints the address of a page that is there, and ends with Ctrl-C."""
    command = [sys.executable, "-m", "dsforge", "ui", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert get(address)[0] == 200
        assert get(address + "python.zip")[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_said(address: str) -> None:
    """The error names the port and the flag."""
    port = str(urlsplit(address).port)
    done = CliRunner().invoke(app, ["ui", "--port", port, "--no-browser"])

    assert isinstance(done.exception, DsforgeError)
    assert port in done.exception.message
    assert "--port" in done.exception.hint
