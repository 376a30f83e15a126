"""Files that two readers of zip archives understand differently, or that are no plain files."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zipfile
from pathlib import Path

from hostile import call, glob, text, torch_file


def records_of(path: Path) -> dict[str, bytes]:
    """The records of a torch file that its writer does not add by itself."""
    with zipfile.ZipFile(path) as archive:
        found = {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}
    return {n: b for n, b in found.items() if n not in ("version", ".data/serialization_id")}


def evil(good: bytes, canary: Path) -> bytes:
    """A good pickle that touches a canary first."""
    return b"\x80\x02" + call(glob("os", "system"), text(f"touch {canary}")) + b"0" + good[2:]


def zipped(path: Path, records: dict[str, bytes], root: str = "a", **more: int) -> None:
    """A zip archive as Python writes it."""
    with zipfile.ZipFile(path, "w", **more) as archive:
        for name, content in records.items():
            archive.writestr(f"{root}/{name}", content)


def odd_archives(folder: Path, good: Path, canary: Path) -> list[Path]:
    """Files with a good pickle and an evil one, of which readers see one or the other."""
    records = records_of(good)
    bad = {**records, "data.pkl": evil(records["data.pkl"], canary)}
    whole = torch_file(folder / "whole.bin", records).read_bytes()
    other = torch_file(folder / "other.bin", bad).read_bytes()
    made = {f"name-{name}": _second(folder, records, bad, name) for name in OTHER_NAMES}
    for name in ("DATA.pkl", "Data.pkl", "data.PKL"):
        made[f"torch-{name}"] = _named(folder, {**records, name: bad["data.pkl"]})
    made |= {
        "archives-in-a-row": other + whole,
        "archives-in-a-row-again": whole + other,
        "something-before": b"#!/bin/sh\n" + whole,
        "something-behind": whole + bytes(22),
        "comment": whole[:-2] + b"\4\0look",
        "tar-around": _tar(folder, bad, whole),
        "header-of-another-name": _patched(whole, b"data.pkl", b"data.pkk"),
        "flags-that-differ": whole[:6] + b"\x09\x08" + whole[8:],
        "method-that-differs": whole[:8] + b"\x08\0" + whole[10:],
        "size-in-the-header": whole[:18] + struct.pack("<2I", 5, 5) + whole[26:],
        "descriptor-that-differs": _descriptor(whole),
        "offset-of-another": _offset(whole),
        "entries-fewer": _fewer(whole),
        "end-with-a-disk": whole[:-18] + b"\1\0" + whole[-16:],
        "end-without-zip64": whole[:-98] + whole[-22:],
        "script": _named(folder, {**records, "code/x.py": b"import os"}),
        "constants": _named(folder, {**records, "constants.pkl": b"\x80\x02)."}),
        "no-pickle": _named(folder, {k: v for k, v in records.items() if k != "data.pkl"}),
        "big-endian": _named(folder, {**records, "byteorder": b"big"}),
        "path-in-a-name": _named(folder, {**records, "data/../../x": b""}),
    }
    for kind, method in (("deflated", zipfile.ZIP_DEFLATED), ("stored", zipfile.ZIP_STORED)):
        zipped(folder / "by-python.bin", bad, compression=method)
        made[f"by-python-{kind}"] = (folder / "by-python.bin").read_bytes()
    found = []
    for name, content in made.items():
        plain = "".join(c if c.isalnum() or c in "-." else "_" for c in name)
        found.append(folder / f"{plain}.pt")
        found[-1].write_bytes(content)
    return found


OTHER_NAMES = ("DATA.pkl", "Data.pkl", "data.PKL", "./data.pkl", "data.pkl\0", "x/data.pkl")


def _second(folder: Path, records: dict[str, bytes], bad: dict[str, bytes], name: str) -> bytes:
    path = folder / "second.bin"
    zipped(path, {**records, name.replace("\0", "0"): bad["data.pkl"]})
    content = path.read_bytes()
    return content.replace(b"data.pkl0", b"data.pkl\0") if "\0" in name else content


def _named(folder: Path, records: dict[str, bytes]) -> bytes:
    return torch_file(folder / "named.bin", records).read_bytes()


def _tar(folder: Path, bad: dict[str, bytes], whole: bytes) -> bytes:
    """A tar archive whose first name begins as a zip archive does, and a good zip behind it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in {"PK\3\4": b"", "pickle": bad["data.pkl"]}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue() + whole


def _patched(content: bytes, old: bytes, new: bytes) -> bytes:
    """The first of several equal parts changed: in a header, not in the directory."""
    return content.replace(old, new, 1)


def _descriptor(whole: bytes) -> bytes:
    at = whole.index(b"PK\7\10") + 8
    return whole[:at] + b"\1\0\0\0" + whole[at + 4 :]


def _offset(whole: bytes) -> bytes:
    """The first record's entry in the directory leads to another record."""
    first = whole.index(b"PK\1\2")
    second = whole.index(b"PK\1\2", first + 4)
    offset = whole[second + 42 : second + 46]
    return whole[: first + 42] + offset + whole[first + 46 :]


def _fewer(whole: bytes) -> bytes:
    """The end states fewer entries than the directory holds."""
    count = struct.unpack_from("<Q", whole, len(whole) - 98 + 24)[0] - 1
    end = bytearray(whole)
    struct.pack_into("<2Q", end, len(whole) - 98 + 24, count, count)
    struct.pack_into("<2H", end, len(whole) - 22 + 8, count, count)
    return bytes(end)


def special_files(folder: Path) -> list[Path]:
    """A pipe, a link to a device without end, a link to itself, a folder, a link to nothing."""
    os.mkfifo(folder / "pipe.pt")
    (folder / "zero.pt").symlink_to("/dev/zero")
    (folder / "loop.pt").symlink_to(folder / "loop.pt")
    (folder / "folder.pt").mkdir()
    (folder / "nowhere.pt").symlink_to(folder / "not-there")
    return sorted(folder.glob("*.pt"))
