"""Checkpoints in RAM and tiled MLPs, on transformers' own models and on the whole engine."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from sampled import each
from test_sequence_kinds import answer

from dsforge.errors import DsforgeError
from dsforge.job import TrainJob

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning"),
]

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 64,
    "intermediate_size": 96,
}
KINDS = {"gpt_neox": "GPTNeoX", "llama": "Llama", "mistral": "Mistral", "qwen3": "Qwen3"}


def built(kind: str, **more: Any) -> Any:
    """A model of a kind with random weights that are the same each time."""
    import transformers

    torch.manual_seed(7)
    configuration = getattr(transformers, f"{kind}Config")(**{**SIZES, "head_dim": 8, **more})
    model = getattr(transformers, f"{kind}ForCausalLM")(configuration)
    model.config.use_cache = False
    return model.train()


def gradients(model: Any, tokens: int) -> list[Any]:
    """The loss, and each gradient, of two samples."""
    torch.manual_seed(11)
    samples = torch.randint(0, SIZES["vocab_size"], (2, tokens))
    loss = model(input_ids=samples, labels=samples).loss
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("tokens", each(4, (33, 20, 32, 100)))
def test_gradients_are_those_of_whole_layers(kind: str, tokens: int) -> None:
    """Whatever is checkpointed, kept in RAM or cut in tiles, in either kind of checkpoint."""
    from dsforge.train.model.checkpointing import checkpoint_layers, tile_mlps

    expected = gradients(built(KINDS[kind]), tokens)
    for in_ram, tiled, reentrant in itertools.product((False, True), repeat=3):
        model = built(KINDS[kind])
        checkpoint_layers(model, packed_shards=reentrant, in_ram=in_ram)
        if tiled:
            tile_mlps(model)
        for found, wanted in zip(gradients(model, tokens), expected, strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_only_inputs_of_layers_wait_in_ram(reentrant: bool, monkeypatch: Any) -> None:
    """One hidden state of each layer is moved, and nothing else is."""
    from dsforge.train.model.checkpointing import checkpoint_layers

    moved, to_cpu = [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: moved.append(self.shape) or to_cpu(self))
    model = built("Llama")
    checkpoint_layers(model, packed_shards=reentrant, in_ram=True)
    gradients(model, 40)

    assert moved == [(2, 40, SIZES["hidden_size"])] * SIZES["num_hidden_layers"]


def test_models_without_a_dense_mlp_in_each_layer_are_refused() -> None:
    """OPT has its matrices in the layer, Mixtral has experts."""
    from dsforge.train.model.checkpointing import tile_mlps

    kinds = {"OPT": {"ffn_dim": 96, "word_embed_proj_dim": 32}, "Mixtral": {"num_local_experts": 2}}
    for kind, more in kinds.items():
        with pytest.raises(DsforgeError, match="`tiled_mlp` cannot be applied"):
            tile_mlps(built(kind, **more))


def test_a_job_is_told_what_its_words_need() -> None:
    """Both need checkpoints, and neither goes with compiled layers."""
    from dsforge.train.model.checkpointing import checkpointing_problems

    both = {"model": "m", "deepspeed_config": "c", "data": {"train": "d.jsonl"}}
    both |= {"sequence_length": 8, "offload_activations": True, "tiled_mlp": True}
    fine = TrainJob.model_validate({**both, "gradient_checkpointing": True})
    compiled = fine.model_copy(update={"compile": True})

    assert checkpointing_problems(fine) == []
    assert [p.rule for p in checkpointing_problems(TrainJob.model_validate(both))] == [
        "offload-activations-recompute",
        "tiled-mlp-recompute",
    ]
    assert [p.rule for p in checkpointing_problems(compiled)] == ["compile-checkpoints"]


BOTH = ("--offload-activations", "--tiled-mlp")


@pytest.mark.parametrize("words", [BOTH, pytest.param(BOTH[1:], marks=pytest.mark.slow)])
def test_the_engine_takes_what_is_priced(words: tuple[str, ...]) -> None:
    """Eight tiles of one sample at full size, within 4 %."""
    command = ("--model", "llama-3.1-8b", "--gpu", "h200-141gb", "--gpus-per-node", "8")
    command += ("--nodes", "1", "--seq-len", "32768", "--global-batch", "8", "--zero-stage", "3")
    command += ("--recompute", "full", "--cp", "1", "--loss", "chunked", "--json", *words)
    found = {name: answer(name, command) for name in ("rehearse", "estimate")}
    rehearsed = max(phase["peak_bytes"] for phase in found["rehearse"]["phases"].values())
    likely = found["estimate"]["memory"]["allocated_bytes"]["likely"]

    assert rehearsed == pytest.approx(likely, rel=0.04)
