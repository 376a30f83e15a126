"""QLoRA with bitsandbytes itself: what is packed, what a checkpoint holds, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_train_model import BF16, FP32, job

from dsforge.errors import SpecError
from dsforge.estimate.quantised import NF4_BYTES, quantised_elements
from dsforge.reading.model import read_model
from dsforge.train.model import qlora as quantised
from dsforge.train.model.build import build_model, check_source
from dsforge.train.parallel.engine_config import EngineConfig

pytestmark = [
    pytest.mark.engine,
    # torch and transformers still call functions that they themselves have renamed.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
ZERO3 = EngineConfig({}, 3, "bf16", 1, 1, 1e-3)
BY_4_BITS = {"rank": 4, "bits": 4}


@pytest.fixture
def model(tiny_llama: Path) -> Any:
    """The tiny Llama with adapters on matrices in 4 bits."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: no QLoRA")
    return build_model(job(tiny_llama, lora=BY_4_BITS), tiny_llama.parent, BF16)


def test_the_matrices_lie_in_the_bytes_that_the_ledger_says(model: Any, tiny_llama: Path) -> None:
    """Half a byte for each element, scales and their scales; beside them a code of 256 numbers."""
    packed = [p for p in model.parameters() if type(p).__name__ == "Params4bit"]
    states = [p.quant_state for p in packed]
    found = sum(p.numel() * p.element_size() for p in packed)
    found += sum(s.absmax.numel() + 4 * s.state2.absmax.numel() for s in states)
    spec, _ = read_model(str(tiny_llama))
    rounded_up = 4 * len(packed)  # scales are too few here to fill their blocks

    assert len(packed) == 14
    assert 0 <= found - NF4_BYTES * quantised_elements(spec) <= rounded_up


def test_all_else_stays_in_the_training_precision(model: Any) -> None:
    """Embedding, norms and output head in bf16, frozen; only adapters train."""
    import torch

    kinds = {p.dtype for n, p in model.named_parameters() if not n.endswith("base_layer.weight")}
    frozen = {p.dtype for n, p in model.named_parameters() if ".lora_" not in n}

    assert kinds <= {torch.bfloat16, torch.float32}
    assert frozen == {torch.uint8, torch.bfloat16}
    assert all(p.requires_grad == (".lora_" in name) for name, p in model.named_parameters())


def test_the_gradient_reaches_every_adapter(model: Any) -> None:
    """Through all matrices in 4 bits, down to the first layer."""
    import torch

    tokens = torch.arange(2, 40).reshape(2, 19)
    model(tokens, labels=tokens).loss.backward()
    ups = [p for name, p in model.named_parameters() if ".lora_B." in name]

    assert len(ups) == 14
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in ups)


def test_the_state_dict_holds_the_adapters_and_loads_strictly(model: Any) -> None:
    """No scales, no frozen weights; a missing adapter is still an error."""
    state = model.state_dict()
    model.load_state_dict(state, strict=True)

    assert state
    assert all(".lora_" in name for name in state)
    state.popitem()
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(state, strict=True)


@pytest.mark.parametrize(
    ("config", "lora", "more", "rule"),
    [
        (ZERO3, {"bits": 8}, {}, "qlora-zero3"),
        (FP32, {"bits": 4}, {"random_weights": True}, "qlora-weights"),
        (FP32, {"base": "gptq"}, {}, "qlora-format"),
        (BF16, {"bits": 4, "quant_storage": "fp16"}, {}, "quant-storage"),
        (BF16, {"bits": 4, "upcast": True}, {}, "qlora-upcast"),
    ],
    ids=["int8 under ZeRO-3", "random weights", "GPTQ", "storage that is cast", "upcast"],
)
def test_what_qlora_cannot_do_is_refused_at_start(
    config: EngineConfig, lora: dict[str, Any], more: dict[str, Any], rule: str, tiny_llama: Path
) -> None:
    """With the planner's rules, before any process group exists."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: no QLoRA")
    with pytest.raises(SpecError) as refused:
        check_source(job(tiny_llama, lora=lora, **more), tiny_llama.parent, config)

    assert [problem.rule for problem in refused.value.problems] == [rule]


def test_a_missing_library_is_named_with_its_extra(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra `train` does not bring it."""
    monkeypatch.setattr(quantised, "PACKAGES", ("bitsandbytes_that_nobody_has",))
    with pytest.raises(SpecError) as refused:
        check_source(job(tiny_llama, lora=BY_4_BITS), tiny_llama.parent, FP32)
    (problem,) = refused.value.problems

    assert "needs bitsandbytes_that_nobody_has, not installed here" in problem.message
    assert "[qlora]" in problem.hint
