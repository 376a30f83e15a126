"""Owner: whose run folder it is. What another user has prepared is not gone on with.

The rule is git's for `safe.directory`: a folder must belong to the user who writes it, or to the
one who called `sudo`. Root's folders are taken, too: a volume in Kubernetes belongs to root, and
who fears root has lost. In a container root takes every owner, since there the numbers of a
mounted folder's users mean nothing; a user of the machine who is root elsewhere is refused.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dsforge.errors import DsforgeError

SAFE = "DSFORGE_SAFE_FOLDERS"  # paths with colons between them; `*` for all
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
CONTAINER_VARIABLES = ("KUBERNETES_SERVICE_HOST", "container", "APPTAINER_CONTAINER")
ROOT = 0


def check_owner(descriptor: int, path: Path) -> None:
    """Raise DsforgeError where an open folder belongs to another user."""
    owner = os.fstat(descriptor).st_uid
    if not is_ours(owner) and not _is_safe(path):
        message = f"{path} belongs to {_named(owner)}, and you are {_named(os.geteuid())}"
        way = f"copy it (a copy is yours), choose another --out, or export {SAFE}={path.absolute()}"
        raise DsforgeError(message, way)


def is_ours(owner: int) -> bool:
    """Whether what a user owns may be gone on with by this process."""
    ours = {os.geteuid(), ROOT}
    if os.geteuid() != ROOT:
        return owner in ours
    caller = os.environ.get("SUDO_UID", "")
    return owner in ours or str(owner) == caller or (not caller and _in_container())


def _in_container() -> bool:
    """Whether this process runs in a container, as far as that can be told."""
    marked = any(Path(path).exists() for path in CONTAINER_FILES)
    return marked or any(os.environ.get(name) for name in CONTAINER_VARIABLES)


def _is_safe(path: Path) -> bool:
    """Whether the user has named the folder, or one above it, as safe."""
    named = [name for name in os.environ.get(SAFE, "").split(":") if name]
    place = Path(os.path.realpath(path))
    return "*" in named or any(place.is_relative_to(os.path.realpath(name)) for name in named)


def _named(user: int) -> str:
    """A user as `name (number)`."""
    with suppress(KeyError, ImportError):
        import pwd  # WebAssembly, where the page runs, has no users

        return f"{pwd.getpwuid(user).pw_name} ({user})"
    return f"user {user}"
