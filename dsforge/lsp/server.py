"""The protocol: diagnostics, hovers and quick fixes over stdin and stdout, through pygls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from dsforge import __version__
from dsforge.errors import DsforgeError
from dsforge.findings import Edit
from dsforge.lint.reading.document import Document
from dsforge.lsp.hovers import hover_text
from dsforge.lsp.session import Session, Settings, Shown, session_of

SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "info": types.DiagnosticSeverity.Information,
}
SOURCE = "dsforge"


class Documents:
    """The open documents of an editor, checked in one session."""

    def __init__(self, server: Any, session: Session) -> None:
        self.server, self.session = server, session

    def initialize(self, asked: types.InitializeParams) -> None:
        """Take the settings of the editor; say what is wrong with them and go on without."""
        try:
            settings = self.session.settings.changed(asked.initialization_options)
            self.session = session_of(settings)
        except DsforgeError as error:
            message = f"dsforge: {error.message}. {error.hint}"
            told = types.ShowMessageParams(types.MessageType.Error, message)
            self.server.window_show_message(told)

    def publish(self, asked: Any) -> None:
        """Show what is wrong with a document that was opened, changed or saved."""
        uri = asked.text_document.uri
        opened, document = self._read(uri)
        shown = self.session.shown(document) if document else []
        found = [self._diagnostic(opened, one) for one in shown]
        self._publish(uri, found)

    def clear(self, asked: types.DidCloseTextDocumentParams) -> None:
        """Take away what was shown of a document that is closed."""
        self._publish(asked.text_document.uri, [])

    def hover(self, asked: types.HoverParams) -> types.Hover | None:
        """What is known of the key under the mouse."""
        opened, document = self._read(asked.text_document.uri)
        if document is None:
            return None
        text = hover_text(self.session, document, opened.offset_at_position(asked.position))
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text)) if text else None

    def actions(self, asked: types.CodeActionParams) -> list[types.CodeAction]:
        """The repairs of the findings in a range."""
        opened, document = self._read(asked.text_document.uri)
        if document is None:
            return []
        first = opened.offset_at_position(asked.range.start)
        last = opened.offset_at_position(asked.range.end)
        near = [s for s in self.session.shown(document) if s.start <= last and first <= s.end]
        made = [(one, self.session.repairs(document, one.finding)) for one in near]
        return [self._action(opened, one, edits) for one, edits in made if edits]

    def _read(self, uri: str) -> tuple[Any, Document | None]:
        opened = self.server.workspace.get_text_document(uri)
        return opened, self.session.document(opened.path or uri, opened.source)

    def _publish(self, uri: str, found: list[types.Diagnostic]) -> None:
        shown = types.PublishDiagnosticsParams(uri, found)
        self.server.text_document_publish_diagnostics(shown)

    def _diagnostic(self, opened: Any, shown: Shown) -> types.Diagnostic:
        finding = shown.finding
        message = f"{finding.message}; {finding.fix}" if finding.fix else finding.message
        place = _range(opened, shown.start, shown.end)
        severity = SEVERITIES[finding.severity]
        return types.Diagnostic(place, message, severity, finding.rule, source=SOURCE)

    def _action(self, opened: Any, shown: Shown, edits: tuple[Edit, ...]) -> types.CodeAction:
        changes = [types.TextEdit(_range(opened, e.start, e.end), e.text) for e in edits]
        return types.CodeAction(
            title=f"{shown.finding.fix or 'repair'} ({shown.finding.rule})",
            kind=types.CodeActionKind.QuickFix,
            diagnostics=[self._diagnostic(opened, shown)],
            is_preferred=True,
            edit=types.WorkspaceEdit(changes={opened.uri: changes}),
        )


def _range(opened: Any, start: int, end: int) -> types.Range:
    """Two offsets as the editor counts."""
    at = opened.client_position_at_offset
    return types.Range(at(start), at(end))


def _function(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A method as a function, which pygls can mark as registered."""

    def called(asked: Any) -> Any:
        return method(asked)

    return called


def server_of(settings: Settings) -> Any:
    """The server, with its features. Raises DsforgeError for settings that cannot be read."""
    server = LanguageServer("dsforge", __version__)
    documents = Documents(server, session_of(settings))
    only_fixes = types.CodeActionOptions([types.CodeActionKind.QuickFix])
    server.feature(types.INITIALIZE)(_function(documents.initialize))
    for name in (
        types.TEXT_DOCUMENT_DID_OPEN,
        types.TEXT_DOCUMENT_DID_CHANGE,
        types.TEXT_DOCUMENT_DID_SAVE,
    ):
        server.feature(name)(_function(documents.publish))
    server.feature(types.TEXT_DOCUMENT_DID_CLOSE)(_function(documents.clear))
    server.feature(types.TEXT_DOCUMENT_HOVER)(_function(documents.hover))
    server.feature(types.TEXT_DOCUMENT_CODE_ACTION, only_fixes)(_function(documents.actions))
    return server
