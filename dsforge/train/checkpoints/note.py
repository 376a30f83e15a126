"""Notes of checkpoints: a small file beside DeepSpeed's own that marks a complete checkpoint.

DeepSpeed's `latest` is written whether or not every rank finished, and it does not say for how many
ranks a checkpoint is good. The note is written last, after every file was read back from the disk,
so a checkpoint without one does not count. It holds the size and checksum of each file, so that
one that was cut or changed later is found before it is loaded.
"""

from __future__ import annotations

import re
import shutil
import zlib
from pathlib import Path

from pydantic import BaseModel, Field, field_validator

from dsforge.errors import DsforgeError
from dsforge.measurement import EngineName
from dsforge.outside import UnreadableError, read_text
from dsforge.specs import FROZEN
from dsforge.train.checkpoints.run_identity import Change, RunIdentity, changes

NOTE = "dsforge.json"
TAG = re.compile(r"global_step([0-9]{1,15})")
MAX_NOTE_BYTES = 256 * 1024 * 1024  # bytes; a million files take half of it
CHUNK_BYTES = 16 * 1024 * 1024


class FileNote(BaseModel):
    """A file of a checkpoint as it was read back from the disk."""

    model_config = FROZEN

    bytes: int = Field(ge=0, description="Size of the file in bytes.")
    crc32: int = Field(ge=0, description="Checksum of all its bytes.")


class CheckpointNote(BaseModel):
    """What a checkpoint holds, and which run it can resume."""

    model_config = FROZEN

    step: int = Field(ge=0, description="Optimizer steps done.")
    engine: EngineName = Field(default="deepspeed", description="Engine that wrote the files.")
    strategy: str = Field(
        default="", description="What shards the states, as messages say it; empty: ZeRO."
    )
    any_ranks: bool = Field(
        default=False,
        description="Files say what each rank holds, or know no ranks: any number and any layout "
        "of ranks can load them.",
    )
    world_size: int = Field(ge=1, description="Number of ranks that saved it.")
    zero_stage: int = Field(ge=0, le=3, description="ZeRO stage of the run, 0 to 3.")
    global_batch_size: int = Field(ge=1, description="Samples per optimizer step.")
    seed: int = Field(description="Seed of weights, adapters and data order.")
    samples: int = Field(
        ge=1, description="Number of training samples, which determines their order."
    )
    tensor_parallel_size: int = Field(
        default=1, ge=1, description="Ranks that share the matrices of each layer."
    )
    pipeline_parallel_size: int = Field(
        default=1, ge=1, description="Stages that the layers are divided into."
    )
    context_parallel_size: int = Field(
        default=1, ge=1, description="Ranks that share one sequence."
    )
    run: RunIdentity | None = Field(
        default=None, description="None: saved by a release that did not record it."
    )
    files: dict[str, FileNote] = Field(
        default_factory=dict, description="Files of the checkpoint, by name."
    )

    @field_validator("files")
    @classmethod
    def _names_are_inside(cls, files: dict[str, FileNote]) -> dict[str, FileNote]:
        """Files of a checkpoint lie in its folder, whatever its note says."""
        for name in files:
            if name in ("", ".", "..") or any(c in name for c in "/\\") or not name.isprintable():
                raise ValueError(f"{name!a} is not the name of a file")
        return files

    @property
    def ranks(self) -> tuple[int | str, ...]:
        """What files may depend on: engine, ranks, how they split the model, the ZeRO stage."""
        split = (self.tensor_parallel_size, self.pipeline_parallel_size, self.context_parallel_size)
        return (self.engine, self.strategy, self.world_size, *split, self.zero_stage)

    @property
    def label(self) -> str:
        """What shards the states of the run: `ZeRO-2`, `fsdp2`."""
        return self.strategy or f"ZeRO-{self.zero_stage}"

    @property
    def splits_layers(self) -> bool:
        """Whether files belong to ranks that share a replica of the model, but for ZeRO."""
        return not self.any_ranks and self.tensor_parallel_size * self.pipeline_parallel_size > 1


def tag_of(step: int) -> str:
    """The folder name of a checkpoint."""
    return f"global_step{step}"


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, oldest first."""
    found = [p for p in folder.glob("global_step*") if TAG.fullmatch(p.name)]
    return sorted((p for p in found if (p / NOTE).is_file()), key=step_of)


def step_of(path: Path) -> int:
    """Optimizer steps done at a checkpoint, from the name of its folder; -1 for other names."""
    match = TAG.fullmatch(path.name)
    return int(match[1]) if match else -1


def read_note(path: Path) -> CheckpointNote:
    """The note of a checkpoint. Raises DsforgeError, whatever lies in its place."""
    try:
        text = read_text(path / NOTE, MAX_NOTE_BYTES, pipes=False)
        return CheckpointNote.model_validate_json(text)
    except (UnreadableError, ValueError) as error:  # ValidationError is a ValueError
        hint = "give a folder `checkpoints/global_stepN` that `dsforge train` wrote"
        raise DsforgeError(f"{path} is not a complete checkpoint", hint) from error


def remove(path: Path) -> None:
    """Remove a file, a folder with all that is in it, or a link but not what it names."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def chosen_checkpoint(resume: str, folder: Path) -> Path | None:
    """The checkpoint to go on from: `auto` the newest that is whole, `never` none, else as named.

    Raises DsforgeError where `auto` finds checkpoints and none of them is whole.
    """
    if resume == "never":
        return None
    if resume == "auto":
        found = checkpoints(folder)
        whole = [path for path in found if not lacking(path)]
        if found and not whole:
            message = (
                f"no checkpoint in {folder} is complete: {found[-1].name}: {lacking(found[-1])}"
            )
            raise DsforgeError(message, "start from scratch with `--overwrite`")
        return whole[-1] if whole else None
    path = Path(resume).expanduser().resolve()
    if not TAG.fullmatch(path.name):
        inside = checkpoints(path) or checkpoints(path / "checkpoints")
        path = inside[-1] if inside else path
    read_note(path)
    return path


def lacking(path: Path) -> str:
    """What a checkpoint lacks by the sizes of its files; empty where they are as noted."""
    try:
        files = read_note(path).files
    except DsforgeError as error:
        return error.message
    for name, noted in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != noted.bytes:
            return f"{name} has {file.stat().st_size:,} bytes of {noted.bytes:,}"
    return ""


def changed(path: Path, names: list[str]) -> str:
    """Which of some files of a checkpoint have other bytes than noted; empty where none has."""
    files = read_note(path).files
    try:
        wrong = [name for name in names if noted_file(path / name) != files[name]]
    except OSError as error:
        return str(error)
    return f"{', '.join(wrong)}: content differs from what was saved" if wrong else ""


def noted_file(path: Path) -> FileNote:
    """Size and checksum of a file, read from the disk."""
    size = total = 0
    with path.open("rb") as stream:
        while part := stream.read(CHUNK_BYTES):
            size, total = size + len(part), zlib.crc32(part, total)
    return FileNote(bytes=size, crc32=total)


def check_note(path: Path, present: CheckpointNote) -> CheckpointNote:
    """The note of a checkpoint that the present run can go on from. Raises DsforgeError if not.

    Other ranks and ZeRO stages will do, unless tensor or pipeline ranks wrote it that did not say
    what they hold.
    """
    note = read_note(path)
    names = {
        "global_batch_size": "use the ds_config of the checkpoint",
        "seed": "use the seed of the checkpoint",
        "samples": "use the data of the checkpoint",
    }
    if note.ranks != present.ranks and note.splits_layers:
        same = "tensor and pipeline parallel sizes of this checkpoint cannot change on resume"
        names |= dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size"), same)
        names |= {"world_size": "start the same number of ranks as before", "zero_stage": same}
    for name, hint in names.items():
        old, new = getattr(note, name), getattr(present, name)
        if old != new:
            message = f"{path.name} was saved with {name} {old}, this run has {new}"
            raise DsforgeError(message, f"{hint}, or start from scratch with `--overwrite`")
    return note


def check_run(note: CheckpointNote, present: RunIdentity) -> list[Change]:
    """What has changed since a checkpoint was saved. Raises DsforgeError where it cannot go on."""
    found = changes(note.run, present) if note.run else []
    refused = [change for change in found if change.refusal]
    if refused:
        message = f"{tag_of(note.step)} belongs to another run: {'; '.join(map(str, refused))}"
        hints = dict.fromkeys(change.refusal for change in refused)
        raise DsforgeError(message, f"{'; '.join(hints)}, or start from scratch with `--overwrite`")
    return found
