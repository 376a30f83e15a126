"""Checkpoints of real tensor and pipeline ranks through DeepSpeed's converter, and spoilt ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
from hostile import before, call, glob, text, torch_file
from odd_archives import records_of
from tiny_job import ds_config, write_job

from dsforge.checkpoints.folder import find_checkpoint
from dsforge.checkpoints.verify.checkpoint import verify
from dsforge.checkpoints.zero.model_parallel_files import check_split
from dsforge.errors import DsforgeError

pytestmark = [pytest.mark.launch, pytest.mark.engine]
INFO = "universal_checkpoint_info"
SPLITS: dict[str, dict[str, Any]] = {
    "tensor": {"tensor_parallel": {"autotp_size": 2}},
    "pipeline": {"pipeline": {"stages": 2}},
    "pipeline-bf16": {"pipeline": {"stages": 2}, "bf16": {"enabled": True}},
}
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def trained(
    tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int], Path]:
    """The run folder of two ranks that share the weights of one replica; made once each."""
    made: dict[tuple[str, int], Path] = {}

    def train(split: str, stage: int) -> Path:
        if (split, stage) not in made:
            config = {**ds_config(stage), "gradient_accumulation_steps": 4, **SPLITS[split]}
            folder = tmp_path_factory.mktemp(split)
            made[split, stage] = write_job(folder, tiny_llama, config, steps=2).parent
            ranks.train(folder, 2)
        return made[split, stage]

    return train


Trained = Callable[[str, int], Path]


def checkpoint(run: Path) -> Path:
    """The checkpoint of a run."""
    return run / "output/checkpoints/global_step2"


@pytest.mark.parametrize(
    "split", ["tensor", "pipeline", pytest.param("pipeline-bf16", marks=pytest.mark.slow)]
)
def test_split_ranks_are_converted(split: str, trained: Trained, tmp_path: Path) -> None:
    """Under our loading, DeepSpeed merges them; the weights are those that the run exported."""
    import torch
    from safetensors.torch import load_file

    from dsforge.train.checkpoints.universal_conversion import convert

    run = trained(split, 1)
    folder = find_checkpoint(checkpoint(run))
    assert verify(checkpoint(run), values=True) == []
    check_split(folder)
    out = convert(folder, tmp_path / "universal")
    found = {
        path.parent.name: torch.load(path, weights_only=True)["param"]
        for path in out.glob("zero/*/fp32.pt")
    }
    exported = load_file(run / "output/model/model.safetensors")

    assert verify(out) == []
    assert len(found) == len(exported)
    for name, weights in found.items():  # a pipeline numbers its pieces
        same = [exported[name]] if name in exported else [*exported.values()]
        near = [w for w in same if w.shape == weights.shape]
        assert any(torch.equal(w, weights.to(w.dtype)) for w in near), name


def test_without_zero_there_is_nothing_to_convert(trained: Trained, tmp_path: Path) -> None:
    """One line says so, and it is not about writing."""
    from dsforge.train.checkpoints.universal_conversion import convert

    with pytest.raises(DsforgeError, match="contains no optimizer states of ZeRO ranks"):
        convert(find_checkpoint(checkpoint(trained("pipeline", 0))), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def no_info(value: dict[str, Any]) -> None:
    """As releases without AutoTP's notes write it."""
    value.pop(INFO, None)


def told(**fields: Any) -> Change:
    """Other things are told of how weights are shared."""

    def change(value: dict[str, Any]) -> None:
        if INFO in value:
            value[INFO] |= fields
            value[INFO].pop("affine_map", None)

    return change


def wide(value: dict[str, Any]) -> None:
    """Whole tensors of 2^44 elements."""
    for each in value.get(INFO, {}).get("affine_map", {}).get("params", {}).values():
        each["logical_shape"] = [2**22, 2**22]


def outside(value: dict[str, Any]) -> None:
    """A parameter whose name leads out of the folder."""
    for key in ("module", "param_shapes"):
        for part in value.get(key) if isinstance(value.get(key), list) else [value.get(key) or {}]:
            if "model.norm.weight" in part:
                part["../../../x"] = part.pop("model.norm.weight")


SLOW = ["(a*)*$", "(.*a*)*(.*b*)*Z", "(a|a)+$", r"(\w+\s?)*$", "a{99999}", ".*.*.*.*x"]
SPOILT: dict[str, tuple[Change, str]] = {
    "no-word-on-layout": (
        no_info,
        "does not describe how its tensor-parallel ranks shard the weights",
    ),
    "empty-word": (
        lambda value: value.update({INFO: {}}),
        "does not describe how its tensor-parallel ranks",
    ),
    "no-dict": (lambda value: value.update({INFO: [1]}), "is not a dict"),
    "shapes": (wide, "a shape of more elements than the files have bytes"),
    "names": (outside, "cannot be the name of a parameter"),
    **{
        f"pattern-{number}": (
            told(parameter_with_row_parallelism_patterns=[pattern]),
            "that could take exponential time to match|of more than 3 repeats",
        )
        for number, pattern in enumerate(SLOW)
    },
    "pattern-nested": (
        told(parameter_with_sub_params=[{"patterns": [SLOW[0]], "shape": [1]}]),
        "that could take exponential time to match",
    ),
    "pattern-key": (
        told(autotp_unsupported_parameter_patterns={SLOW[0]: "x"}),
        "that could take exponential time to match",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_the_converter_would_believe_is_refused(
    name: str, trained: Trained, tmp_path: Path
) -> None:
    """Wrong weights, endless matching, memory without end, paths outside: one line each."""
    import torch

    from dsforge.train.checkpoints.universal_conversion import convert

    change, said = SPOILT[name]
    folder = shutil.copytree(checkpoint(trained("tensor", 1)), tmp_path / "global_step2")
    for file in folder.glob("*.pt"):
        value = torch.load(file, weights_only=False)
        change(value)
        if isinstance(value.get("optimizer_state_dict"), dict):
            change(value["optimizer_state_dict"])
        torch.save(value, file)

    with pytest.raises(DsforgeError) as raised:
        convert(find_checkpoint(folder), tmp_path / "out")
    assert any(part in str(raised.value) for part in said.split("|")) or name == "names"
    assert [path.name for path in tmp_path.iterdir()] == ["global_step2"]


@pytest.mark.parametrize("name", ["mp_rank_01_model_states.pt", "layer_02-model_states.pt"])
def test_code_in_any_file_is_not_run(name: str, trained: Trained, tmp_path: Path) -> None:
    """Whichever file of a split checkpoint it is in."""
    from dsforge.train.checkpoints.universal_conversion import convert

    run = trained("pipeline", 1)
    folder = shutil.copytree(checkpoint(run), tmp_path / "global_step2")
    records = records_of(folder / name)
    touch = call(glob("os", "system"), text(f"touch {tmp_path / 'canary'}"))
    torch_file(folder / name, {**records, "data.pkl": before(touch, records["data.pkl"])})

    with pytest.raises(DsforgeError):
        convert(find_checkpoint(folder), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["global_step2"]


@pytest.mark.parametrize(
    "pattern",
    [
        r"^model\.layers\.0\.mlp\.down_proj\.weight$",
        r"tied_modules.embed.word_embeddings.weight",
        r"\d+.self_attention.dense.weight",
        r".*\.(q|k|v)_proj\.weight$",
        r"(?:[0-9]+)\.mlp\.dense_4h_to_h\.weight",
    ],
)
def test_patterns_of_engines_are_taken(pattern: str) -> None:
    """As AutoTP and Megatron-DeepSpeed write them."""
    from dsforge.checkpoints.zero.model_parallel_files import MAX_REPEATS, PATTERN, REPEAT

    assert PATTERN.fullmatch(pattern)
    assert len(REPEAT.findall(pattern)) <= MAX_REPEATS
