"""The `dsforge` command: its table of commands and the one gate for errors."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from types import TracebackType
from typing import Any

# pydantic looks for plugins in the metadata of every installed package: 50 ms for nothing here.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

import click

from dsforge import __version__
from dsforge.cli import streams
from dsforge.errors import EXIT_USER, DsforgeError
from dsforge.origin import foreign_warning, install_command

COMMANDS = {
    "init": "Write a training job for your data and this machine.",
    "gen": "Choose a strategy and write all files of the run.",
    "plan": "Rank all strategies for a model on a cluster, with reasons.",
    "estimate": "Predict memory and step time of one strategy.",
    "explain": "Show each figure of a plan with its formula, inputs and source.",
    "rehearse": "Run the real DeepSpeed engine as one rank of the job and measure its memory.",
    "ui": "Open the planner as a page in the browser.",
    "catalog": "List the models, accelerators and links of the catalog.",
    "detect": "Describe this machine as a cluster file.",
    "probe": "Benchmark the cluster and write a card for --cluster.",
    "train": "Fine-tune a model from train.yaml; this process is one rank.",
    "submit": "Start a run folder in the background: here, over ssh, by Slurm or Kubernetes.",
    "status": "Show how a submitted run is doing, and what it died of where it failed.",
    "logs": "Print the log of a submitted run, or follow it.",
    "cancel": "End a submitted run; its ranks save a checkpoint.",
    "ckpt": "Verify, inspect, convert and export DeepSpeed checkpoints.",
    "generate": "Generate text with a trained model and measure its speed.",
    "bench": "Launch the same job with several strategies and recommend one.",
    "report": "Write a report of plans, runs and comparisons as one HTML page.",
    "import": "Explain configs and scripts of other programs, with price and a better plan.",
    "lint": "Check configs, hostfiles and arguments before launch.",
    "lsp": "Serve an editor: findings of lint, hovers and quick fixes.",
    "preflight": "Check all hosts and the network between them before launch.",
    "diagnose": "Find the cause of a failed run in its log, with evidence and a fix.",
    "mcp": "Serve the planner to coding assistants (Model Context Protocol).",
    "calibrate": "Fit a cluster card on finished runs.",
    "validate": "Compare predictions with a table of measured runs or of published figures.",
}
EXTRA_MODULES = dict.fromkeys(  # module -> the extra that installs it
    "accelerate deepspeed gguf numpy peft pyarrow safetensors torch transformers".split(), "train"
) | {"bitsandbytes": "qlora"}
MODULES = {"import": "importing"}  # of commands whose name no module can have
WITH_TORCH = frozenset(("ckpt", "generate", "rehearse", "train"))  # whose cycles hold much memory


def _collect_rarely() -> None:
    """Planning makes many objects that live to its end, and few cycles.

    The collector would walk them over and over, and once more at exit: a fifth of a short command.
    """
    gc.set_threshold(500_000, 20, 20)
    atexit.register(gc.freeze)


def module_of(name: str) -> str:
    """The module of a command, whose function has the name of the module."""
    return MODULES.get(name, name)


def command_of(name: str) -> click.Command:
    """A command by its name, from its module."""
    module = module_of(name)
    command: click.Command = getattr(import_module(f"dsforge.cli.{module}"), module)
    return command


class Later(click.Command):
    """A command of which only the name and the first line are known until it is called.

    The command itself is the function of the same name in the module of the same name. Only the
    command that runs is imported: what others need would cost each run a tenth of a second.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """The context of the real command; click goes on with that."""
        if self.name not in WITH_TORCH:
            _collect_rarely()
        command = command_of(str(self.name))
        return command.make_context(info_name, args, parent, **extra)


class Commands(click.Group):
    """The group that lists its commands as the table has them: the usual way first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a package of an extra that is missing becomes an error with its fix."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise _missing_extra(str(ctx.invoked_subcommand), error) from error


app = Commands(
    "dsforge",
    help="Plan, write, launch and compare DeepSpeed and Megatron training runs.",
    commands=[Later(name, short_help=line) for name, line in COMMANDS.items()],
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
click.version_option(__version__)(app)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a DsforgeError becomes a message on stderr and an exit code.

    `arguments` are those of the process unless given.
    """
    streams.steady()
    sys.excepthook = _show_traceback
    warning = foreign_warning()
    if warning:
        sys.stderr.write(f"warning: {warning}\n")
    try:
        try:
            sys.exit(app(args=arguments, prog_name="dsforge", standalone_mode=False))
        finally:
            streams.flush()
    except click.ClickException as error:
        from dsforge.masking import masked

        shown = StringIO()
        error.show(file=shown)
        sys.stderr.write(masked(shown.getvalue()))  # it repeats what was typed
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Aborted!", file=sys.stderr)
        sys.exit(EXIT_USER)
    except DsforgeError as error:
        from dsforge.cli.show import show_error

        show_error(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # `| head`: the reader has seen enough
        streams.silence(sys.stdout)
        sys.exit(EXIT_USER)
    except OSError as error:
        if error.filename is not None or error.errno not in streams.NO_ROOM:
            raise
        streams.silence(sys.stdout)
        sys.stderr.write(f"error: the output cannot be written: {error.strerror}\n")
        sys.exit(EXIT_USER)


def _missing_extra(command: str, error: ModuleNotFoundError) -> DsforgeError:
    """What to install for a command of an extra; any other missing module is a bug."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRA_MODULES or find_spec(module):
        raise error
    extra = "ckpt" if (command, module) == ("ckpt", "numpy") else EXTRA_MODULES[module]
    message = f"`dsforge {command}` needs {module}, which is not installed"
    return DsforgeError(message, f"install with: {install_command(extra)}")


def _show_traceback(
    kind: type[BaseException], error: BaseException, _trace: TracebackType | None
) -> None:
    """What Python shows of a bug, without the secrets in it."""
    from dsforge.masking import masked_traceback

    sys.stderr.write(masked_traceback(error))
