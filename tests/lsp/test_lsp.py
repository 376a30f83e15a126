"""The language server, spoken to as an editor does: over pipes, and in its own session."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("pygls") is None:
    pytest.skip("pygls is not installed", allow_module_level=True)

from lsprotocol import types
from pygls.lsp.client import LanguageClient

import dsforge
from dsforge.errors import DsforgeError
from dsforge.findings import Edit
from dsforge.lint.reading.document import applied
from dsforge.lint.schemas.key_texts import key_texts
from dsforge.lsp.hovers import hover_text
from dsforge.lsp.plan_memory import terms_of
from dsforge.lsp.session import Settings, session_of

BAD = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimisation": {"stage": 2},
    "bf16": {"enabled": True, "loss_scale": 0},
}
CLUSTER = "gpus_per_node: 8\ngpu: a100-80gb\n"
PRICED = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
}


async def talk(folder: Path, text: str, options: dict[str, str]) -> dict[str, Any]:
    """What an editor hears of one file: diagnostics, hovers at each key, and repairs."""
    client = LanguageClient("editor", "1")
    heard: asyncio.Queue[Any] = asyncio.Queue()
    for name in (types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS, types.WINDOW_SHOW_MESSAGE):
        client.feature(name)(lambda told: heard.put_nowait(told))  # noqa: PLW0108 - pygls marks it
    await client.start_io(sys.executable, "-m", "dsforge", "lsp")
    begun = types.InitializeParams(
        capabilities=types.ClientCapabilities(), initialization_options=options
    )
    await client.initialize_async(begun)
    client.initialized(types.InitializedParams())
    uri = (folder / "ds_config.json").as_uri()
    item = types.TextDocumentItem(uri, "json", 1, text)
    client.text_document_did_open(types.DidOpenTextDocumentParams(item))
    found = [await asyncio.wait_for(heard.get(), 30)]
    if isinstance(found[0], types.ShowMessageParams):
        found.append(await asyncio.wait_for(heard.get(), 30))
    named = types.TextDocumentIdentifier(uri)
    everything = types.Range(types.Position(0, 0), types.Position(999, 0))
    actions = await client.text_document_code_action_async(
        types.CodeActionParams(named, everything, types.CodeActionContext([]))
    )
    at = text[: text.index('"stage"')]
    place = types.Position(at.count("\n"), len(at) - at.rfind("\n"))
    hover = await client.text_document_hover_async(types.HoverParams(named, place))
    changed = types.TextDocumentContentChangeWholeDocument(json.dumps(PRICED))
    version = types.VersionedTextDocumentIdentifier(2, uri)
    client.text_document_did_change(types.DidChangeTextDocumentParams(version, [changed]))
    after = await asyncio.wait_for(heard.get(), 30)
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()
    return {"found": found, "actions": actions, "hover": hover, "after": after}


def test_an_editor_hears_what_lint_says(tmp_path: Path) -> None:
    """Diagnostics, quick fixes of a file that is not even saved; none once it is good."""
    text = json.dumps(BAD, indent=2)
    heard = asyncio.run(talk(tmp_path, text, {}))
    (tmp_path / "ds_config.json").write_text(text)
    linted = dsforge.lint(tmp_path / "ds_config.json").findings
    diagnostics = heard["found"][-1].diagnostics

    assert [(d.code, d.range.start.line + 1, d.range.start.character + 1) for d in diagnostics] == [
        (f.rule, f.line, f.column) for f in linted
    ]
    assert {a.diagnostics[0].code for a in heard["actions"]} == {
        "key-misspelt",
        "loss-scale-in-bf16",
    }
    assert [d for d in heard["after"].diagnostics if d.severity == 1] == []


def test_a_wrong_setting_is_said_and_the_server_goes_on(tmp_path: Path) -> None:
    """The editor shows the message; the findings come all the same."""
    heard = asyncio.run(talk(tmp_path, json.dumps(BAD, indent=2), {"modell": "x"}))

    assert "`'modell'` is not a setting" in heard["found"][0].message
    assert heard["found"][1].diagnostics


def test_a_hover_says_what_a_key_does_and_costs(tmp_path: Path) -> None:
    """Its sentence, its values, and the memory of the plan, as the estimate has it."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    settings = Settings("7b", str(tmp_path / "cluster.yaml"))
    session = session_of(settings)
    text = json.dumps(PRICED, indent=2)
    document = session.document("ds_config.json", text)
    assert document is not None
    said = hover_text(session, document, text.index('"stage"') + 1)
    (tmp_path / "ds_config.json").write_text(text)
    result = dsforge.estimate(*settings[:2], ds_config=tmp_path / "ds_config.json")
    gradients = result.document.memory.terms.gradients / 2**30

    assert key_texts()["zero_optimization.stage"] in said
    assert f"gradients {gradients:.1f}" in said or f"gradients {gradients:.2f}" in said
    assert "Host RAM" in hover_text(session, document, text.index('"offload_optimizer"') + 1)
    assert "Memory" not in hover_text(session_of(Settings()), document, text.index('"stage"') + 1)


def test_a_repair_that_adds_an_error_is_not_offered() -> None:
    """The misspelt block holds what would be refused under its right name."""
    session = session_of(Settings())
    text = json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimisation": {"stage": 7}})
    document = session.document("ds_config.json", text)
    assert document is not None
    misspelt = next(s.finding for s in session.shown(document) if s.finding.edits)

    assert session.repairs(document, misspelt) == ()


def test_files_of_others_stay_without_a_mark() -> None:
    """Training arguments, and texts beyond the limit."""
    session = session_of(Settings())

    assert session.document("a.json", '{"output_dir": "x", "learning_rate": 1}') is None
    assert session.document("ds_config.json", " " * 600_000 + "{}") is None


def test_settings_are_texts() -> None:
    """Anything else is refused in words, by name."""
    assert Settings("a").changed({"deepspeed": "0.16"}) == Settings("a", deepspeed="0.16")
    assert Settings().changed(None) == Settings()
    for wrong in ({"model": 7}, {"x": "y"}):
        with pytest.raises(DsforgeError, match="is not a setting"):
            Settings().changed(wrong)


@pytest.mark.parametrize(
    ("path", "terms"),
    [
        ("zero_optimization.reduce_bucket_size", ("buffers",)),
        ("zero_optimization.offload_optimizer.device", ("optimizer_state",)),
        ("bf16.enabled", ("weights", "gradients")),
        ("gradient_clipping", ()),
        ("zero_optimization.ignore_unused_parameters", ()),
    ],
)
def test_a_key_is_shown_with_the_terms_that_it_decides(path: str, terms: tuple[str, ...]) -> None:
    """Others are shown with none."""
    assert terms_of(path) == terms


def test_every_quick_fix_is_the_edit_of_lint() -> None:
    """What the editor writes is what --fix would."""
    session = session_of(Settings())
    text = json.dumps(BAD)
    document = session.document("ds_config.json", text)
    assert document is not None
    edits: list[Edit] = []
    for shown in session.shown(document):
        edits += session.repairs(document, shown.finding)
    root = json.loads(applied(text, edits))

    assert root["zero_optimization"] == {"stage": 2}
    assert root["bf16"] == {"enabled": True}
