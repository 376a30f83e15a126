"""`latest_universal`: the file that tells DeepSpeed which universal checkpoint to load.

It lies beside the checkpoint and may name another one already, or be somebody else's link. So it is
looked at before any work, created only where there is none, and never written through or replaced.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dsforge.checkpoints.output.disk import flush, rename_new
from dsforge.checkpoints.output.new_folder import Say, explained, workplace, write_file
from dsforge.checkpoints.path_names import is_plain
from dsforge.errors import DsforgeError

POINTER = "latest_universal"
HINT = "remove it, or convert into a separate folder"
MAX_BYTES = 4096  # of a pointer; the name of a folder has at most 255


def check_pointer(out: Path) -> None:
    """Raise DsforgeError where `latest_universal` beside an output cannot name it."""
    name = os.fsencode(out.name)
    if out.name == POINTER or name != name.strip() or not is_plain(out.name):
        message = f"{out.name!r} cannot be the name of a universal checkpoint"
        raise DsforgeError(
            message, f"`{POINTER}` must contain it: use a shorter name of letters and digits"
        )
    with explained(out):
        held = _pointer_content(out.parent / POINTER)
    if held not in (None, name):
        raise _taken(out, held)


def point(out: Path, say: Say) -> None:
    """Have `latest_universal` beside a checkpoint name it. Raises DsforgeError."""
    pointer, name = out.parent / POINTER, os.fsencode(out.name)
    with explained(pointer), workplace(out.parent, say) as own:
        write_file(own / POINTER, name)
        try:
            rename_new(own / POINTER, pointer)
            flush(out.parent)
        except FileExistsError as error:
            held = _pointer_content(pointer)
            if held != name:
                raise _taken(out, held) from error


def _pointer_content(pointer: Path) -> bytes | None:
    """The name in a pointer; none where there is none. Raises DsforgeError where it is no file."""
    try:
        descriptor = os.open(pointer, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if not pointer.is_symlink():
            raise
        hint = "remove it, or write into a separate folder"
        raise DsforgeError(
            f"{pointer} is a link; dsforge does not write through links", hint
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DsforgeError(f"{pointer} is not a regular file", HINT)
        return os.read(descriptor, MAX_BYTES).strip()
    finally:
        os.close(descriptor)


def _taken(out: Path, held: bytes | None) -> DsforgeError:
    there = "already written, but" if os.path.lexists(out) else "not written:"
    named = (held or b"").decode("utf-8", "replace")[:80]
    message = f"{out} is {there} {out.parent / POINTER} names another checkpoint: `{named}`"
    hint = f"remove `{POINTER}` or write `{out.name}` into it, or convert into a separate folder"
    return DsforgeError(message, hint)
