"""The licence of a base model, where its own files state it; nothing is guessed from its name.

Folders state it in the front matter of README.md, as the hub defines it, and in licence files;
GGUF files in their header. A folder may come from a stranger: names are bounded, and no link in it
leads a file of this machine into a folder that is then published.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dsforge.masking import printable
from dsforge.outside import UnreadableError, decoded, read_bytes
from dsforge.reading.gguf import GgufError, read_header
from dsforge.reading.hub import cached_config, is_hub_id
from dsforge.train.model.source import ModelSource

LONGEST_NAME = 100  # letters of a licence, its link or the name of a model
MAX_CARD_BYTES, MAX_FILE_BYTES = 1 << 20, 1 << 20
MOST_FILES = 8
FRONT_MATTER = re.compile(r"---\r?\n(.*?)\r?\n---\s*?(?:\r?\n|$)", re.DOTALL)
# What licences ask to be passed on with derived weights, whatever the ending.
FILES = re.compile(r"(LICEN[SC]E|COPYING|NOTICE|USE_POLICY)([.-][\w.-]{1,40})?", re.IGNORECASE)
TEXTS = ("", ".txt", ".md")


class Licence(NamedTuple):
    """What the files of a base model say: a name and a link, where they say so, and texts.

    `key` is what the hub calls it, `other` for one that it has no word for; `named_in` is where
    the name is; `model` the name that the files give the model itself.
    """

    name: str = ""
    key: str = ""
    link: str = ""
    named_in: str = ""
    model: str = ""
    files: Mapping[str, bytes] = {}


def licence_of(source: ModelSource) -> Licence:
    """The licence of the model at a source; an empty one where nothing is stated."""
    if source.gguf_file:
        return _of_header(Path(source.name) / source.gguf_file)
    folder = Path(source.name)
    if not folder.is_dir():
        config = cached_config(source.name) if is_hub_id(source.name) else None
        if config is None:
            return Licence()
        folder = config.parent
    named = _of_card(folder / "README.md")
    return named._replace(files=dict(_licence_files(folder)))


def _of_header(path: Path) -> Licence:
    """Keys of ggml's `docs/gguf.md`, general metadata."""
    try:
        values = read_header(path).values
    except (GgufError, UnreadableError):
        return Licence()
    made_by, name = _word(values.get("general.organization")), _word(values.get("general.name"))
    key = _word(values.get("general.license"))
    return Licence(
        name=_word(values.get("general.license.name")) or key,
        key=key,
        link=_word(values.get("general.license.link")),
        named_in="the header of the GGUF file",
        model=f"{name} ({made_by})" if name and made_by else name,
    )


def _of_card(path: Path) -> Licence:
    """`license`, `license_name` and `license_link` of a model card."""
    found = FRONT_MATTER.match(_text(path, MAX_CARD_BYTES))
    try:
        values = yaml.safe_load(found[1]) if found else None
    except (yaml.YAMLError, ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        return Licence()
    key = _word(values.get("license"))
    name = _word(values.get("license_name")) or key
    return Licence(name, key, _word(values.get("license_link")), "its README.md")


def _licence_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Texts of licences in a folder of weights."""
    names = sorted(file.name for file in folder.iterdir() if FILES.fullmatch(file.name))
    for name in [n for n in names if Path(n).suffix.lower() in TEXTS][:MOST_FILES]:
        try:
            if _is_inside(folder / name, folder):
                yield name, read_bytes(folder / name, MAX_FILE_BYTES, pipes=False)
        except (UnreadableError, OSError):
            continue


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a file is in its folder or, as in the cache of the hub, in the blobs beside it."""
    target, home = path.resolve(), folder.resolve()
    return target.is_relative_to(home) or target.is_relative_to(home.parent.parent / "blobs")


def _text(path: Path, most_bytes: int) -> str:
    """The text of a file in a folder; empty where it cannot be read."""
    try:
        if not _is_inside(path, path.parent):
            return ""
        return decoded(read_bytes(path, most_bytes, pipes=False))
    except (UnreadableError, OSError):
        return ""


def _word(value: Any) -> str:
    """A value as one line that cannot end a cell, a code span or the front matter of a card."""
    if not isinstance(value, str):
        return ""
    plain = re.sub(r"[\s|`<>\[\]\\]+", " ", printable(value)).strip()
    return plain[:LONGEST_NAME]
