"""The files of the page: complete, pinned, of one version; and the server on localhost."""

from __future__ import annotations

import _imp
import gzip
import json
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.message import Message
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser
from ui_page import Seen, open_page

from dsforge.cli.main import app
from dsforge.errors import DsforgeError
from dsforge.ui import runtime
from dsforge.ui.bundles import unbundled
from dsforge.ui.export import export
from dsforge.ui.runtime import Component, components, fetched
from dsforge.ui.server import site

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
    for name in ("planner.bin", "later.bin", "pyodide/python_stdlib.zip"):
        assert (again.folder / name).read_bytes() == (exported / name).read_bytes(), name


def test_the_planner_of_the_page_is_unmodified(exported: Path) -> None:
    """Each module is the one of the package, or bytecode with the hash of its source (PEP 552)."""
    package = Path(runtime.__file__).parents[2]
    files = {**part(exported, "planner.bin"), **part(exported, "later.bin")}
    own = {name: files[name] for name in files if re.fullmatch(r"dsforge/.*\.pyc?", name)}
    compiled = [name for name in own if name.endswith("c")]

    assert {"dsforge/api/planning.py", "dsforge/api/planning.pyc"} & own.keys()
    assert not [name for name in own if name.startswith(("dsforge/train/", "dsforge/cli/"))]
    assert not shutil.which("node") or len(compiled) > 100
    for name, content in own.items():
        source = (package / name.removesuffix("c")).read_bytes()
        if name in compiled:
            magic = int.from_bytes(content[:4], "little")
            assert content[8:16] == _imp.source_hash(magic, source), name
        else:
            assert content == source, name


def part(exported: Path, name: str) -> dict[str, bytes]:
    """The files of a part of the page's Python."""
    return unbundled((exported / name).read_bytes())


def test_each_module_is_in_one_part_and_what_comes_later_is_listed(exported: Path) -> None:
    """The listing in the first part names the modules of the later one, and those alone."""
    first, later = part(exported, "planner.bin"), part(exported, "later.bin")
    listed = json.loads(first["later.json"])
    sources = [name for name in later if name.endswith(".py")]

    assert not {name.removesuffix("c") for name in first} & later.keys()
    assert len(listed) == len(sources)
    for name in listed:
        path = name.replace(".", "/")
        assert {f"{path}.py", f"{path}/__init__.py"} & later.keys()


def test_a_first_plan_needs_at_most_9_megabytes(exported: Path) -> None:
    """As a host sends it: parts are compressed already, the rest by the host."""
    if not shutil.which("node"):
        pytest.skip("without Node.js nothing is compiled ahead, and all of Python comes at once")
    afterwards = {"later.bin", "licences.txt", "sw.js", "precache.js"}
    files = [path for path in exported.rglob("*") if path.is_file()]
    needed = [path.read_bytes() for path in files if path.name not in afterwards]

    assert sum(min(len(each), len(gzip.compress(each))) for each in needed) <= 9e6


def test_without_node_the_page_has_sources(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser
) -> None:
    """All of Python is one part then; the page answers with the same."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for path in exported_components():
        (cache / path.name).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    plain = export(tmp_path / "plain", said.append, cache=cache).folder

    assert "Node.js" in said[-1]
    assert part(plain, "later.bin") == {}
    assert not [name for name in part(plain, "planner.bin") if name.endswith(".pyc")]
    assert (plain / "first.json").read_bytes() == (exported / "first.json").read_bytes()
    with site(plain, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = browser.new_context()
        seen = Seen(context)
        page = open_page(context, f"http://localhost:{server.server_port}/")
        assert page.inner_text("#verdict") == "Fits"
        assert seen.errors == []
        context.close()
        server.shutdown()


def test_bytecode_that_cannot_be_kept_or_read_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged file in the cache counts as none, and a compiler that fails leaves the sources."""
    node = tmp_path / "bin" / "node"
    node.parent.mkdir()
    node.write_text("#!/bin/sh\necho 'SyntaxError: too old'\nexit 1\n")
    node.chmod(0o755)
    cache = tmp_path / "cache"
    cache.mkdir()
    for path in exported_components():
        (cache / path.name).symlink_to(path)
    for path in exported_components()[0].parent.glob("bytecode-*.zip"):
        (cache / path.name).write_bytes(b"PK damaged")
    monkeypatch.setenv("PATH", f"{node.parent}:/bin")
    said: list[str] = []
    folder = export(tmp_path / "site", said.append, cache=cache).folder

    assert "SyntaxError: too old" in said[-1]
    assert "dsforge/api/planning.py" in part(folder, "planner.bin")


def exported_components() -> list[Path]:
    """The fetched files of third parties."""
    from conftest import CACHE

    return [CACHE / each.file for each in components()]


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


def test_a_visitor_who_leaves_early_is_no_error(
    exported: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A tab that is closed in mid-download leaves no traceback on the terminal of `dsforge ui`."""
    with site(exported, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as leaving:
                linger = struct.pack("ii", 1, 0)  # closing is a reset, as browsers do it
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                path = "/pyodide/pyodide.asm.wasm"
                leaving.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost:{port}\r\n\r\n".encode())
                assert leaving.recv(1000).startswith(b"HTTP/1.0 200")
        time.sleep(0.5)
        assert get(f"http://localhost:{port}/")[0] == 200
        server.shutdown()

    assert capfd.readouterr().err == ""


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
        assert get(address + "planner.bin")[0] == 200
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
