"""The first exception that no other rule knows: still the place to begin."""

from __future__ import annotations

from dsforge.diagnose.rule import Hit, Rule

FRAMES = 80  # lines of a traceback


def _error(hits: tuple[Hit, ...]) -> dict[str, str]:
    values = dict(hits[0].values)
    return {**values, "where": f" on rank {hits[0].rank}" if hits[0].rank is not None else ""}


RULES = (
    Rule(
        "python-error",
        ("traceback (most recent call last)",),
        r"^(?P<kind>(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Exit|Interrupt|"
        r"Failure|Warning)|Exception|assert)\b:?\s*(?P<what>[^\n]{0,300})",
        "the first error{where} is {kind}: {what}",
        "no rule knows this error; it came first, so what follows is its consequence",
        "$ deepspeed --num_gpus 1 ...   # does it fail on one rank, too?",
        "Python traceback",
        kind="error",
        confidence=0.4,
        lines=FRAMES,
        read=_error,
    ),
    Rule(
        "dsforge-error",
        ("error: ", "error on rank"),
        r"^error(?: on rank \d+, \S{1,80})?: (?P<what>[^\n]{3,300})",
        "{what}",
        "dsforge refused the input before the run began",
        "# what stands below this line in the log",
        "dsforge/train/__main__.py",
        kind="error",
        confidence=0.6,
    ),
)
