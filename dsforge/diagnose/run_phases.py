"""What a run was doing at a line of its log, from the last line that says so."""

from __future__ import annotations

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
        ),
    ),
)
SUCCESS = (b"exits successfully", b"weights written and checked", b"'train_runtime'")


def phase_at(lower: bytes, place: int, phase: str) -> str:
    """The phase at a place of a log in small letters; the one given where no line names another."""
    last = -1
    for name, words in PHASES:
        found = max(lower.rfind(word, 0, place) for word in words)
        last, phase = (found, name) if found > last else (last, phase)
    return phase
