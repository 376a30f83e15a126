"""What a run was doing at a line of its log, from the last line that says so."""

from __future__ import annotations

import re

# Name of a phase, and words of lines that announce it; the last of them before a failure counts.
PHASES = (
    ("loading the model", (b"loading checkpoint shards", b"loading weights", b"from_pretrained")),
    ("building C++ ops", (b"emitting ninja build file", b"building extension module")),
    (
        "initialising the optimizer",
        (
            b"initializing optimizer states",
            b"zerostageenum",
            b"loading extension module cpu_adam",
            b"creating fp16 zero",
            b"creating torch.bfloat16 zero",
            b"time to load cpu_adam",
        ),
    ),
    ("training", (b"step ", b"step=", b"{'loss'", b"steps/s", b"iteration ")),
    (
        "saving a checkpoint",
        (
            b"saving model checkpoint",
            b"saving checkpoint",
            b"[torch] saving",
            b"checkpoint is about to be saved",
            b"weights being written",
            b"saving fsdp ",
            b"saving current state to",
        ),
    ),
)
SUCCESS = (b"exits successfully", b"weights written and checked", b"'train_runtime'")

STEPS = 3  # reported after an error: the run has survived it
TRIED = 64  # words of a part of a log that are looked at for them
_LOSS = re.compile(rb"loss['\"]?\s{0,3}[:=|]?\s{0,3}-?\d")


def reports_loss(text: str) -> bool:
    """Whether a line is one of those that training prints for each step."""
    return _LOSS.search(text.lower().encode()) is not None


def phase_at(lower: bytes, place: int, phase: str) -> str:
    """The phase at a place of a log in small letters; the one given where no line names another."""
    last = -1
    for name, words in PHASES:
        found = max(lower.rfind(word, 0, place) for word in words)
        last, phase = (found, name) if found > last else (last, phase)
    return phase


def last_steps(window: bytes, start: int, end: int) -> list[int]:
    """Where the last training steps of a part of a log report their loss, in lower case."""
    found: list[int] = []
    place = end
    for _ in range(TRIED):
        place = window.rfind(b"loss", start, place)
        if place < 0 or len(found) == STEPS:
            break
        if _LOSS.match(window, place):
            found.insert(0, place)
            place = max(window.rfind(b"\n", start, place), start)  # one for each line
    return found
