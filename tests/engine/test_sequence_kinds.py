"""Which models give their loss in chunks, and which share their sequences: asked of torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from planning import strategy

from dsforge import catalog
from dsforge.constraints.trainer import WHOLE_LOGITS
from dsforge.constraints.ulysses import SEQUENCE_KINDS
from dsforge.estimate.ulysses import saved_width
from dsforge.huggingface.architecture import ARCHITECTURES

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).with_name("sequence_ranks.py")
HEADS, SIZE = 4, 16  # of the script's models


def test_the_kinds_with_whole_logits_are_those_whose_forward_changes_them() -> None:
    """Every architecture that dsforge and transformers both know."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    from dsforge.train.model.answer_loss import logits_are_last

    known = [kind for kind in ARCHITECTURES if kind in CLASSES]
    whole = {
        kind for kind in known if not logits_are_last(getattr(transformers, str(CLASSES[kind])))
    }

    assert len(known) > 50
    assert whole == set(WHOLE_LOGITS) & set(known)


@pytest.mark.parametrize(
    "kinds",
    [("llama", "mixtral"), pytest.param(SEQUENCE_KINDS, marks=pytest.mark.slow)],
    ids=["two", "all"],
)
def test_two_ranks_of_a_sequence_say_what_one_does(kinds: tuple[str, ...]) -> None:
    """Logits are those of the whole sample; a layer keeps what is priced."""
    command = (sys.executable, str(SCRIPT), *kinds)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)

    assert set(found) == set(kinds)
    assert {kind: one for kind, one in found.items() if one["difference"] > 1e-5} == {}
    assert found["llama"]["saved"] == [priced(2), priced(1)]


def priced(kv_heads: int) -> int:
    """Elements per token that the estimate counts for so many key/value heads."""
    sizes = {"attention_heads": HEADS, "kv_heads": kv_heads, "head_size": SIZE}
    model = catalog.model("llama-2-7b").model_copy(update=sizes)
    return saved_width(model, strategy(1, context_parallel_size=2))


def test_a_shared_sequence_takes_what_is_priced() -> None:
    """The real engine, Ulysses and the chunked loss against the estimate, within 3 %."""
    command = ("--model", "llama-3.2-1b", "--gpu", "a100-80gb", "--gpus-per-node", "8")
    command += ("--nodes", "1", "--seq-len", "32768", "--cp", "4", "--json")
    found = {name: answer(name, command) for name in ("rehearse", "estimate")}
    rehearsed = max(phase["peak_bytes"] for phase in found["rehearse"]["phases"].values())
    likely = found["estimate"]["memory"]["allocated_bytes"]["likely"]

    assert found["rehearse"]["ds_config"]["sequence_parallel_size"] == 4
    assert rehearsed == pytest.approx(likely, rel=0.03)


def answer(name: str, options: tuple[str, ...]) -> Any:
    """The JSON document of a command."""
    more = ("--for", "deepspeed", "--software", "dsforge") if name == "estimate" else ()
    command = (sys.executable, "-m", "dsforge", name, *options, *more)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)
