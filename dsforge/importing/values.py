"""Values of a file with their places, and settings: flat keys, of which the unread are known."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

MOST_KEYS = 20_000
MOST_LETTERS = 8_000_000  # of all keys together: each repeats the names of its blocks
LONGEST_SHOWN = 80  # characters of a value in a message
AUTO = "auto"
TRUE = frozenset(("true", "yes", "on", "1", "t", "y"))
FALSE = frozenset(("false", "no", "off", "0", "f", "n"))
NOTHING = frozenset(("none", "null", "~", ""))
_WHOLE = re.compile(r"[-+]?\d[\d_]{0,17}")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d{1,3})?")


class Unknown(NamedTuple):
    """A value that only the run will know: a variable, a call, a computed word."""

    text: str


class Value(NamedTuple):
    """What is written at one place."""

    value: Any
    place: str

    @property
    def shown(self) -> str:
        """The value as messages show it, short and without control characters."""
        value = self.value.text if isinstance(self.value, Unknown) else self.value
        text = value if isinstance(value, str) else repr(value)
        text = "".join(mark if mark.isprintable() else " " for mark in text)
        return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."

    @property
    def is_open(self) -> bool:
        """Whether the file leaves the value to the run or to the trainer."""
        return isinstance(self.value, Unknown) or self.value == AUTO

    @property
    def whole(self) -> int | None:
        """The whole number; `5e8` and `"8"` are some."""
        number = self.number
        return int(number) if number is not None and number == int(number) else None

    @property
    def number(self) -> float | None:
        """The number; none for anything else, and for what is not finite."""
        value = self.value
        if isinstance(value, bool):
            return None
        if isinstance(value, str):
            text = value.strip()
            if not _NUMBER.fullmatch(text) or len(text) > LONGEST_SHOWN:
                return None
            value = int(text) if _WHOLE.fullmatch(text) else float(text.replace("_", ""))
        if isinstance(value, int | float) and abs(value) < 10**18 and math.isfinite(value):
            return value
        return None

    @property
    def truth(self) -> bool | None:
        """The truth value; a flag without a value is true."""
        value = self.value
        if isinstance(value, bool):
            return value
        text = str(value).strip().lower() if isinstance(value, str | int) else ""
        return True if text in TRUE else False if text in FALSE else None

    @property
    def word(self) -> str:
        """The text in small letters; empty for anything else."""
        return self.value.strip().lower() if isinstance(self.value, str) else ""

    @property
    def text(self) -> str:
        """The text as it is written; empty for anything else."""
        return self.value.strip() if isinstance(self.value, str) else ""


_Origins = dict[str, tuple[tuple[set[str], str], ...]]  # used keys of other settings, and the key


class Settings:
    """Values by flat key: `zero_optimization.stage`. Dashes and underscores are the same.

    What is read of settings that were made of others counts as read in those, too.
    """

    def __init__(self, values: Mapping[str, Value], made_of: _Origins | None = None) -> None:
        self._values = {normal(key): value for key, value in values.items()}
        self._used: set[str] = set()
        self._made_of = made_of or {}

    def __contains__(self, name: str) -> bool:
        return normal(name) in self._values

    def __len__(self) -> int:
        return len(self._values)

    @property
    def keys(self) -> frozenset[str]:
        """All keys."""
        return frozenset(self._values)

    @property
    def heads(self) -> frozenset[str]:
        """The first parts of all keys."""
        return frozenset(key.partition(".")[0] for key in self._values)

    def find(self, *names: str) -> Value | None:
        """The value of the first of some keys that has one; all of them count as read."""
        found = None
        for name in map(normal, names):
            if name not in self._values:
                continue
            self._read(name)
            value = self._values[name]
            if found is None and not _is_nothing(value.value):
                found = value
        return found

    def at(self, *names: str) -> Value | None:
        """The value of the first of some keys that is there; nothing counts as read."""
        return next((self._values[n] for n in map(normal, names) if n in self._values), None)

    def below(self, name: str) -> Settings:
        """The settings of a block, under their names in it; they count as read here."""
        head = normal(name) + "."
        inner = {k[len(head) :]: v for k, v in self._values.items() if k.startswith(head)}
        self._used |= {key for key in self._values if key.startswith(head)}
        return Settings(inner)

    def has_block(self, name: str) -> bool:
        """Whether there is a block of that name with something in it."""
        head = normal(name) + "."
        return any(key.startswith(head) for key in self._values)

    def pass_over(self, *names: str) -> None:
        """Count keys as read, and all that stand below them."""
        for name in map(normal, names):
            for key in self._values:
                if key == name or key.startswith(name + "."):
                    self._read(key)

    def pass_over_all(self) -> None:
        """Count every key as read."""
        for key in self._values:
            self._read(key)

    def _read(self, name: str) -> None:
        """Count a key as read, here and where it comes from."""
        self._used.add(name)
        for used, key in self._made_of.get(name, ()):
            used.add(key)

    def _origins(self, names: Mapping[str, str]) -> _Origins:
        """Where keys come from that have other names in settings made of these."""
        return {new: ((self._used, old), *self._made_of.get(old, ())) for old, new in names.items()}

    def unread(self) -> Iterator[tuple[str, Value]]:
        """What no reader has asked for."""
        return ((key, value) for key, value in self._values.items() if key not in self._used)

    def joined(self, others: Settings) -> Settings:
        """These settings under those of others, which win."""
        origins = self._origins({key: key for key in self._values})
        for key, more in others._origins({key: key for key in others._values}).items():
            origins[key] = (*origins.get(key, ()), *more)
        return Settings({**self._values, **others._values}, origins)

    def without(self, *names: str) -> Settings:
        """The settings without some keys."""
        left_out = set(map(normal, names))
        kept = {k: v for k, v in self._values.items() if k not in left_out}
        return Settings(kept, self._origins({key: key for key in kept}))

    def renamed(self, names: Mapping[str, str]) -> Settings:
        """The settings with some keys under other names."""
        every = {key: names.get(key, key) for key in self._values}
        values = {every[key]: value for key, value in self._values.items()}
        return Settings(values, self._origins(every))


def normal(key: str) -> str:
    """A key as settings compare it."""
    return key.lstrip("-").replace("-", "_")


def flat(root: Any, place: Any) -> dict[str, Value]:
    """The values of nested mappings and lists by dotted keys, up to a number of them.

    `place` gives the place of a location. A list is a value, and its mappings have keys, too.
    """
    found: dict[str, Value] = {}
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), root)]
    letters = 0
    while waiting and len(found) < MOST_KEYS and letters < MOST_LETTERS:
        loc, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [((*loc, key), inner) for key, inner in reversed(list(value.items()))]
            if value or not loc:
                continue
        if isinstance(value, list):
            inner = [((*loc, n), one) for n, one in enumerate(value) if isinstance(one, dict)]
            waiting += inner[:MOST_KEYS]
            value = [one for one in value if not isinstance(one, dict | list)]
        if loc:
            key = ".".join(map(str, loc))
            letters += len(key)
            found[key] = Value(value, place(loc))
    return found


def _is_nothing(value: Any) -> bool:
    """Whether a value stands for no value."""
    return value is None or (isinstance(value, str) and value.strip().lower() in NOTHING)
