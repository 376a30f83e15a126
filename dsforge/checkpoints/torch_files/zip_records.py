"""The records of a torch file: a zip archive exactly as torch writes it, and nothing else.

Readers of zip archives disagree where an archive is odd: Python finds the directory from the end
and corrects its offset, torch looks names up without regard to case, others look at the first
bytes. A file that two readers understand differently can show one content to a check and another
to the loader. So every byte must be where torch's own writer puts it: records without gaps from
byte 0 to the directory, stored without compression, each header equal to its directory entry.

The layout is that of miniz as torch's `caffe2/serialize/inline_container.cc` uses it (1.6 to 2.13).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dsforge.checkpoints.files import opened, read_at, size_of
from dsforge.errors import DsforgeError

MAX_RECORDS = 500_000
MAX_DIRECTORY_BYTES = 128 * 1024 * 1024
LOCAL = struct.Struct("<4s5H3I2H")
ENTRY = struct.Struct("<4s6H3I5H2I")
END = struct.Struct("<4sQ2H2I4Q" + "4sIQI" + "4s4H2IH")
DESCRIPTOR, DESCRIPTOR_64 = struct.Struct("<4s3I"), struct.Struct("<4sI2Q")
ZIP64, PADDING = 1, 0x4246  # extra fields: large numbers; torch's `FB`, which aligns the bytes
HAS_DESCRIPTOR, UTF8 = 8, 0x800
FULL = 0xFFFFFFFF  # a number of 32 bits that stands in an extra field instead
EXTRA_BYTES = 160  # read along with a header; more of them are read separately
RECORDS = re.compile(
    r"data\.pkl|data/[0-9]{1,20}|byteorder|version"
    r"|\.format_version|\.storage_alignment|\.data/(serialization_id|version)"
)


class Record(NamedTuple):
    """A record of an archive: its name below the root, where its bytes begin, how many, CRC-32."""

    name: str
    begin: int
    bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What the directory says of a record."""

    name: bytes
    flags: int
    header: int
    size: int
    crc32: int
    extra: bytes

    @property
    def descriptor_bytes(self) -> int:
        """Bytes of the descriptor behind the record."""
        if not self.flags & HAS_DESCRIPTOR:
            return 0
        return DESCRIPTOR_64.size if self.extra else DESCRIPTOR.size


def read_records(path: Path) -> dict[str, Record]:
    """The records of a torch file by their names below the root, in order. Raises DsforgeError."""
    with opened(path) as descriptor:
        try:
            return _checked(descriptor)
        except (ValueError, struct.error) as error:
            message, hint = _why_not(descriptor, str(error))
            raise DsforgeError(f"{path.name} {message}", hint) from error


def _checked(descriptor: int) -> dict[str, Record]:
    """The records of an open file. Raises ValueError where torch did not write them."""
    begin, entries = _directory(descriptor)
    found = {record.name: record for record in _records(descriptor, entries, begin)}
    if len(found) != len(entries):
        raise ValueError("contains two records of one name")
    if "data.pkl" not in found:
        raise ValueError("contains no data.pkl")
    _check_byte_order(descriptor, found)
    return found


def _directory(descriptor: int) -> tuple[int, list[Entry]]:
    """Where the directory begins, and its entries. Raises ValueError."""
    size = size_of(descriptor)
    if size < END.size:
        raise ValueError("is too short")
    end = END.unpack(read_at(descriptor, size - END.size, END.size))
    signature, rest, _, _, *disks, count, count_again, length, begin = end[:10]
    where, *_ = end[12:13]
    tail = end[14:]
    expected = (min(count, 0xFFFF),) * 2 + (min(length, FULL), min(begin, FULL), 0)
    if (signature, end[10], end[14]) != (b"PK\6\6", b"PK\6\7", b"PK\5\6"):
        raise ValueError("does not have the end record that torch writes")
    if (rest, where, tail[3:]) != (44, size - END.size, expected) or any((*disks, *tail[1:3])):
        raise ValueError("has a directory that differs from its end record")
    if count != count_again or begin + length != size - END.size or (end[11], end[13]) != (0, 1):
        raise ValueError("contains bytes outside of all records")
    if not 0 < count <= MAX_RECORDS or length > MAX_DIRECTORY_BYTES:
        raise ValueError(f"has {count:,} records; at most {MAX_RECORDS:,} are read")
    content = read_at(descriptor, begin, length)
    if len(content) != length:
        raise ValueError("is truncated")
    return begin, _entries(content, count)


def _entries(content: bytes, count: int) -> list[Entry]:
    """The entries of a directory. Raises ValueError where one is not as torch writes it."""
    entries, at = [], 0
    for _ in range(count):
        fields = ENTRY.unpack_from(content, at)
        signature, _, _, flags, method, _, _, crc, packed, size, named, more, *rest = fields
        comment, disk, *kinds, header = rest
        at += ENTRY.size
        name, extra = content[at : at + named], content[at + named : at + named + more]
        at += named + more
        if signature != b"PK\1\2" or at > len(content):
            raise ValueError("has a directory that is damaged")
        if method or flags not in (UTF8, UTF8 | HAS_DESCRIPTOR):
            raise ValueError(
                "contains a compressed or encrypted record, which torch does not write"
            )
        if comment or disk or any(kinds) or packed != size:  # torch reads no bytes of a folder
            raise ValueError("has a directory that torch did not write")
        size, header = _large(extra, size, header)
        entries.append(Entry(name, flags, header, size, crc, extra))
    if at != len(content):
        raise ValueError("has directory entries without records")
    return entries


def _large(extra: bytes, size: int, header: int) -> tuple[int, int]:
    """Size and offset of a record, from the extra field where 32 bits are too few."""
    numbers = 2 * (size == FULL) + (header == FULL)
    if not numbers and not extra:
        return size, header
    length = 8 * numbers
    if not numbers or extra[:4] != struct.pack("<2H", ZIP64, length) or len(extra) != 4 + length:
        raise ValueError("has a directory entry with a field that torch does not write")
    values = struct.unpack(f"<{numbers}Q", extra[4:])
    if size == FULL and values[0] != values[1]:
        raise ValueError("contains a compressed record")
    return (values[0] if size == FULL else size), (values[-1] if header == FULL else header)


def _records(descriptor: int, entries: list[Entry], directory: int) -> Iterator[Record]:
    """Each record behind the one before, up to the directory. Raises ValueError."""
    at, before = 0, None
    root = entries[0].name.partition(b"/")[0] + b"/"
    for entry in entries:
        skipped = before.descriptor_bytes if before else 0
        wanted = skipped + LOCAL.size + len(entry.name) + EXTRA_BYTES
        content = read_at(descriptor, at, wanted)
        if before:
            _check_descriptor(content[:skipped], before)
        if entry.header != at + skipped:
            raise ValueError("contains bytes outside of all records")
        extra_bytes = _check_header(content[skipped:], entry)
        begin = entry.header + LOCAL.size + len(entry.name) + extra_bytes
        first = begin - extra_bytes - at
        extra = content[first : first + extra_bytes]
        if len(extra) < extra_bytes:
            extra = read_at(descriptor, begin - extra_bytes, extra_bytes)
        _check_extra(extra, entry)
        name = entry.name.removeprefix(root).decode("utf-8")
        if not entry.name.startswith(root) or not RECORDS.fullmatch(name):
            raise ValueError(f"contains a record that torch does not write: {name[:80]!r}")
        yield Record(name, begin, entry.size, entry.crc32)
        at, before = begin + entry.size, entry
        if at > directory:
            raise ValueError(f"is truncated in record {name}")
    if before:
        _check_descriptor(read_at(descriptor, at, before.descriptor_bytes), before)
        if at + before.descriptor_bytes != directory:
            raise ValueError("contains bytes outside of all records")


def _check_header(content: bytes, entry: Entry) -> int:
    """Bytes of the extra field of a record's own header. Raises ValueError."""
    fields = LOCAL.unpack_from(content)
    signature, _, flags, method, _, _, crc, packed, size, named, more = fields
    name = content[LOCAL.size : LOCAL.size + named]
    if signature != b"PK\3\4" or (name, flags, method) != (entry.name, entry.flags, 0):
        raise ValueError("has a record whose header differs from the directory")
    if any((crc, packed, size)):  # torch writes them behind the bytes
        raise ValueError("has a record whose sizes differ from the directory")
    return int(more)


def _check_extra(extra: bytes, entry: Entry) -> None:
    """Raises ValueError where a header has other extra fields than its directory entry and `FB`.

    torch does not know a packed size yet where it writes one of 64 bits, and leaves it 0.
    """
    at = len(entry.extra)
    unknown = entry.extra[:12] + bytes(8) + entry.extra[20:]
    forms = (entry.extra, unknown) if entry.size >= FULL else (entry.extra,)
    wrong = extra[:at] not in forms
    while at < len(extra) and not wrong:
        kind, length = struct.unpack_from("<2H", extra, at)
        at += 4 + length
        wrong = kind != PADDING or at > len(extra)
    if wrong:
        raise ValueError("has a record with a field that torch does not write")


def _check_descriptor(content: bytes, entry: Entry) -> None:
    """Raises ValueError where the descriptor behind a record is not what the directory says."""
    if not entry.descriptor_bytes:
        return
    form = DESCRIPTOR_64 if entry.extra else DESCRIPTOR
    stated = (b"PK\7\10", entry.crc32, entry.size, entry.size)
    if form.unpack(content) != stated:
        raise ValueError("has a record whose sizes differ from the directory")


def _check_byte_order(descriptor: int, records: dict[str, Record]) -> None:
    """Raises ValueError where the numbers are not in little-endian order."""
    record = records.get("byteorder")
    if record is None:
        return
    if read_at(descriptor, record.begin, min(record.bytes, 8)) != b"little":
        raise ValueError("does not store its numbers in little-endian order")


def _why_not(descriptor: int, why: str) -> tuple[str, str]:
    """Why a file is no torch archive, and what to do."""
    size, begins = size_of(descriptor), read_at(descriptor, 0, 4)
    if size == 0:
        return "is empty: 0 bytes", ""
    if begins == b"PK\3\4":
        if b"PK\5\6" not in read_at(descriptor, max(0, size - 66_000), 66_000):
            return f"is truncated: its end is missing ({size:,} bytes exist)", ""
        return f"{why}; torch did not write it like this", "load it only if you trust its author"
    if begins[:1] == b"\x80":
        hint = "load it with weights_only=True and save it once with a newer torch"
        return "is in the format before torch 1.6, which is not supported", hint
    return "is not a torch file", ""
