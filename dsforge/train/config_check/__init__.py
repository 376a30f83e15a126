"""Whether DeepSpeed's own config class reads a text, asked in a process of its own.

Importing DeepSpeed takes seconds, and the text is somebody else's: so a child imports it, and reads
each text in a confined fork.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from dsforge.process import run

IMPORT_S = 120.0  # of DeepSpeed on a slow disk, and of reading two texts
ACCEPTED, REFUSED = "accepted", "refused"


def is_installed() -> bool:
    """Whether there is a DeepSpeed to ask."""
    return find_spec("deepspeed") is not None


def verdicts(texts: tuple[str, ...]) -> tuple[str, ...]:
    """For each text `accepted` or `refused`; empty where DeepSpeed gave no answer."""
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(texts):
            Path(folder, f"{number}.json").write_text(text, encoding="utf-8")
        command = (sys.executable, "-m", "dsforge.train.config_check", folder, str(len(texts)))
        done = run(command, timeout_s=IMPORT_S, environment={"CUDA_VISIBLE_DEVICES": ""})
    said = tuple(line for line in done.output.splitlines() if line in (ACCEPTED, REFUSED))
    return said if done.code == 0 and len(said) == len(texts) else ()


def is_broken_by(before: str, after: str) -> bool:
    """Whether DeepSpeed reads one text of a config and refuses the other."""
    return verdicts((before, after)) == (ACCEPTED, REFUSED)
