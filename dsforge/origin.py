"""Where this copy of dsforge came from, and the command that installs it again.

On the public package index the name `dsforge` belongs to another project with the same module name,
so no message may say `pip install dsforge`. Messages name what is certain instead: the checkout,
the address that pip recorded (PEP 610), or the packages that are missing.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

MODULE = "dsforge"
DISTRIBUTION = "dsforge-planner"
PACKAGE = Path(__file__).resolve().parent
_OWN_NAME = re.compile(rf'^name = "{DISTRIBUTION}"$', re.MULTILINE)
_FOREIGN = re.compile(
    r"dsforge-(?P<version>[0-9][0-9A-Za-z.!+]{0,40})(-py3[.\d]*)?\.(dist|egg)-info"
)
_EXTRA = re.compile(r"""extra\s*==\s*["'](?P<name>[\w-]+)["']""")


def distribution_of(module: str) -> str:
    """The distribution that holds a module of the same name, or ours."""
    return DISTRIBUTION if module == MODULE else module


class Origin(NamedTuple):
    """The place that pip can install from; empty where none is known."""

    place: str
    is_folder: bool = False  # a folder or file of this machine
    is_editable: bool = False

    def requirement(self, extras: tuple[str, ...] = ()) -> str:
        """The argument for pip: a path, or the name with the address behind it."""
        wanted = f"[{','.join(extras)}]" if extras else ""
        return (
            f"{self.place}{wanted}" if self.is_folder else f"{DISTRIBUTION}{wanted} @ {self.place}"
        )


def install_command(*extras: str, python: str = "") -> str:
    """The shell command that installs this copy with extras; of `python` where one is named.

    Where it is not known what this copy was installed from: the packages of the extras themselves.
    """
    pip = f"{shlex.quote(python)} -m pip install" if python else "pip install"
    found = origin()
    if found.place:
        editable = "-e " if found.is_editable else ""
        return f"{pip} {editable}{shlex.quote(found.requirement(extras))}"
    return " ".join((pip, *map(shlex.quote, packages_of(extras))))


def install_elsewhere(python: str) -> str:
    """How to install this copy on another host for its interpreter `python`."""
    found = origin()
    copied = f"copy {found.place} there, then " if found.is_folder else ""
    return f"{copied}`{install_command('train', python=python)}`"


def origin(package: Path = PACKAGE) -> Origin:
    """The checkout that a package lies in, else what pip recorded when it installed it."""
    import json
    from importlib import metadata

    checkout = package.parent
    if _is_checkout(checkout):
        return Origin(str(checkout), is_folder=True, is_editable=True)
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        return _recorded(json.loads(text or "{}"))
    except (metadata.PackageNotFoundError, ValueError, TypeError, AttributeError, OSError):
        return Origin("")


def packages_of(extras: tuple[str, ...]) -> tuple[str, ...]:
    """What the extras of this distribution ask for, as pip takes it."""
    from importlib import metadata

    try:
        wanted = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return ("torch", "deepspeed", "transformers")
    split = [line.partition(";") for line in wanted]
    named = [(text.strip(), _EXTRA.search(marker)) for text, _, marker in split]
    return tuple(text for text, extra in named if extra and extra["name"] in extras)


def foreign_distribution() -> tuple[str, Path] | None:
    """Version and folder of another project's `dsforge` that Python would find, too.

    Only names of files are read: this runs at every start.
    """
    for folder in dict.fromkeys((str(PACKAGE.parent), *sys.path)):
        try:
            names = [path.name for path in Path(folder or ".").iterdir()]
        except OSError:
            continue
        for name in names:
            if match := _FOREIGN.fullmatch(name):
                return match["version"], Path(folder)
    return None


def foreign_warning() -> str:
    """The warning about another project's `dsforge`; empty where there is none."""
    found = foreign_distribution()
    if found is None:
        return ""
    version, folder = found
    return (
        f"`{MODULE}` {version} in {folder} is the package of another project, or an old copy of "
        "this one; both have the same module name, and each overwrites files of the other. This "
        f"program is `{DISTRIBUTION}`. Run: pip uninstall {MODULE}; then: {install_command()}"
    )


def _is_checkout(folder: Path) -> bool:
    """Whether a folder holds the project's own pyproject.toml."""
    try:
        return bool(_OWN_NAME.search((folder / "pyproject.toml").read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError):
        return False


def _recorded(url: dict[str, Any]) -> Origin:
    """What direct_url.json says (PEP 610); nothing where the place is gone."""
    from urllib.parse import unquote, urlsplit, urlunsplit

    address = urlsplit(str(url["url"]) if "url" in url else "")
    if address.scheme == "file":
        place = Path(unquote(address.path))
        editable = bool((url.get("dir_info") or {}).get("editable"))
        return (
            Origin(str(place), is_folder=True, is_editable=editable)
            if place.exists()
            else Origin("")
        )
    host = address.netloc.rpartition("@")[2]  # never a user's name or password
    plain = urlunsplit((address.scheme, host, address.path, "", ""))
    if address.scheme not in ("https", "http", "ssh", "git") or not host:
        return Origin("")
    revision = url.get("vcs_info")
    if revision:
        return Origin(f"{revision['vcs']}+{plain}@{revision['commit_id']}")
    return Origin(plain)
