"""Timelines: levels, phases, picture and trace. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from dsforge.rehearse.report import RehearsalDocument, phase_accounts
from dsforge.rehearse.timeline import Change, Span, Timeline, phase_levels
from dsforge.rehearse.timeline_export import picture, trace

SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "rehearsal.schema.json"
STORY = Timeline(
    (
        Change("parameter", True, 10),
        Change("activation", True, 5),
        Change("optimizer_state", False, 7),
        Change("activation", True, -5),
        Change("gradient", True, 2),
    ),
    (Span("init", 0, 1), Span("forward", 1, 5)),
)


def test_a_phase_has_what_stays_and_what_was_most() -> None:
    """Peaks fall inside the phase, also where they began before it."""
    init, forward = phase_levels(STORY)

    assert (init.resident.total, init.peak.total) == (10, 10)
    assert (forward.resident.total, forward.peak.total) == (12, 15)
    assert forward.peak.activation == 5


def test_the_host_is_counted_apart() -> None:
    """Device and host never mix."""
    accounts = phase_accounts(STORY)

    assert accounts["forward"].resident_bytes == 12
    assert accounts["forward"].host_by_owner.optimizer_state == 7
    assert accounts["init"].host_peak_bytes == 0


def test_the_picture_is_svg_with_phases_and_owners() -> None:
    """It parses, whatever the title holds."""
    root = ET.fromstring(picture(STORY, "<a> & b"))  # noqa: S314 - our own text
    texts = {element.text for element in root.iter() if element.text}

    assert {"forward", "optimizer state"} <= texts
    assert any(text.startswith("<a> & b") for text in texts)
    assert len([e for e in root.iter() if e.tag.endswith("polygon")]) == 5


def test_the_trace_has_slices_and_counters() -> None:
    """Chrome's format: `X` for phases, `C` for bytes by owner."""
    events = json.loads(trace(STORY))["traceEvents"]
    last = [e for e in events if e["ph"] == "C" and e["name"] == "device memory"][-1]

    assert [e["name"] for e in events if e["ph"] == "X"] == ["init", "forward"]
    assert last["args"]["gradient"] == 2
    assert last["args"]["activation"] == 0


def test_the_published_schema_is_the_one_of_the_code(request: pytest.FixtureRequest) -> None:
    """schemas/ is written anew with --update-golden and otherwise equal."""
    schema = RehearsalDocument.model_json_schema(mode="serialization")
    if request.config.getoption("--update-golden"):
        SCHEMA.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")

    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == schema
