"""Values of an untrusted config, each checked for type and range before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsforge.errors import Problem

LARGEST = {  # far above any model, far below what would make a later product absurd
    "layers": 10_000,
    "hidden_size": 10**6,
    "ffn_hidden_size": 10**7,
    "attention_heads": 10**5,
    "kv_heads": 10**5,
    "head_size": 10**5,
    "vocab_size": 10**8,
    "max_position_embeddings": 10**9,
}
LARGEST_OTHER = 10**7
ROPE_FIELDS = ("rope_theta", "partial_rotary_factor")
_ROPE_PLACES = ("rope_parameters.{}", "rope_parameters.full_attention.{}", "rope_scaling.{}")
_MAY_BE_ZERO = frozenset({"first_dense_layers", "shared_experts", "shared_ffn_hidden_size"})
_MAY_BE_ZERO |= {"type_vocab_size", "sliding_window"}
# Fields of which some configs list the value of every layer.
_BY_LAYER = frozenset({"experts", "experts_per_token"})
_MISSING = object()


class ConfigValues:
    """One config, and the problems found in it so far."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.problems: list[Problem] = []

    def raw(self, keys: tuple[str, ...], default: Any) -> Any:
        """The value of the first key that the config has; a dot leads into a nested mapping."""
        for key in keys:
            found: Any = self.config
            for part in key.split("."):
                found = found.get(part, _MISSING) if isinstance(found, Mapping) else _MISSING
            if found is not _MISSING:
                return found
        return default

    def checked(self, name: str, keys: tuple[str, ...], default: Any) -> Any:
        """The value of a field after a check of its type and size; None if it is not stated."""
        if name in ROPE_FIELDS and keys:
            keys = (*keys, *(place.format(name) for place in _ROPE_PLACES))
        value = self.raw(keys, default)
        if value is None:
            return None
        if name in _BY_LAYER and isinstance(value, list) and value[1:] == value[:-1]:
            value = value[0] if value else value  # one number for each layer, all alike
        key = next((key for key in keys if self.raw((key,), None) is not None), name)
        if name == "tied_embeddings":
            return self._expect(key, value, isinstance(value, bool), "true or false")
        if name == "activation":
            return self._expect(key, value, isinstance(value, str), "the name of an activation")
        if name in ROPE_FIELDS:
            top = 1.0 if name == "partial_rotary_factor" else 1e15
            right = _is_number(value) and 0 < value <= top
            return self._expect(key, value, right, f"a number above 0, at most {top:g}")
        least, most = int(name not in _MAY_BE_ZERO), LARGEST.get(name, LARGEST_OTHER)
        right = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return self._expect(key, value, right, f"a whole number from {least} to {most:,}")

    def boolean(self, key: str, *, default: bool) -> bool:
        """The value of a switch; null means its default."""
        value = self.raw((key,), default)
        if value is None:
            return default
        return self._expect(key, value, isinstance(value, bool), "true or false") is True

    def _expect(self, key: str, value: Any, right: bool, rule: str) -> Any:
        if right:
            return value
        self.problem(key, f"{key} (={str(value)[:40]}) must be {rule}")
        return None

    def positive(self, keys: tuple[str, ...], default: float) -> float:
        """The number of the first key that the config has; the default if it is invalid."""
        value = self.raw(keys, None)
        if value is None:
            return default
        key = next(key for key in keys if self.raw((key,), None) is not None)
        right = _is_number(value) and 0 <= value < LARGEST_OTHER
        found = self._expect(key, value, right, f"a number from 0 to {LARGEST_OTHER:,}")
        return default if found is None else float(found)

    def probability(self, keys: tuple[str, ...], default: float) -> float:
        """The probability of the first key that the config has; the default if it is invalid."""
        value = self.raw(keys, None)
        if value is None:
            return default
        key = next(key for key in keys if self.raw((key,), None) is not None)
        right = _is_number(value) and 0 <= value <= 1
        found = self._expect(key, value, right, "a number from 0 to 1")
        return default if found is None else float(found)

    def whole(self, key: str, default: int) -> int:
        """A whole number from 1 on; the default if it is invalid, which is recorded."""
        found: int | None = self.checked(key, (key,), default)
        return default if found is None else found

    def count(self, key: str, default: int) -> int:
        """A whole number from 0 on; the default if it is null or invalid, which is recorded."""
        value = self.raw((key,), None)
        if value is None:
            return default
        right = (
            isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_OTHER
        )
        found = self._expect(key, value, right, f"a whole number from 0 to {LARGEST_OTHER:,}")
        return default if found is None else int(found)

    def problem(self, place: str, message: str, hint: str = "") -> None:
        """Record a problem."""
        self.problems.append(Problem("model-config", message, hint, place))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
