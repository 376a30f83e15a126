"""Modules that a page fetches after its first answer, and the signal that one is needed earlier."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence


class NotHereYetError(BaseException):
    """A module is still on its way: the worker waits and asks again.

    Not an `Exception`, so that no code that does without a missing module takes it for one.
    """


class Later:
    """An import hook that knows which modules are on their way."""

    def __init__(self, names: Sequence[str]) -> None:
        """Modules, by their full names."""
        self.names = frozenset(names)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Nothing: other hooks find modules. Raises NotHereYetError."""
        if name in self.names:
            raise NotHereYetError(name)


def expect(names: Sequence[str]) -> None:
    """Modules that will arrive."""
    sys.meta_path.insert(0, Later(names))


def arrived() -> None:
    """All modules are here."""
    sys.meta_path[:] = [hook for hook in sys.meta_path if not isinstance(hook, Later)]
    importlib.invalidate_caches()
