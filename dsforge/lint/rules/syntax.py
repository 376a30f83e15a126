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
    kinds = (*KINDS, "unknown") if name == "file-unreadable" else kinds
    return Rule(name, severity, kinds, title, text[0], text[1], find, fixable)


FLAWS: tuple[Rule[CheckedFile], ...] = (
    _of_reading(
        "file-unreadable",
        "error",
        "A file that cannot be read as text.",
        "Missing, without permission, larger than the limit, or not UTF-8: a config never is.",
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
        "No setting means anything at infinity, and readers disagree about how it is written.",
        "RFC 8259, section 6",
    ),
    _of_reading(
        "json-bom",
        "error",
        "A byte-order mark before the text.",
        "Python's `json` refuses it; editors on Windows write it unseen.",
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
        "No config is nested this deep; going on would exhaust the reader.",
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
        "Tags, aliases and several documents are not read: they can run code or grow without "
        "bound.",
        "yaml.safe_load raises on the same text, or reads something else than is written",
    ),
    _of_reading(
        "kind-unknown",
        "info",
        "A file of no known kind.",
        "It was named, but nothing in it says what it is; `--kind` does.",
        OURS,
    ),
)
