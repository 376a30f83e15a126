"""Reader: typed look-ups by dotted path in parsed JSON, which collect what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, TypeVar, cast

from dsforge.ds_config.config import Precision
from dsforge.errors import Problem

AUTO = "auto"
ZERO = "zero_optimization"
OPTIMIZER_OFFLOAD, PARAMETER_OFFLOAD = f"{ZERO}.offload_optimizer", f"{ZERO}.offload_param"
NULL_BLOCKS = {"bf16", "bfloat16", OPTIMIZER_OFFLOAD, PARAMETER_OFFLOAD}  # `Optional`, or asked for
_SPELLINGS: dict[Precision, str] = {  # DtypeEnum of runtime/config.py
    "fp32": "fp32 float32 float torch.float32",
    "fp16": "fp16 float16 half torch.float16",
    "bf16": "bf16 bfloat16 torch.bfloat16",
}
TYPES = {word: kind for kind, words in _SPELLINGS.items() for word in words.split()}
LONGEST = 60  # characters of a value in a message


Choice = TypeVar("Choice", int, str)


class Reader:
    """Looks values up by dotted path and collects problems."""

    def __init__(self, settings: Mapping[str, Any], *, filled_in: bool) -> None:
        self.problems: list[Problem] = []
        self._settings = settings
        self._filled_in = filled_in

    def refuse(self, rule: str, path: str, value: object, legal: str) -> None:
        """Note that a value is not legal."""
        text = value if isinstance(value, str) and value.isprintable() else repr(value)
        text = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
        self.problems.append(Problem(rule, f"`{path}` (={text}) must be {legal}"))

    def block(self, path: str) -> Mapping[str, Any]:
        """The block at a path; empty where there is none."""
        parent, _, key = path.rpartition(".")
        above = self.block(parent) if parent else self._settings
        value = above.get(key, {})
        if isinstance(value, Mapping):
            return value
        if path == ZERO and isinstance(value, bool):  # read_zero_config_deprecated
            return {"stage": int(value)}
        if not (value is None and path in NULL_BLOCKS) and not self._is_open(value):
            message = f"`{path}` must be a JSON object"
            self.problems.append(Problem("ds-config-block", message))
        return {}

    def value(self, path: str) -> Any:
        """What is written at a path; none where nothing is."""
        parent, _, key = path.rpartition(".")
        return (self.block(parent) if parent else self._settings).get(key)

    def _is_open(self, value: object) -> bool:
        return self._filled_in and isinstance(value, str) and value == AUTO

    def whole(
        self, *paths: str, default: int | None = None, least: int = 0, rule: str = "value-range"
    ) -> int | None:
        """The whole number at the first path that has one; none where it is left to the trainer."""
        for path in paths:
            value = self.value(path)
            if value is None:
                continue
            if self._is_open(value):
                return None
            number = _whole_number(value)
            if number is not None and number >= least:
                return number
            legal = f"at least {least}" if number is not None else "a whole number"
            if rule != "value-range":
                legal = f"a whole number above {least - 1}"
            self.refuse(rule, path, value, legal)
            return default
        return default

    def size(self, path: str) -> int:
        """A parallel size; 1 where it is left out, `auto`, or switched off by 0."""
        value = self.value(path)
        if value is None or (value in (0, AUTO) and value is not False):
            return 1
        return self.whole(path, default=1, least=1, rule="parallel-size") or 1

    def flag(self, path: str, *, default: bool | None = False) -> bool | None:
        """The truth value at a path; none where it is left to the trainer."""
        value = self.value(path)
        if isinstance(value, bool):
            return value
        if self._is_open(value):
            return None
        if value is not None:
            self.refuse("value-type", path, value, "true or false")
        return default

    def choice(
        self, path: str, legal: tuple[Choice, ...], *, default: Choice, rule: str = "value-choice"
    ) -> Choice | None:
        """One of some values; none where it is left to the trainer, or is none of them."""
        value = self.value(path)
        if value is None or self._is_open(value):
            return default if value is None else None
        number = _whole_number(value)
        found = value if number is None else number
        if found in legal and not isinstance(value, bool):
            return cast("Choice", found)
        *most, last = map(str, legal)
        self.refuse(rule, path, value, f"{', '.join(most)} or {last}")
        return None

    def kind(self, path: str) -> Precision | None:
        """A data type; none where it is left out."""
        value = self.value(path)
        if value is None or self._is_open(value):
            return None
        found = TYPES.get(value.lower()) if isinstance(value, str) else None
        if found is None:
            self.refuse("value-choice", path, value, "fp32, fp16 or bf16")
        return found


def _whole_number(value: object) -> int | None:
    """A whole number, `5e8` included."""
    if isinstance(value, float) and isfinite(value) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
