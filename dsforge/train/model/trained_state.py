"""A model whose state dict holds what trains: checkpoints of adapters without their base.

The frozen weights of a LoRA run are in the model's own files, and a run that resumes loads them
from there. Buffers that the model stores are kept. Random weights are in no file, so they stay in.

The files of the base may change between two launches, so a run records a checksum of samples.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from dsforge.train.model.source import ModelSource

MARK = "dsforge_base_checksum"
SAMPLE_BYTES = 64 * 1024  # read at the beginning and at the end of each file of weights
PATTERNS = ("*.safetensors", "*.bin")


def keep_trained_state_only(model: Any, source: ModelSource) -> None:
    """Have the model's state dict hold what trains and its buffers, and load from such a one.

    `source` is where the frozen weights come from at each launch.
    """
    named = model.named_parameters(remove_duplicate=False)
    kept = {name for name, parameter in named if parameter.requires_grad}
    kept |= {name for name, _ in model.named_buffers()}

    def drop_frozen(_: Any, state: dict[str, Any], prefix: str, __: Any) -> None:
        for name in [n for n in state if n.removeprefix(prefix) not in kept]:
            del state[name]

    def expect_trained(_: Any, odd: Any) -> None:
        odd.missing_keys[:] = [name for name in odd.missing_keys if name in kept]

    model.register_state_dict_post_hook(drop_frozen)
    model.register_load_state_dict_post_hook(expect_trained)
    setattr(model, MARK, base_checksum(source, model.config))


def saves_trained_state_only(model: Any) -> bool:
    """Whether the frozen weights of a model stay out of its checkpoints."""
    return hasattr(model, MARK)


def recorded_checksum(model: Any) -> str:
    """The checksum of the frozen weights that stay out of checkpoints; empty where none do."""
    return str(getattr(model, MARK, ""))


def base_checksum(source: ModelSource, configuration: Any) -> str:
    """A checksum of the weights that a run loads again at each launch.

    The commit of a hub id; of files their names, sizes, beginnings and ends.
    """
    commit = getattr(configuration, "_commit_hash", None)
    folder = Path(source.name)
    if source.gguf_file:
        files = [folder / source.gguf_file]
    else:
        files = sorted(file for pattern in PATTERNS for file in folder.glob(pattern))
    if commit or not files:
        return str(commit or "")
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        digest.update(file.name.encode())
        digest.update(_samples(file))
    return digest.hexdigest()


def _samples(file: Path) -> bytes:
    """The size of a file, its first bytes and its last ones."""
    with file.open("rb") as stream:
        first = stream.read(SAMPLE_BYTES)
        length = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, length - SAMPLE_BYTES))
        return length.to_bytes(8, "big") + first + stream.read(SAMPLE_BYTES)
