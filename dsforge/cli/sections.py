"""The help of commands that take the shared flags: one section for each kind of flag."""

from __future__ import annotations

from collections.abc import Iterator

import click

from dsforge.cli.flags import FLAGS

OWN = "Options"  # the section of what only one command takes
WIDEST = 30  # columns of an option with its value; a wider one gets a line of its own


class Sections(click.Command):
    """A command whose help shows the shared flags section by section, all columns aligned."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section that has options: those of `Flags` in their order, then its own."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for field, record in _records(self, ctx):
            section = FLAGS[field].section if field in FLAGS else OWN
            sections.setdefault(section, []).append(record)
        width = min(WIDEST, max(len(left) for rows in sections.values() for left, _ in rows))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl([(left.ljust(width), right) for left, right in rows])


def _records(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, tuple[str, str]]]:
    """Name and help line of each option that is shown."""
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record and isinstance(parameter, click.Option):
            yield str(parameter.name), record
