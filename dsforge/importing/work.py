"""Work: the files and the draft of one import, and the record that describes a style."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from dsforge.errors import SpecError
from dsforge.importing.draft import Draft
from dsforge.importing.files import Files
from dsforge.importing.forms import Source
from dsforge.importing.shell.expansion import Piece, is_unknown, readable, without_unset
from dsforge.importing.shell.launches import Flags, Launch
from dsforge.importing.values import Settings, Unknown, Value

LIGHTNING_CONFIG = "PL_DEEPSPEED_CONFIG_PATH"  # variable of Lightning that names a ds_config
MOST_IDLE = 3  # commands that one message names
DATA = (".yaml", ".yml", ".json", ".toml")


class Passed(NamedTuple):
    """Programs that are known and not read, and commands that do not train."""

    foreign: list[str]
    idle: list[str]

    def why(self) -> str:
        """Why nothing was read, in one line."""
        if self.foreign:
            return f"a file of {self.foreign[0]}, which dsforge does not read"
        if self.idle:
            return "nothing in it trains: " + ", ".join(dict.fromkeys(self.idle[:MOST_IDLE]))
        return "not a config or script that dsforge knows"


class Work(NamedTuple):
    """What readers work on."""

    files: Files
    draft: Draft
    styles: list[str]  # names of the styles that took part
    passed: Passed  # what is not read, for the message where nothing is
    program: Style | None = None  # whose files they are, as a person says

    def referred(self, value: Value | None, thing: str) -> Source | None:
        """The file that a value names; a problem says where it was not given or not readable."""
        if value is None or not value.text:
            return None
        inline = value.text.startswith("{")
        found = inline_source(value) if inline else self.files.beside(value.text)
        if found is None:
            hint = "name that file, too, or put it into the folder of this one"
            message = f"{thing} {value.shown} was not given"
            self.draft.problem("file-not-given", message, value.place, hint)
            return None
        try:
            found.settings()
        except SpecError as error:
            self.draft.problems += error.problems
            return None
        return found

    def took_part(self, style: str) -> None:
        """Note a style."""
        if style not in self.styles:
            self.styles.append(style)


def inline_source(value: Value) -> Source:
    """The file that stands in a value itself: `--deepspeed '{"zero_optimization": ...}'`."""
    name, _, line = value.place.rpartition(":")
    before = int(line) - 1 if line.isdigit() else 0
    made = Source("inline.json", "\n" * before + value.text)
    made.name = name or value.place
    return made


Read = Callable[[Work, Settings], None]
ReadPython = Callable[[Work, Source], bool]


class Style(NamedTuple):
    """A program whose configs and scripts are read."""

    name: str
    label: str
    read: Read
    keys: frozenset[str] = frozenset()  # of its files and flags, by which it is recognised
    fewest: int = 2  # of these keys, before it is
    programs: re.Pattern[str] | None = None  # names of what a script launches
    python: ReadPython | None = None  # reads a Python source; false where it is not one of these
    takes_files: bool = False  # its program takes a YAML or JSON file instead of flags
    evidence: str = ""  # where the program reads the keys
    replicates: bool = True  # without an engine it runs torch: DDP, or one device

    def signs(self, keys: frozenset[str]) -> int:
        """How many of its keys are there; 0 where they are too few."""
        count = len(self.keys & keys)
        return count if count >= self.fewest else 0


def words(text: str) -> frozenset[str]:
    """A set of words."""
    return frozenset(text.split())


def value_of(pieces: list[Piece], place: str) -> Value:
    """What a flag is given: true without words, a list with several."""
    if not pieces:
        return Value(value=True, place=place)
    if len(pieces) == 1:
        text = pieces[0].text.replace("\x03", "")
        return Value(Unknown(readable(text)) if is_unknown(text) else text, place)
    plain = [piece.text for piece in pieces if not is_unknown(piece.text)]
    return Value(plain, place) if plain else Value(Unknown(readable(pieces[0].text)), place)


def settings_of_flags(flags: Flags, source: Source) -> Settings:
    """Flags and overrides as settings."""
    found: dict[str, Value] = {}
    for flag, (piece, given) in flags.values.items():
        name = flag.lstrip("-")
        value = value_of(given, source.place(piece.line))
        if name.startswith(("no-", "no_")) and value.value is True and len(name) > 5:  # noqa: PLR2004
            found.setdefault(name[3:], value._replace(value=False))
        found[name] = value
    for key, piece in flags.overrides.items():
        found[key] = value_of([piece], source.place(piece.line))
    return Settings(found)


def settings_of_launch(work: Work, launch: Launch, source: Source) -> Settings:
    """The arguments of a launched program, over the files of data that it is given."""
    flags = settings_of_flags(launch.arguments, source)
    settings = Settings({})
    named = [piece for piece in launch.arguments.rest if piece.text.endswith(DATA)]
    behind = [
        Value(piece.text, source.place(piece.line))
        for key in ("config", "config_file", "config_path", "recipe", "args_file")
        if (held := launch.arguments.values.get("--" + key)) is not None
        for piece in held[1][:1]
        if piece.text.endswith(DATA)
    ]
    switches = [  # a file behind a switch: `--do_train config.yaml`
        given[-1]
        for _, given in launch.arguments.values.values()
        if len(given) > 1 and given[-1].text.endswith((".yaml", ".yml"))
    ]
    names = [Value(p.text, source.place(p.line)) for p in (*named, *switches)]
    for value in [*names, *behind]:
        if PurePosixPath(value.text).suffix in DATA:
            found = work.referred(value, "config")
            if found is not None:
                settings = settings.joined(found.settings())
    written = without_unset(launch.variables.get(LIGHTNING_CONFIG, ""))
    if written and not is_unknown(written):
        place = source.place(launch.program.line)
        flags = flags.joined(Settings({LIGHTNING_CONFIG: Value(written, place)}))
    return settings.joined(flags)


def mapped(values: Mapping[str, str], text: str) -> str | None:
    """The word for a word; none where it is not in the table."""
    return values.get(text.strip().lower())
