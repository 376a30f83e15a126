"""The `dsforge` command: its table of commands and the one gate for errors."""

from __future__ import annotations

import os
import sys

# pydantic looks for plugins in the metadata of every installed package: 50 ms for nothing here.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

import typer

from dsforge.cli import bench, catalog, detect, estimate, gen, plan, train
from dsforge.errors import DsforgeError

app = typer.Typer(
    name="dsforge",
    help="Plan, write, launch and compare DeepSpeed and Megatron training runs.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (gen, plan, estimate, catalog, detect, train, bench):
    module.register(app)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a DsforgeError becomes a message on stderr and an exit code.

    `arguments` are those of the process unless given.
    """
    from dsforge.cli.show import show_error

    try:
        app(args=arguments)
    except DsforgeError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # `dsforge plan | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
