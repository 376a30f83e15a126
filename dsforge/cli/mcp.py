"""`dsforge mcp`: planning and checking as tools for coding assistants, over stdio."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import click

from dsforge.cli.paths import NamedPath

OFFLINE = "HF_HUB_OFFLINE"  # what huggingface_hub calls it


@click.command()
@click.option(
    "--root",
    type=NamedPath(exists=True, files=False),
    default=Path(),
    show_default="the current folder",
    help="Folder whose files may be read; all others are refused.",
)
@click.option("--online", is_flag=True, help="Look up unknown hub ids on the Hugging Face hub.")
def mcp(*, root: Path, online: bool) -> None:
    """Serve the planner to coding assistants (Model Context Protocol).

    The server speaks on stdio. Its tools plan, estimate, find, explain, lint and diagnose read
    files below the root folder and nothing else; they write no file and start no process.
    Configure it in the assistant as the command `dsforge mcp --root PROJECT`.
    """
    if find_spec("mcp") is None:
        from dsforge.errors import DsforgeError
        from dsforge.origin import install_command

        raise DsforgeError("`dsforge mcp` requires the package `mcp`", install_command("mcp"))
    from dsforge.cli.mcp_tools import server
    from dsforge.outside import allow_only
    from dsforge.reading.hub import cache_folder

    os.chdir(root)
    allow_only(Path(), cache_folder())
    if not online:
        os.environ[OFFLINE] = "1"
    server().run("stdio")
