"""`include` and `exclude` leave what DeepSpeed's own launcher leaves of a hostfile."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

import pytest

from dsforge.errors import SpecError
from dsforge.hostfile import Entry
from dsforge.reading.files import ClusterFile
from dsforge.reading.selection import selected
from dsforge.reading.source import Source

pytest.importorskip("deepspeed")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
CASES = 400


def drawn(draw: Random, pool: dict[str, int]) -> str:
    """A random selection, sometimes of a host or slot that is not there."""
    words = []
    for _ in range(draw.randint(1, 4)):
        host = draw.choice((*pool, "10.0.0.99")) if draw.random() < 0.1 else draw.choice([*pool])
        slots = [str(draw.randint(0, pool.get(host, 1) - (draw.random() < 0.9))) for _ in range(3)]
        words.append(host if draw.random() < 0.4 else f"{host}:{','.join(slots)}")
    return "@".join(words)


@pytest.mark.parametrize("key", ["include", "exclude"])
def test_random_selections(key: str) -> None:
    """The same hosts and devices in the same order, and the same refusals."""
    from deepspeed.launcher.runner import parse_inclusion_exclusion

    draw = Random(5)  # noqa: S311 - which selections, not which key
    refused = 0
    for _ in range(CASES):
        pool = {f"10.0.0.{i}": draw.randint(1, 8) for i in range(1, draw.randint(2, 5))}
        text = drawn(draw, pool)
        flags = {"include": "", "exclude": "", key: text}
        try:
            theirs = parse_inclusion_exclusion(
                OrderedDict(pool), flags["include"], flags["exclude"]
            )
        except ValueError:
            theirs = {}
        entries = [Entry(host, slots, "here") for host, slots in pool.items()]
        file = ClusterFile.model_validate({key: text})
        try:
            ours = selected(entries, file, Source("test", {})).entries
        except SpecError:
            ours = []
        refused += not ours

        assert {e.address: list(e.devices or range(e.slots)) for e in ours} == dict(theirs), text
        assert [entry.address for entry in ours] == list(theirs)
    assert 0 < refused < CASES / 2
