"""Models with recurrent layers: what they cost follows from their kinds of layers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import cluster, strategy, workload

from dsforge import catalog
from dsforge.errors import SpecError
from dsforge.estimate.activations import layer_token_bytes
from dsforge.estimate.flops import forward_flops, score_flops
from dsforge.estimate.memory import estimate_memory
from dsforge.estimate.params import parameter_counts
from dsforge.estimate.recurrence import state_flops
from dsforge.estimate.time import estimate_time
from dsforge.huggingface import model_from_config
from dsforge.specs import Mixer, ModelSpec, RecurrentSpec

LLAMA = catalog.model("llama-2-7b")
HYBRID = model_from_config({"model_type": "qwen3_5_text"}, "qwen3.5-9b")
MAMBA = model_from_config({"model_type": "mamba2"}, "mamba2-7b")
SIZES = st.sampled_from([1, 2, 4, 8])


def mamba2(heads: int, size: int, groups: int, state: int, chunk: int) -> ModelSpec:
    """Mamba-2 of some sizes."""
    spec = RecurrentSpec(
        kind="mamba2",
        heads=heads * groups,
        head_size=size,
        groups=groups,
        state_size=state,
        conv_kernel=4,
        chunk_size=chunk,
    )
    return MAMBA.model_copy(update={"recurrent": spec})


def test_naming_every_layer_changes_nothing() -> None:
    """A Llama whose layers are listed as attention with a dense MLP costs what it did."""
    lists = {"layer_mixers": ("attention",) * 32, "layer_mlps": ("dense",) * 32}
    listed = LLAMA.model_copy(update=lists)
    for how in (strategy(zero_stage=3), strategy(zero_stage=1, recompute="full")):
        one, other = (
            (
                estimate_memory(model, cluster(), workload(), how),
                estimate_time(model, cluster(), workload(), how).step_s.likely,
            )
            for model in (LLAMA, listed)
        )
        assert one[0] == other[0]
        assert one[1] == pytest.approx(other[1])


def test_a_pure_state_space_model_has_no_scores() -> None:
    """FLOPs and saved bytes of a token are the same in short and in long samples."""
    assert score_flops(MAMBA, 65536) == 0
    assert forward_flops(MAMBA, 2048) == forward_flops(MAMBA, 65536)
    short, long = (
        layer_token_bytes(MAMBA, workload(length), strategy(zero_stage=3))
        for length in (2048, 65536)
    )
    assert short == long


def test_scores_of_a_hybrid_are_those_of_its_attention_layers() -> None:
    """A quarter of the layers attends: a quarter of the growth with the sequence."""
    alone = HYBRID.model_copy(update={"layer_mixers": (), "recurrent": None})
    assert HYBRID.attentions == 0.25
    grown = [forward_flops(model, 32768) - forward_flops(model, 2048) for model in (HYBRID, alone)]
    assert grown[0] == pytest.approx(grown[1] / 4)


@given(heads=SIZES, size=SIZES, groups=SIZES, state=SIZES, chunk=SIZES)
def test_flops_of_a_chunk_are_those_of_its_products(
    heads: int, size: int, groups: int, state: int, chunk: int
) -> None:
    """Mamba-2's four products, each as rows x columns x sum (arXiv:2405.21060, section 6)."""
    all_heads = heads * groups
    products = [
        *[(chunk, chunk, state)] * groups,  # C B^T
        *[(chunk, size, chunk)] * all_heads,  # with the values
        *[(state, size, chunk)] * all_heads,  # the state of the chunk
        *[(chunk, size, state)] * all_heads,  # the state that came before
    ]
    counted = sum(2 * rows * columns * summed for rows, columns, summed in products)

    assert state_flops(mamba2(heads, size, groups, state, chunk)) * chunk == pytest.approx(counted)


def test_intervals_are_wider_than_those_of_attention() -> None:
    """Nothing of the kind was measured."""
    how = strategy(zero_stage=3)
    widths = []
    for model in (LLAMA, HYBRID, MAMBA):
        step = estimate_time(model, cluster(), workload(), how).step_s
        held = estimate_memory(model, cluster(), workload(), how).allocated_bytes
        widths.append((step.high / step.likely, held.high / held.likely))

    assert widths[0][0] < widths[1][0] < widths[2][0]
    assert widths[0][1] < widths[2][1]


@given(mixers=st.lists(st.sampled_from(["attention", "recurrent", "both"]), min_size=1))
def test_parameters_are_the_sum_of_the_kinds(mixers: list[Mixer]) -> None:
    """Any order of layers: attention and recurrence are counted where they are."""
    layers = (*mixers, "recurrent")
    update = {"layers": len(layers), "layer_mixers": layers}
    counts = parameter_counts(HYBRID.model_copy(update=update))
    each = {
        "attention": counts.layers[0]._replace(recurrent=0).attention,
        "recurrent": counts.layers[-1].recurrent,
    }
    attends = sum(kind != "recurrent" for kind in layers)
    recurs = sum(kind != "attention" for kind in layers)
    one = next((layer.attention for layer in counts.layers if layer.attention), each["attention"])

    assert sum(layer.attention for layer in counts.layers) == attends * one
    assert sum(layer.recurrent for layer in counts.layers) == recurs * each["recurrent"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer_types": ["linear_attention", "mixture"]}, "layers of type mixture"),
        ({"layer_types": ["linear_attention"]}, "must name each of 2 layers (got 1)"),
        ({"layer_types": "linear"}, "layer_types must be a list"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M" * 10_001}, "of 10,000 layers"),
        ({"model_type": "jamba", "attn_layer_offset": -1}, "attn_layer_offset (=-1) must be below"),
        ({"linear_num_key_heads": 5, "linear_num_value_heads": 32}, "5 groups must divide"),
        ({"linear_num_value_heads": -1}, "linear_num_value_heads (=-1) must be a whole number"),
        ({"kda_rank": 64}, "kda_rank (=64) is not modelled"),
    ],
)
def test_what_layers_cannot_be_is_refused(change: dict[str, object], words: str) -> None:
    """By key and value, without a traceback."""
    config = {"model_type": "qwen3_5_text", "num_hidden_layers": 2, **change}
    with pytest.raises(SpecError) as error:
        model_from_config(config, "x")
    assert words in " ".join(problem.message for problem in error.value.problems)


def test_lists_of_a_spec_name_every_layer() -> None:
    """A spec by hand is checked like a config."""
    fields = HYBRID.model_dump()
    with pytest.raises(ValueError, match="must name each of the 32 layers"):
        ModelSpec(**{**fields, "layer_mixers": ("attention",)})
    with pytest.raises(ValueError, match="require each other"):
        ModelSpec(**{**fields, "recurrent": None})
