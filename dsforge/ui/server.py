"""The page on localhost: static files, and configs of the hub where this machine may read them.

Only requests that name this very host are answered, so that no other site can reach the server
through a name of its own.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from dsforge.errors import DsforgeError
from dsforge.reading.hub import downloaded_config, is_hub_id

HOST = "127.0.0.1"
HUB, CONFIG = "/hub/", "/config.json"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}


class Site(SimpleHTTPRequestHandler):
    """The exported folder, and `/hub/ORGANISATION/NAME/config.json`."""

    extensions_map = {  # noqa: RUF012 (the class of the standard library declares it so)
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".js": "text/javascript",
        ".wasm": "application/wasm",
    }

    def send_head(self) -> BytesIO | BinaryIO | None:
        """Send the headers of an answer; returns its content, none where there is none."""
        if not self._is_for_us():
            self.send_error(HTTPStatus.FORBIDDEN, "this server answers to localhost only")
            return None
        if self.path.startswith(HUB):
            return self._config(unquote(self.path.removeprefix(HUB).removesuffix(CONFIG)))
        return super().send_head()

    def end_headers(self) -> None:
        """Add the headers that every answer has."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as it is overridden)
        """Say nothing: requests of one's own browser are no news."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send a file; a visitor who leaves in mid-download is no error."""
        with suppress(ConnectionError):
            super().copyfile(source, outputfile)

    def _is_for_us(self) -> bool:
        """Whether the request names this host and its port."""
        port = self.connection.getsockname()[1]
        return self.headers.get("Host", "") in (f"localhost:{port}", f"{HOST}:{port}")

    def _config(self, hub_id: str) -> BytesIO | None:
        """The config.json of a hub id."""
        if not is_hub_id(hub_id):
            self.send_error(HTTPStatus.NOT_FOUND, "not a hub id")
            return None
        try:
            content = downloaded_config(hub_id).encode()
        except DsforgeError:
            self.send_error(HTTPStatus.BAD_GATEWAY, "the hub does not give this config")
            return None
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return BytesIO(content)


def site(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server for the folder on localhost. Raises DsforgeError where the port is taken."""
    try:
        return ThreadingHTTPServer((HOST, port), partial(Site, directory=str(folder)))
    except (OSError, OverflowError) as error:
        hint = "name another one with --port, or 0 for any"
        raise DsforgeError(f"port {port} cannot be used: {error}", hint) from None
