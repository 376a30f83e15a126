"""A line of life on stderr: what a command waits for, whenever it said nothing for some seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsforge.train.run.heartbeat import Heartbeat


@contextmanager
def alive(what: str) -> Iterator[Heartbeat]:
    """Name what is under way while inside; tell the heartbeat whatever else is shown."""
    from dsforge.cli.show import note
    from dsforge.train.run.heartbeat import Heartbeat

    beat = Heartbeat(shown=True, say=note)
    beat.doing(what)
    try:
        yield beat
    finally:
        beat.end()
