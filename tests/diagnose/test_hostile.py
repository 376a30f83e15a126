"""Logs that are huge, binary or hostile: bounded time and memory, no traceback."""

from __future__ import annotations

import random
import subprocess
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dsforge.diagnose import diagnose_stream, diagnose_text
from dsforge.diagnose.log_line import LONGEST
from dsforge.diagnose.rule import Rule, compiled
from dsforge.diagnose.rulebook import rulebook

MB = 1 << 20
STEP = b"[2026-11-21 08:11:20,755] [INFO] [log_dist] [Rank 0] step=%d, lr=[0.001] loss 2.3456\n"
FAULT = b"OSError: [Errno 28] No space left on device: 'out/model.pt'\n"
BLOCKS = {
    "steps": b"".join(STEP % number for number in range(12_000)),
    "binary": random.Random(1).randbytes(MB),  # noqa: S311
    "errors": b"[rank1]: RuntimeError: killed error: failed out of memory, no such file\n" * 14_000,
    "one line": b"error: killed no such file " * 38_000,
    "tracebacks": (b"Traceback (most recent call last):\n" + b'  File "a.py", line 3\n' * 30)
    * 1400,
    "assertions": b"    assert isinstance(x, dict) and len(x) > 0 is not None\n" * 18_000,
    "ansi": b"\x1b[31mloss\x1b[0m \x1b]0;x\x07 \r" * 40_000,
}
BOUND_S_PER_MB = 0.6  # of the processor, which others slow down; 0.05 to 0.1 when they do not
HEAP_BYTES = 80 * MB
words = st.sampled_from(
    sorted({needle for entry in rulebook().entries.values() for needle in entry.needles})
)
junk = st.text(max_size=40)


def repeated(block: bytes, megabytes: int) -> Iterator[bytes]:
    """The block again and again, and the fault at the end."""
    for _ in range(megabytes * MB // len(block) + 1):
        yield block
    yield b"\n" + FAULT


def measured(kind: str, megabytes: int) -> tuple[float, list[str]]:
    """Seconds of the processor, and the rules that answered."""
    start = time.process_time()
    causes = diagnose_stream(repeated(BLOCKS[kind], megabytes), kind)
    return time.process_time() - start, [cause.rule for cause in causes]


@pytest.mark.parametrize("kind", BLOCKS)
def test_the_fault_at_the_end_is_found(kind: str) -> None:
    """A few megabytes of anything before it change neither the answer nor the time by much."""
    seconds, rules = measured(kind, 4)

    assert "disk-full" in rules
    assert seconds < 4 * BOUND_S_PER_MB + 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", BLOCKS)
def test_100_mb(kind: str, record_property: pytest.RecordProperty) -> None:
    """Time is linear and printed."""
    seconds, rules = measured(kind, 100)
    record_property("count", f"diagnose: 100 MB of {kind} in {seconds:.1f} s")

    assert "disk-full" in rules
    assert seconds < 100 * BOUND_S_PER_MB


@pytest.mark.parametrize("kind", ["steps", "binary", "one line"])
def test_memory_does_not_grow_with_the_log(kind: str) -> None:
    """A longer log takes no more memory than windows and what is known to say nothing."""
    tracemalloc.start()
    measured(kind, 12)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < HEAP_BYTES


@pytest.mark.parametrize("rule", rulebook().values(), ids=lambda rule: rule.id)
def test_no_pattern_takes_long(rule: Rule) -> None:
    """The longest lines that nearly match end quickly."""
    for filler in ("a", " ", "0", "/", "_.", "':", "(x", "\n"):
        for needle in rule.needles:
            text = (needle + filler * LONGEST)[:LONGEST] + "\n" + filler * LONGEST
            start = time.process_time()
            for pattern in rule.all_patterns:
                compiled(pattern).search(text)
            assert time.process_time() - start < 1.0  # milliseconds, as a rule


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(junk, words, st.tuples(words, junk).map("".join)), max_size=30))
def test_any_text_is_answered(parts: list[str]) -> None:
    """Words of the rules in any order and company: causes with proof, or none; never an error."""
    for joint in ("\n", " ", "\n[rank1]: "):
        for cause in diagnose_text(joint.join(parts)):
            assert 0 < cause.confidence <= 1
            assert cause.evidence


def test_what_stands_around_a_cause_is_shown_without_controls() -> None:
    """The line above an error, which names its key, may hold anything as well."""
    text = "train_batch\x00\u202e_size\n  Input should be a valid integer [type=int_parsing]\n"
    (cause,) = diagnose_text("pydantic_core._pydantic_core.ValidationError: 1\n" + text)

    assert "train_batch" in cause.message
    assert cause.message.isprintable()


@settings(max_examples=200, deadline=None)
@example("\u2018torchrun\u2019 \u201c".encode() * 20 + b"\xe2\x80", 1)
@given(st.binary(max_size=4000), st.integers(1, 50))
def test_any_bytes_in_any_pieces(data: bytes, size: int) -> None:
    """How a stream is cut does not change what it says."""
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    text = FAULT + data

    assert diagnose_stream([FAULT, *pieces], "x") == diagnose_stream([text], "x")


FRACTION = (
    "pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig\nstage\n  "
    "Input should be a valid integer [type=int_from_float, input_value={}, input_type=float]"
)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x0 and 768x768)",
        "ValueError: num_attention_heads (52) must be a multiple of world_size (300000000000).",
        "TypeError: foo() missing 1 required positional argument: x",
        FRACTION.format("9" * 1200),
    ],
)
def test_odd_values_of_a_message_are_read(text: str) -> None:
    """Empty tensors, sizes of many digits, names without quotes: an answer, at once."""
    start = time.process_time()
    causes = diagnose_text(text)

    assert causes
    assert time.process_time() - start < 1


NO_FOLDER = (
    'File "/home/me/log.py", line 7, in start\n    out = open(path, "w")\n'
    "FileNotFoundError: [Errno 2] No such file or directory: 'out/$(touch x)/a.txt'"
)


@pytest.mark.parametrize(
    "text",
    [
        NO_FOLDER,
        "omegaconf.errors.InterpolationResolutionError: $(touch x) of `touch x`",
    ],
    ids=["path", "key"],
)
def test_a_command_of_a_fix_does_not_run_what_the_log_says(text: str, tmp_path: Path) -> None:
    """Text from a log is one word of the command, whatever it has in it."""
    commands = [line[2:] for line in diagnose_text(text)[0].fix.split("\n") if line[:2] == "$ "]
    harmless = [line for line in commands if line.split()[0] in ("mkdir", "grep", "ls")]
    for line in harmless:
        subprocess.run(
            ["/bin/bash", "-c", line.partition(" <")[0]], cwd=tmp_path, check=False, timeout=10
        )

    assert harmless
    assert not list(tmp_path.rglob("x"))
