"""`dsforge lsp`: the findings, explanations and repairs of lint in an editor."""

from __future__ import annotations

import click


@click.command()
@click.option("--model", help="Also check against this model: name, folder, config.json, 7b.")
@click.option("--cluster", help="Also check against this cluster file.")
@click.option("--workload", help="Workload file of the memory that hovers show.")
@click.option(
    "--deepspeed",
    metavar="RELEASE",
    help="DeepSpeed release: 0.14 to 0.19, or `installed` (default: newest).",
)
def lsp(
    *, model: str | None, cluster: str | None, workload: str | None, deepspeed: str | None
) -> None:
    """Serve an editor: findings of lint, hovers and quick fixes.

    Speaks the Language Server Protocol on stdin and stdout; an editor starts it. With a model and
    a cluster, hovers show the memory that a key of a ds_config decides. Needs the extra `lsp`.
    """
    from importlib.util import find_spec

    if find_spec("pygls") is None:
        from dsforge.errors import DsforgeError
        from dsforge.origin import install_command

        raise DsforgeError("`dsforge lsp` needs pygls", install_command("lsp"))
    from dsforge.lsp.server import server_of
    from dsforge.lsp.session import Settings

    server_of(Settings(model, cluster, workload, deepspeed)).start_io()
