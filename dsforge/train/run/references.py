"""Log probabilities of a reference model, computed once before the first step of a run.

They are kept in the output folder, so a run that resumes has them without the first weights in
memory. The file says what they are of and a checksum of them; where either differs, they are
computed again, which is possible as long as no checkpoint is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dsforge.job import TrainJob
from dsforge.train.data.pairs import SIDES, Pairs, References
from dsforge.train.parallel.agreement import largest, on_first_rank
from dsforge.train.run.preference_step import PreferenceStepper
from dsforge.train.run.progress import Screen

FILE = "reference_log_probabilities.safetensors"


def precomputes(job: TrainJob) -> bool:
    """Whether a job wants references before its first step."""
    asked = job.preference
    return asked is not None and (asked.reference or ("precomputed" * (job.lora is None))) == (
        "precomputed"
    )


def give_references(
    found: Sequence[Pairs],
    stepper: PreferenceStepper,
    *,
    path: Path,
    what: Sequence[object],
    screen: Screen,
) -> None:
    """Give all pairs their references, from the file at `path` if it is of `what`.

    All ranks must call it, before a checkpoint is loaded.
    """
    key = hashlib.blake2b(json.dumps(list(what)).encode(), digest_size=16).hexdigest()
    sizes = [len(pairs) for pairs in found]
    kept = read(path, key, sizes)
    (lacks,) = largest(float(kept is None))  # all ranks read, or all compute
    if kept is None or lacks:
        kept = []
        for pairs in found:
            with screen.counting("reference log probabilities", len(pairs)):
                kept.append(stepper.references(pairs, screen.advance))
        arrays = kept
        on_first_rank(lambda: write(path, key, arrays))
    else:
        screen.say(f"reference log probabilities read from {path}")
    for pairs, values in zip(found, kept, strict=True):
        pairs.references = values


def write(path: Path, key: str, found: Sequence[References]) -> None:
    """Write references and what they are of, whole or not at all."""
    from safetensors.numpy import save_file

    arrays = {str(number): np.ascontiguousarray(values) for number, values in enumerate(found)}
    temporary = path.with_name(f".{path.name}.new")
    save_file(arrays, temporary, metadata={"key": key, "checksum": _checksum(found)})
    temporary.replace(path)


def read(path: Path, key: str, sizes: Sequence[int]) -> list[References] | None:
    """The references of a file; none where it is missing, damaged, or of something else."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(str(path), framework="numpy") as file:
            said = file.metadata() or {}
            found = [file.get_tensor(str(number)) for number in range(len(sizes))]
    except (SafetensorError, OSError):
        return None
    is_same = said.get("key") == key and said.get("checksum") == _checksum(found)
    is_whole = [values.shape for values in found] == [(size, SIDES) for size in sizes]
    return found if is_same and is_whole else None


def _checksum(found: Sequence[References]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for values in found:
        digest.update(np.ascontiguousarray(values, dtype="<f8").tobytes())
    return digest.hexdigest()
