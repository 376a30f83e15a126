"""What a checkpoint of `dsforge train` says about its run, for those who use its weights.

Its note has the fields of train.yaml: the model that training began from and the scale of adapters.
A checkpoint of another program has no note, and nothing is known.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from dsforge.errors import DsforgeError
from dsforge.train.checkpoints.note import CheckpointNote, read_note
from dsforge.train.model.source import ModelSource, model_source

UPWARD = 5  # folders between a checkpoint and its train.yaml: output/checkpoints/global_stepN


class OwnRun(NamedTuple):
    """The run of a checkpoint, as far as it is known."""

    lora_alpha: float | None = None
    source: ModelSource | None = None  # of the model that training began from
    tokenizer: ModelSource | None = None
    note: CheckpointNote | None = None
    folder: Path | None = None  # of train.yaml

    @property
    def base(self) -> str:
        """The id or path of the model that training began from; empty where it is not known."""
        return self.source.base if self.source else ""

    @contextmanager
    def described_model(self, named: Path | None) -> Iterator[Path | None]:
        """A folder with the configuration and tokenizer of the model: the named one, or a new one.

        None where no model is known, or transformers is not here to write its files, or does not
        find them: weights are exported without them, too.
        """
        if named is not None or self.source is None or not find_spec("transformers"):
            yield named
            return
        with tempfile.TemporaryDirectory() as temporary:
            is_whole = self._save(Path(temporary))
            yield Path(temporary) if is_whole else None

    def _save(self, folder: Path) -> bool:
        """Write configuration and tokenizer; whether that could be done."""
        from transformers import AutoConfig, AutoTokenizer

        source, speech = self.source, self.tokenizer or self.source
        if source is None or speech is None:
            return False
        here = {"local_files_only": True}  # a note of a stranger must not reach the network
        try:
            config = AutoConfig.from_pretrained(source.name, **source.options, **here)
            config.save_pretrained(folder)
            tokenizer = AutoTokenizer.from_pretrained(speech.name, **speech.options, **here)
            tokenizer.save_pretrained(folder)
        except (OSError, ValueError, KeyError, ImportError):
            return False
        return True


def own_run(checkpoint: Path) -> OwnRun:
    """What the note of a checkpoint says; an empty answer where it has none."""
    try:
        note = read_note(checkpoint)
    except DsforgeError:
        return OwnRun()
    run = note.run
    if run is None:
        return OwnRun()
    alpha, model, tokenizer = (run.job.get(k) for k in ("lora.alpha", "model", "tokenizer"))
    folder = _folder_of_job(checkpoint)
    return OwnRun(
        lora_alpha=float(alpha) if isinstance(alpha, int | float) else None,
        source=_source(model, folder),
        tokenizer=_source(tokenizer, folder),
        note=note,
        folder=folder,
    )


def _source(name: object, folder: Path) -> ModelSource | None:
    """The source that train.yaml named; none where it is not on this machine any more."""
    if not isinstance(name, str) or not name:
        return None
    try:
        return model_source(name, folder)
    except DsforgeError:
        return None


def _folder_of_job(checkpoint: Path) -> Path:
    """The folder of train.yaml, from which the paths in it are seen: the nearest one above."""
    above = list(checkpoint.resolve().parents)[:UPWARD]
    return next((folder for folder in above if (folder / "train.yaml").is_file()), above[0])
