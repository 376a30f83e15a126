"""What cases of general rules are chosen by: source lines, sizes, and the history of releases."""

from __future__ import annotations

import pytest

from dsforge.diagnose.release_history import (
    PACKAGES,
    architecture,
    export,
    is_constant,
    lives,
    releases_read,
)
from dsforge.diagnose.sizes import PAIR_FACTS
from dsforge.diagnose.source_lines import called_in, none_in, source_line

FRAME = '  File "/home/user/train.py", line 8, in go\n'
NOTEBOOK = """\
/venv/lib/python3.8/site-packages/x/ner.py in train(self)
    332             ):
--> 333                 batch = tuple(t.to(device) for t in batch)
    334  pass
"""
RICH = """\
│ /home/user/train.py:482 in <module>      │
│                                          │
│   481 │   args = parser.parse_args()     │
│ ❱ 482 │   train(args)                    │
│   483                                    │
╰──────────────────────────────────────────╯
"""


@pytest.mark.parametrize(
    ("before", "code"),
    [
        (f"{FRAME}    x = f(y).shape\n            ^^^^^^^^^^\n", "x = f(y).shape"),
        (NOTEBOOK, "batch = tuple(t.to(device) for t in batch)"),
        (RICH, "train(args)"),
        ("    count = int(parts[1])\n", "count = int(parts[1])"),
        ("loading the data\n", ""),
        (FRAME, ""),
    ],
)
def test_the_source_line_of_the_last_frame(before: str, code: str) -> None:
    """As Python, notebooks and rich print it; other lines are no code."""
    assert source_line(before) == code


@pytest.mark.parametrize(
    ("code", "what", "expression"),
    [
        ("a.b.grad.to(c.dtype)", "to", "a.b.grad"),
        ('return int(re.search(r"s(x)", name).group(1))', "group", 're.search(r"s(x)", name)'),
        ("n = rows[0]['a'].size", "size", "rows[0]['a']"),
        ("cat.append(labels[i][None, :])", "subscriptable", "labels"),
        ("for row in self.rows:", "iterable", "self.rows"),
        ("loss = self.criterion(x, y)", "callable", "self.criterion"),
        ("", "assert model.config is not None", "model.config"),
        ("x = y + z", "shape", ""),
    ],
)
def test_what_was_none(code: str, what: str, expression: str) -> None:
    """The operand left of the dot, bracket or call."""
    assert none_in(code, what) == expression


def test_what_a_line_calls() -> None:
    """The first call that is not one of Python's own."""
    assert called_in("self.accelerator = Accelerator(") == "Accelerator"
    assert called_in("super().__init__(len(x))") == "__init__"


@pytest.mark.parametrize(
    ("one", "other", "facts"),
    [
        ((32001, 4096), (32000, 4096), {"first-only", "added", "plus-one"}),
        ((1000, 768), (10, 768), {"first-only", "classes", "times"}),
        ((8388608, 1), (4096, 4096), {"packed"}),
        ((64, 4096), (4096, 64), {"transposed"}),
        ((8, 8), (8, 8, 1, 1), {"convolution"}),
        ((1024, 8192), (8192, 8192), {"first-only", "times"}),
        ((38, 38), (83, 83), {"classes"}),
        ((0,), (4096, 4096), {"empty"}),
    ],
)
def test_facts_of_two_shapes(one: tuple[int, ...], other: tuple[int, ...], facts: set[str]) -> None:
    """Each by the numbers alone."""
    assert {name for name, fact in PAIR_FACTS.items() if fact(one, other)} == facts


@pytest.mark.parametrize("package", PACKAGES)
def test_every_table_can_be_read(package: str) -> None:
    """Each has a first and a last release, in order."""
    first, last = (tuple(map(int, release.split("."))) for release in releases_read(package))
    assert first < last


def test_the_history_of_names() -> None:
    """Facts of the release notes of transformers, TRL, PEFT and accelerate."""
    (life,) = lives("arguments", "Trainer", "processing_class")
    assert (life.package, life.came, life.went) == ("transformers", "4.46", "")
    assert export("transformers", "", "Qwen3ForCausalLM").came == "4.51"  # by its configuration
    assert export("peft", "", "prepare_model_for_int8_training").went == "0.10"
    assert export("trl", "", "GRPOTrainer").came == "0.14"
    assert export("unknown", "", "thing") == ("unknown", "", "")
    assert [life.came for life in lives("arguments", "LoraConfig", "use_dora")] == ["0.9"]
    assert is_constant("transformers", "TrainingArguments")
    assert not is_constant("transformers", "mpu")


@pytest.mark.parametrize(
    ("kind", "came"), [("qwen2", "4.37"), ("qwen2_moe", "4.40"), ("gemma3", "4.50"), ("frob", "")]
)
def test_the_release_that_brought_an_architecture(kind: str, came: str) -> None:
    """Model types are known by the class of their configuration."""
    assert architecture(kind) == came
