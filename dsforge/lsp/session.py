"""What the server checks, and against what: release, model, cluster and workload."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from dsforge.api.checking import against_of, masked_finding
from dsforge.errors import DsforgeError, quoted
from dsforge.findings import Edit, Finding
from dsforge.lint.bounds import MAX_BYTES
from dsforge.lint.files import Against, checked, is_harmless
from dsforge.lint.reading.document import Document
from dsforge.lint.reading.kind import document_of

SETTINGS = ("model", "cluster", "workload", "deepspeed")
TOKEN = re.compile(r'"[^"\n]*"|[^\s,{}\[\]]+')  # what a finding underlines


class Settings(NamedTuple):
    """What the user names: texts as the flags of the command line take them; none: not named."""

    model: str | None = None
    cluster: str | None = None
    workload: str | None = None
    deepspeed: str | None = None

    def changed(self, options: Any) -> Settings:
        """The settings with those of an editor. Raises DsforgeError for what is no setting."""
        if not isinstance(options, Mapping):
            return self
        for name, value in options.items():
            if name not in SETTINGS or not isinstance(value, str):
                message = f"`{quoted(name)}` is not a setting of dsforge lsp"
                raise DsforgeError(message, f"texts for {', '.join(SETTINGS)}")
        return self._replace(**options)


class Shown(NamedTuple):
    """A finding with the part of the text that it is about."""

    finding: Finding
    start: int
    end: int


class Session(NamedTuple):
    """Settings, and what lint makes of them."""

    settings: Settings
    against: Against

    def document(self, name: str, text: str) -> Document | None:
        """The document in a text; none where it is not one of the kinds that lint knows."""
        if len(text) > MAX_BYTES:
            return None
        document = document_of(name, text)
        return None if document.kind == "unknown" else document

    def shown(self, document: Document) -> list[Shown]:
        """The findings, as `dsforge lint` has them, by their place."""
        found = [masked_finding(finding) for finding in checked(document, self.against)]
        return [Shown(finding, *span_of(document, finding)) for finding in found]

    def repairs(self, document: Document, finding: Finding) -> tuple[Edit, ...]:
        """The edits of a finding; none where a file with them would have an error more."""
        edits = finding.edits
        return edits if edits and is_harmless(document, edits, self.against) else ()


def session_of(settings: Settings) -> Session:
    """A session with these settings. Raises DsforgeError."""
    model, cluster, _, deepspeed = settings
    return Session(settings, against_of(model, cluster, deepspeed))


def span_of(document: Document, finding: Finding) -> tuple[int, int]:
    """The offsets of the word that a finding points to; of its first character at least."""
    start = document.line(finding.line).start + finding.column - 1
    match = TOKEN.match(document.text, start)
    return start, match.end() if match else min(start + 1, len(document.text))
