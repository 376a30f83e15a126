"""JSON from outside: one reader, which names every key that is written twice."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsforge.outside import UnreadableError, json_value, json_with_repeated

KEYS = st.sampled_from("abcd")
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(KEYS, inner), max_size=4),
    max_leaves=12,
)


def written(tree: Any) -> tuple[str, Counter[str]]:
    """A tree as JSON text, its pairs as objects, and how many objects repeat each key."""
    if isinstance(tree, list) and tree and isinstance(tree[0], tuple):
        parts = [(key, written(value)) for key, value in tree]
        text = ", ".join(f"{json.dumps(key)}: {inner}" for key, (inner, _) in parts)
        counts = Counter(key for key, _ in tree)
        own = Counter(key for key, count in counts.items() if count > 1)
        return f"{{{text}}}", sum((found for _, (_, found) in parts), own)
    if isinstance(tree, list):
        items = [written(value) for value in tree if not isinstance(value, tuple)]
        return f"[{', '.join(text for text, _ in items)}]", sum((n for _, n in items), Counter())
    return json.dumps(tree), Counter()


@given(TREES)
def test_every_repeated_key_is_named(tree: Any) -> None:
    """In objects at any depth, once for each; the value is that of every reader."""
    text, repeated = written(tree)
    value, found = json_with_repeated(text)

    assert Counter(found) == repeated
    assert value == json.loads(text) == json_value(text)


@given(TREES)
def test_unique_keys_are_asked_for(tree: Any) -> None:
    """The strict reading refuses what repeats a key, naming it, and nothing else."""
    text, repeated = written(tree)
    if not repeated:
        assert json_value(text, unique=True) == json.loads(text)
        return
    with pytest.raises(UnreadableError) as refused:
        json_value(text, unique=True)
    assert all(repr(key) in refused.value.reason for key in repeated)


@pytest.mark.parametrize(
    "text", ["NaN", "[1e999]", '{"a": -Infinity}', "9" * 401, "[" * 99_999, ""]
)
@pytest.mark.parametrize("read", [json_value, json_with_repeated])
def test_what_is_no_number_or_too_deep_is_refused(read: Any, text: str) -> None:
    """One kind of error for every reader, and no other."""
    with pytest.raises(UnreadableError, match="is not JSON"):
        read(text)


def test_the_strict_reading_knows_minus_zero_and_halves_of_characters() -> None:
    """Readers differ in both: -0 is no whole number, half a character no text."""
    assert math.copysign(1, json_value('{"a": -0}', unique=True)["a"]) == -1
    assert json_value('{"a": "\\ud800"}')
    with pytest.raises(UnreadableError):
        json_value('{"a": "\\ud800"}', unique=True)
