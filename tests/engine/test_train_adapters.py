"""Adapters of peft itself: which matrices carry them, what trains beside, and what is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from test_train_model import BF16, job

from dsforge.errors import SpecError
from dsforge.estimate.params import lora_parameters, parameters, trained_parameters
from dsforge.reading.model import read_model
from dsforge.specs import LoraSpec
from dsforge.train.checkpoints.final_weights import _adapters, _merged
from dsforge.train.model.adapters import with_adapters
from dsforge.train.model.answer_loss import Targets, loss_head
from dsforge.train.model.build import build_model
from dsforge.train.model.source import ModelSource
from dsforge.train.model.trained_state import base_checksum, saves_trained_state_only

pytestmark = [
    pytest.mark.engine,
    # transformers still reads attributes that it has renamed itself.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
BOTH: dict[str, Any] = {"rank": 4, "modules_to_save": ["embedding", "head"]}


def trained(model: Any) -> int:
    """Elements with a gradient."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    "targets",
    [("query", "value"), ("query", "key", "value", "output"), ("gate", "up"), ("down",)],
    ids="-".join,
)
def test_targets_are_counted_as_peft_makes_them(targets: Any, tiny_llama: Path) -> None:
    """Adapters on some matrices have the parameters that the ledger says."""
    lora = {"rank": 4, "targets": list(targets)}
    model = build_model(job(tiny_llama, lora=lora), tiny_llama.parent, BF16)
    spec, _ = read_model(str(tiny_llama))

    assert trained(model) == lora_parameters(spec, LoraSpec(rank=4, targets=targets))


@pytest.mark.parametrize("names", [["embedding"], ["head"], ["embedding", "head"]], ids="-".join)
def test_whole_modules_are_copies_beside_the_frozen_ones(names: Any, tiny_llama: Path) -> None:
    """What trains, and what lies in memory, is what the ledger says."""
    lora = {"rank": 4, "modules_to_save": names}
    model = build_model(job(tiny_llama, lora=lora), tiny_llama.parent, BF16)
    spec, _ = read_model(str(tiny_llama))
    wanted = trained_parameters(spec, LoraSpec(rank=4, modules_to_save=tuple(names)))

    assert trained(model) == wanted
    assert sum(p.numel() for p in model.parameters()) == parameters(spec) + wanted


def test_a_head_that_trains_gives_the_loss_in_chunks(tiny_llama: Path) -> None:
    """The trained copy is asked for the loss, and has its gradient."""
    import torch

    model = build_model(job(tiny_llama, lora=BOTH), tiny_llama.parent, BF16)
    head = loss_head(model)
    assert head is not None
    tokens = torch.arange(1, 9)[None]
    head.targets = Targets(torch.arange(8), tokens[0])
    loss = model(input_ids=tokens).logits
    loss.backward()
    gradients = {n: p.grad is not None for n, p in model.named_parameters() if p.requires_grad}

    assert loss.ndim == 0
    assert all(gradients.values())
    assert sum(".modules_to_save." in name for name in gradients) == 2


def test_what_is_written_holds_the_trained_copies(tiny_llama: Path) -> None:
    """The merged model has them in place of the frozen ones, under the names of the base."""
    import torch

    model = build_model(job(tiny_llama, lora=BOTH), tiny_llama.parent, BF16)
    copy = model.base_model.model.lm_head.modules_to_save["default"].weight
    torch.nn.init.ones_(copy)
    weights = dict(model.named_parameters())
    merged = _merged(model, weights)[1]
    spec, _ = read_model(str(tiny_llama))

    assert sum(tensor.numel() for tensor in merged.values()) == parameters(spec)
    assert torch.equal(merged["lm_head.weight"], torch.ones_like(copy))
    assert "base_model.model.lm_head.weight" in _adapters(weights)


def test_tied_embeddings_are_refused(tiny_llama: Path) -> None:
    """A copy of each would be two matrices where the model has one."""
    model = build_model(job(tiny_llama), tiny_llama.parent, BF16)
    model.lm_head.weight = model.get_input_embeddings().weight

    with pytest.raises(SpecError) as caught:
        with_adapters(model, LoraSpec(modules_to_save=("head",)))
    assert "cannot be combined with tied embeddings" in str(caught.value.problems[0])


def test_a_part_of_a_joint_matrix_is_refused() -> None:
    """GPT-2 has queries, keys and values in one module."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64))

    with pytest.raises(SpecError) as caught:
        with_adapters(model, LoraSpec(targets=("query", "value")))
    assert "contains only a part of `transformer.h.0.attn.c_attn`" in str(caught.value.problems[0])


def with_a_stored_buffer(folder: Path) -> Path:
    """A folder with a tiny GLM-4 MoE, whose routers store a bias that no optimizer touches."""
    import torch
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    torch.manual_seed(5)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    config = Glm4MoeConfig(vocab_size=64, num_hidden_layers=2, **sizes, **heads, **experts)
    model = Glm4MoeForCausalLM(config)
    bias = model.model.layers[1].mlp.gate.e_score_correction_bias
    bias.copy_(torch.arange(4) / 8)
    model.save_pretrained(folder)
    return folder


def test_a_state_dict_of_adapters_keeps_the_buffers_and_loads_strictly(tmp_path: Path) -> None:
    """No frozen weight; what is missing of the rest is still an error."""
    folder = with_a_stored_buffer(tmp_path / "model")
    lora = {"rank": 2, "targets": ["query", "value"]}
    model = build_model(job(folder, lora=lora), tmp_path, BF16)
    state = model.state_dict()
    buffers = [name for name in state if name.endswith("e_score_correction_bias")]
    kept = {name for name, p in model.named_parameters() if p.requires_grad} | {*buffers}

    assert len(buffers) == 1
    assert state[buffers[0]].float().tolist() == [0, 0.125, 0.25, 0.375]
    assert state.keys() == kept
    assert saves_trained_state_only(model)
    model.load_state_dict(state, strict=True)
    for name in (buffers[0], next(name for name in state if ".lora_" in name)):
        with pytest.raises(RuntimeError, match="Missing key"):
            model.load_state_dict({n: t for n, t in state.items() if n != name}, strict=True)


def test_random_weights_are_saved_whole(tiny_llama: Path) -> None:
    """No file has them."""
    drawn = job(tiny_llama, lora={"rank": 2}, random_weights=True)
    model = build_model(drawn, tiny_llama.parent, BF16)

    assert not saves_trained_state_only(model)
    assert {name for name, _ in model.named_parameters()} <= model.state_dict().keys()


def test_a_checksum_follows_the_files_of_the_base(tiny_llama: Path, tmp_path: Path) -> None:
    """A copy has the same one; other numbers, another name or another size have another."""
    copy = Path(shutil.copytree(tiny_llama, tmp_path / "copy"))
    (file,) = copy.glob("*.safetensors")
    found = [base_checksum(ModelSource(str(folder)), None) for folder in (tiny_llama, copy)]
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    found.append(base_checksum(ModelSource(str(copy)), None))
    file.write_bytes(content + b"\0")
    found.append(base_checksum(ModelSource(str(copy)), None))

    assert found[0] == found[1]
    assert len(set(found)) == 3
    assert base_checksum(ModelSource("an/id"), None) == ""
