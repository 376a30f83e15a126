"""Flags of the command line as a question: what is to be planned, before and after reading it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dsforge.cli.flags import FLAGS, Flags, option_name
from dsforge.cli.programs import programs_of

if TYPE_CHECKING:
    from dsforge.plan import Request
    from dsforge.reading.request import Asked


def asked_of(flags: Flags, ds_config: Path | None = None, *, launches: bool = False) -> Asked:
    """What the command line names, before anything is read.

    Only what `launches` needs addresses of hosts; elsewhere names do: nobody goes there.
    """
    from dsforge.reading.request import Asked
    from dsforge.reading.source import Setting

    settings = tuple(
        Setting(flag.setting, value, option_name(field))
        for (field, flag), value in zip(FLAGS.items(), flags, strict=True)
        if flag.setting and value is not None and field != "back_end"
    )
    if flags.back_end is not None:
        meant = programs_of(flags.back_end)
        named = (("back_end", meant.back_ends), ("program", meant.trainers))
        settings += tuple(
            Setting(("strategy", key), name, "--for") for key, names in named for name in names
        )
    return Asked(
        spec=flags.spec,
        cluster=flags.cluster,
        workload=flags.workload,
        hostfile=flags.hostfile,
        resolve=flags.resolve,
        by_name=not launches,
        ds_config=ds_config,
        settings=settings,
    )


def to_request(flags: Flags, ds_config: Path | None = None, *, launches: bool = False) -> Request:
    """What the command line and the files it names ask for. SpecError with all problems."""
    asked = asked_of(flags, ds_config, launches=launches)
    if flags.imported is not None:
        from dsforge.importing.request import request_of_files

        return request_of_files(asked, [flags.imported], ours=launches)
    from dsforge.reading.request import read_request

    return read_request(asked)
