"""`dsforge ui`: the planner as a page in the browser, served here or written for a web host."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from dsforge.cli.paths import NamedPath

PORT = 8421
LARGEST_PORT = 65535


@click.command()
@click.option(
    "--export",
    "folder",
    type=NamedPath(),
    metavar="DIR",
    help="Write the page as static files for any web host, and exit.",
)
@click.option(
    "--port",
    type=click.IntRange(0, LARGEST_PORT),
    default=PORT,
    metavar="PORT",
    help="Port on localhost; 0 is any free port.",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
def ui(*, folder: Path | None, port: int, no_browser: bool) -> None:
    """Open the planner as a page in the browser.

    The page runs the same planner in the browser (WebAssembly): model, cluster and workload never
    leave it, and it works offline after the first visit. The runtime (about 11 MB) is fetched once,
    checked, and kept in the user's cache. --export writes the page for any static web host.
    """
    from dsforge.cli.show import note
    from dsforge.ui.export import export

    if folder is not None:
        made = export(folder, note)
        note(f"{made.folder}: {len(made.files)} files, {made.bytes / 1e6:.1f} MB; serve them over")
        note("https or on localhost: browsers refuse WebAssembly workers from file:// addresses")
        return
    _serve(port, browse=not no_browser)


def _serve(port: int, *, browse: bool) -> None:
    """Serve the page until Ctrl-C."""
    import tempfile
    import webbrowser

    from dsforge.cli.show import note
    from dsforge.ui.export import export
    from dsforge.ui.server import site

    with (
        tempfile.TemporaryDirectory(prefix="dsforge-ui-") as folder,
        site(Path(folder), port) as server,
    ):
        export(Path(folder), note)
        address = f"http://localhost:{server.server_port}/"
        print(address, flush=True)
        note("the page is served until Ctrl-C")
        if browse:
            webbrowser.open(address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
