"""Rules: flaws that the readers find before any rule looks at the values.

The reader notes a flaw with the id of its rule; the rules here only say what such a flaw is.
"""

from __future__ import annotations

from collections.abc import Iterable

from dsforge.findings import Hit, Rule, Severity
from dsforge.lint.checked_file import CheckedFile
from dsforge.lint.reading.document import KINDS, Kind

HJSON = "DeepSpeed runtime/config.py loads with hjson; transformers and accelerate with json"
STRICT = "DeepSpeed runtime/config_utils.py, dict_raise_error_on_duplicate_keys"
OURS = "limit of this tool"


def _of_reading(name: str, severity: Severity, title: str, *text: str) -> Rule[CheckedFile]:
    """The rule of one kind of flaw; `text` is its reason and its evidence."""

    def find(file: CheckedFile) -> Iterable[Hit]:
        return (
            Hit((), flaw.message, flaw.fix, flaw.edits, flaw.offset, flaw.severity)
            for flaw in file.document.flaws
            if flaw.rule == name
        )

    fixable = name in ("json-trailing-comma", "json-literal", "json-bom")
    kinds: tuple[Kind, ...] = ("unknown",) if name == "kind-unknown" else KINDS
    kinds = (*KINDS, "unknown") if name in ("file-unreadable", "files-left-out") else kinds
    return Rule(name, severity, kinds, title, text[0], text[1], find, fixable)


FLAWS: tuple[Rule[CheckedFile], ...] = (
    _of_reading(
        "files-left-out",
        "error",
        "Files of a folder that were not looked at.",
        "A folder has more entries, files or bytes than lint looks at, or a part that cannot be "
        "listed; the rest may hold any error.",
        OURS,
    ),
    _of_reading(
        "file-unreadable",
        "error",
        "A file that cannot be read as text.",
        "The file is missing, not readable, larger than the limit, or not UTF-8 text.",
        OURS,
    ),
    _of_reading(
        "json-syntax",
        "error",
        "Text that is not JSON.",
        "Every program that reads the file stops there, on every rank.",
        HJSON,
    ),
    _of_reading(
        "json-comment",
        "warning",
        "A comment in JSON.",
        "DeepSpeed's own launcher reads it; the same file given to a trainer is refused.",
        HJSON,
    ),
    _of_reading(
        "json-trailing-comma",
        "warning",
        "A comma after the last entry.",
        "DeepSpeed's own launcher reads it; the same file given to a trainer is refused.",
        HJSON,
    ),
    _of_reading(
        "json-literal",
        "error",
        "A Python literal in JSON.",
        "hjson reads `True,` as text, not as the intended boolean.",
        HJSON,
    ),
    _of_reading(
        "json-number",
        "error",
        "A number that is not finite.",
        "No setting accepts infinity, and JSON readers parse it differently.",
        "RFC 8259, section 6",
    ),
    _of_reading(
        "json-bom",
        "error",
        "A byte-order mark before the text.",
        "Python's `json` refuses it; editors on Windows add it invisibly.",
        "json.loads: Unexpected UTF-8 BOM",
    ),
    _of_reading(
        "duplicate-key",
        "error",
        "A key that occurs twice.",
        "DeepSpeed refuses the file; other readers silently take the last one.",
        STRICT,
    ),
    _of_reading(
        "too-deep",
        "error",
        "Nesting that is too deep.",
        "No config is nested this deep; reading on could exhaust memory.",
        OURS,
    ),
    _of_reading(
        "not-a-mapping",
        "error",
        "A file that is not a mapping.",
        "A config is a set of keys; a list or a single value has none.",
        "DeepSpeed runtime/config.py, DeepSpeedConfig.__init__",
    ),
    _of_reading(
        "yaml-syntax",
        "error",
        "Text that is not plain YAML.",
        "Tags, aliases and several documents are rejected: they can run code or grow without "
        "bound.",
        "yaml.safe_load raises on the same text, or reads something else than is written",
    ),
    _of_reading(
        "kind-unknown",
        "info",
        "A file of no known kind.",
        "The kind of the file was not recognised; set it with `--kind`. A named file that is not "
        "the JSON or YAML that its name says is an error.",
        OURS,
    ),
)
