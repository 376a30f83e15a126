"""The config.json of a hub id: from the local cache, else from the hub, within seconds.

The cache layout and the environment variables are those of huggingface_hub, which the core does
not install: HF_HUB_CACHE, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN. The token goes to the
endpoint alone, over https alone, never to where a redirect leads, and into no message.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from dsforge import catalog
from dsforge.errors import Problem, SpecError
from dsforge.outside import UnreadableError, read_text

TIMEOUT_S = 5.0
MAX_CONFIG_BYTES = 1 << 20
LONGEST_REVISION = 100
DEFAULT_ENDPOINT = "https://huggingface.co"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_NEEDS_LOGIN = (401, 403)


def is_hub_id(text: str) -> bool:
    """Whether the text has the form `organisation/name`."""
    return _HUB_ID.fullmatch(text) is not None and ".." not in text


def cached_config(hub_id: str) -> Path | None:
    """The config.json of the hub id in the local cache: of `main`, else of the newest snapshot."""
    folder = cache_folder() / ("models--" + hub_id.replace("/", "--"))
    snapshots = folder / "snapshots"
    main = folder / "refs" / "main"
    if main.is_file():
        revision = _revision(main)
        config = snapshots / Path(revision).name / "config.json"
        if revision and config.is_file():
            return config
    found = [path for path in snapshots.glob("*/config.json") if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _revision(main: Path) -> str:
    """The snapshot that `main` names; empty where the file cannot be read."""
    try:
        return read_text(main, LONGEST_REVISION, pipes=False).strip()
    except UnreadableError:
        return ""


def downloaded_config(hub_id: str) -> str:
    """The text of config.json from the hub. Raises SpecError that says how to fetch it by hand."""
    from urllib.error import HTTPError, URLError  # with ssl 20 ms, which other models need not pay
    from urllib.request import Request, urlopen

    if _is_true("HF_HUB_OFFLINE") or _is_true("TRANSFORMERS_OFFLINE"):
        raise _unreachable(hub_id, "the hub is disabled (HF_HUB_OFFLINE)")
    endpoint = os.environ.get("HF_ENDPOINT", DEFAULT_ENDPOINT).rstrip("/")
    scheme = urlsplit(endpoint).scheme
    if scheme not in ("http", "https"):
        raise _unreachable(hub_id, "HF_ENDPOINT must begin with https:// or http://")
    request = Request(f"{endpoint}/{hub_id}/resolve/main/config.json")  # noqa: S310 (checked above)
    token = os.environ.get("HF_TOKEN", "").strip()
    if token.isascii() and token.isprintable() and token and scheme == "https":
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310 (checked above)
            content: bytes = response.read(MAX_CONFIG_BYTES + 1)
    except HTTPError as error:
        error.close()
        raise _http_problem(hub_id, error.code) from None
    except (URLError, OSError, ValueError) as error:
        reason = str(getattr(error, "reason", error))
        raise _unreachable(hub_id, f"the hub did not respond ({reason[:100]})") from None
    if len(content) > MAX_CONFIG_BYTES:
        raise _unreachable(hub_id, "its config.json is larger than 1 MiB")
    return content.decode("utf-8", errors="replace")


def _http_problem(hub_id: str, status: int) -> SpecError:
    if status in _NEEDS_LOGIN:
        return _unreachable(
            hub_id,
            f"it is gated, private or misspelt (HTTP {status}); gated models require HF_TOKEN",
        )
    return _unreachable(hub_id, f"the hub returned HTTP {status}")


def _unreachable(hub_id: str, reason: str) -> SpecError:
    """The error that says which file is needed and how to bring it here."""
    nearest = ", ".join(catalog.nearest_models(hub_id)) or "none"
    hint = (
        f"on a machine with access: `hf download {hub_id} config.json --local-dir model`, copy "
        f"the file here and pass its path; or give a catalog name (nearest: {nearest}) or a size "
        "such as 7b"
    )
    message = f"model {hub_id} is neither in the catalog nor in the local cache, and {reason}"
    return SpecError((Problem("model-hub", message, hint),))


def cache_folder() -> Path:
    """The folder of the hub's local cache."""
    if cache := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    home = os.environ.get("HF_HOME")
    if home is None:
        base = os.environ.get("XDG_CACHE_HOME", "~/.cache")
        return Path(base).expanduser() / "huggingface" / "hub"
    return Path(home).expanduser() / "hub"


def _is_true(name: str) -> bool:
    return os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"}
