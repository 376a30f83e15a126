"""A small server that answers kubectl: it stores services and jobs, and has one pod with a log.

It stands for the API server, not for Kubernetes: nothing is scheduled, and a manifest is stored as
it came. What it shows is that kubectl takes our words and what it then asks for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERBS = ["create", "delete", "get", "list", "patch"]
GROUPS = {"api/v1": ("", "v1", "Service"), "apis/batch/v1": ("batch", "v1", "Job")}
BATCH = {"groupVersion": "batch/v1", "version": "v1"}
MISSING = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"}
POD: dict[str, Any] = {
    "metadata": {"name": "pod-0"},
    "spec": {"containers": [{"name": "dsforge"}]},
    "status": {"phase": "Running"},
}


class Api(ThreadingHTTPServer):
    """The server, what it stores by path, and what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.stored: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.log = "step 1/2\n"


def resources(version: str, *kinds: tuple[str, str]) -> dict[str, Any]:
    """The answer of discovery for one group."""
    listed = [
        {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": VERBS}
        for kind, name in kinds
    ]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": listed}


def openapi(group: str) -> dict[str, Any]:
    """A schema without types, whose only word is that the server checks fields."""
    name, version, kind = GROUPS[group]
    operation = {
        "parameters": [{"name": "fieldValidation", "in": "query"}],
        "x-kubernetes-group-version-kind": {"group": name, "version": version, "kind": kind},
        "responses": {},
    }
    info = {"title": "api", "version": "1"}
    paths = {f"/{group}/{{name}}": {"patch": operation}}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}


def found(server: Api, path: str) -> dict[str, Any] | str | None:
    """The answer to GET; none where there is nothing."""
    fixed: dict[str, Any] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "groups": [{"name": "batch", "versions": [BATCH], "preferredVersion": BATCH}],
        },
        "/api/v1": resources("v1", ("Service", "services"), ("Pod", "pods"), ("Pod", "pods/log")),
        "/apis/batch/v1": resources("batch/v1", ("Job", "jobs")),
        "/openapi/v3": {
            "paths": {group: {"serverRelativeURL": f"/openapi/v3/{group}"} for group in GROUPS}
        },
        **{f"/openapi/v3/{group}": openapi(group) for group in GROUPS},
    }
    if path.endswith("/pods"):
        place = {"namespace": path.split("/")[-2]}
        pod = {**POD, "metadata": {**POD["metadata"], **place}}
        return {"kind": "PodList", "apiVersion": "v1", "items": [pod] if server.stored else []}
    return server.log if path.endswith("/log") else fixed.get(path) or server.stored.get(path)


class Asked(BaseHTTPRequestHandler):
    """One request of kubectl."""

    server: Api

    def _say(self, value: dict[str, Any] | str, code: int = 200) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        self.send_response(code)
        kind = "text/plain" if isinstance(value, str) else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Keep the request instead of printing it."""
        self.server.requests.append(f"{self.command} {self.path}")

    @property
    def _name(self) -> str:
        return self.path.partition("?")[0]

    def do_GET(self) -> None:
        """What is stored, or what the server can do."""
        answer = found(self.server, self._name)
        self._say(MISSING | {"code": 404}, 404) if answer is None else self._say(answer)

    def do_POST(self) -> None:
        """Store a document."""
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.stored[f"{self._name}/{document['metadata']['name']}"] = document
        self._say(document, 201)

    def do_DELETE(self) -> None:
        """Forget a document."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        known = self.server.stored.pop(self._name, None)
        self._say({"kind": "Status", "apiVersion": "v1", "status": "Success"} if known else MISSING)


@contextmanager
def api_server(folder: Path) -> Iterator[tuple[Api, Path]]:
    """A running server, and the kubeconfig that leads to it."""
    server = Api()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    cluster = {"server": f"http://127.0.0.1:{server.server_port}"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
        "users": [{"name": "test", "user": {}}],
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
    try:
        yield server, folder / "kubeconfig"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
