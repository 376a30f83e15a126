"""Whole weights out of the parts of ranks: as the engine held them, as transformers loads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsforge.checkpoints.export import export
from dsforge.checkpoints.folder import find_checkpoint
from dsforge.checkpoints.inspect import inspect
from dsforge.checkpoints.torch_files.verified_reads import UnusableError
from dsforge.checkpoints.verify.checkpoint import Wanted, verify
from dsforge.checkpoints.weights.bit_types import as_type
from dsforge.checkpoints.zero.parameters import Saved, read_saved
from dsforge.errors import DsforgeError

SAMPLES = Path(__file__).parent / "samples"
HELD = sorted(path.parent.name for path in SAMPLES.glob("*/held.safetensors"))


def saved(name: str) -> Saved:
    """The sample of a name."""
    return read_saved(find_checkpoint(SAMPLES / name))


def numbers(atoms: Any, name: str, state: str) -> Any:
    """A state of a parameter as numpy holds it."""
    atom = atoms[name]
    return np.concatenate(list(atom.read(state, 0, atom.elements))).reshape(atom.shape)


@pytest.mark.engine
@pytest.mark.parametrize("name", HELD)
def test_every_state_is_what_the_engine_held(name: str) -> None:
    """Weights and both moments, put together from two ranks, bit for bit."""
    safetensors = pytest.importorskip("safetensors.numpy")
    held = safetensors.load_file(SAMPLES / name / "held.safetensors")
    found = saved(name)

    assert {f"{s}/{n}" for n, a in found.trained.items() for s in a.states} == set(held)
    for key, expected in held.items():
        state, _, parameter = key.partition("/")
        assert np.array_equal(numbers(found.trained, parameter, state), expected), key


@pytest.mark.parametrize("name", [path.name for path in sorted(SAMPLES.iterdir())])
def test_a_checkpoint_describes_itself(name: str) -> None:
    """Stage, ranks, step and the number of parameters of the tiny Llama."""
    found = inspect(SAMPLES / name)

    assert (found.zero_stage, found.world_size, found.step) == (int(name[4]), 2, 3)
    assert found.trained_in == (
        "float32" if name in ("zero0", "zero1", "zero3-lora") else "bfloat16"
    )
    assert found.parameters == (2172 if name.endswith("lora") else 1632)


def test_slices_meet_in_the_middle() -> None:
    """Elements from the middle of a parameter that two ranks share are those of the whole."""
    found = saved("zero2-bf16")
    shared = {n: a for n, a in found.trained.items() if len(a.states["fp32"]) == 2}
    ((name, atom),) = shared.items()
    whole = numbers(found.trained, name, "exp_avg").ravel()
    cut = atom.states["exp_avg"][0].elements

    part = np.concatenate(list(atom.read("exp_avg", cut - 2, cut + 3)))
    assert np.array_equal(part, whole[cut - 2 : cut + 3])


@pytest.mark.engine
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_numbers_are_rounded_as_torch_rounds(dtype: str) -> None:
    """All exponents, infinities and NaN: the bits are those of torch."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    wide = torch.randn(20_000) * torch.logspace(-44, 38, 20_000)
    wide[:3] = torch.tensor([float("inf"), -float("inf"), float("nan")])
    bits = torch.from_numpy(as_type(wide.numpy(), "float32", dtype).view(np.int16))

    expected = wide.to(getattr(torch, dtype))
    assert torch.equal(bits[:2], expected.view(torch.int16)[:2])
    assert torch.equal(bits[3:], expected.view(torch.int16)[3:])
    assert bool(bits.view(getattr(torch, dtype))[2].isnan())


def configured(folder: Path) -> Path:
    """The configuration of the tiny Llama that the samples were made from."""
    import sys

    pytest.importorskip("transformers")
    sys.path.insert(0, str(Path(__file__).parent))
    import torch
    from make_samples import tiny_model

    tiny_model(torch.float32, lora=False).save_pretrained(folder)
    return folder


@pytest.mark.engine
@pytest.mark.parametrize("name", ["zero0", "zero1-bf16", "zero2-bf16", "zero3-bf16"])
def test_transformers_loads_it_with_equal_logits(name: str, tmp_path: Path) -> None:
    """The exported model answers as one that is given the engine's own weights, in its type."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model = configured(tmp_path / "model")
    written = export(find_checkpoint(SAMPLES / name), tmp_path / "out", model=model)
    found = AutoModelForCausalLM.from_pretrained(written.folder)
    reference = AutoModelForCausalLM.from_pretrained(model).to(found.dtype)
    held = load_file(SAMPLES / name / "held.safetensors")
    weights = {key[5:]: value for key, value in held.items() if key.startswith("fp32/")}
    reference.load_state_dict(weights, strict=False)
    tokens = torch.arange(30).reshape(2, 15)

    assert str(found.dtype) == f"torch.{written.dtype}"
    assert torch.equal(found(tokens).logits, reference(tokens).logits)
    assert verify(written.folder) == []


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # in peft
@pytest.mark.parametrize("name", ["zero2-lora", "zero3-lora"])
def test_peft_loads_adapters_with_equal_weights(name: str, tmp_path: Path) -> None:
    """Adapters go out alone, under peft's names; without their scale they are refused."""
    torch = pytest.importorskip("torch")
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model = configured(tmp_path / "model")
    folder = find_checkpoint(SAMPLES / name)
    with pytest.raises(DsforgeError, match="their scale is unknown"):
        export(folder, tmp_path / "none", model=model)
    export(folder, tmp_path / "out", model=model, dtype="float32", lora_alpha=6)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    own = dict(PeftModel.from_pretrained(base, tmp_path / "out").named_parameters())
    held = load_file(SAMPLES / name / "held.safetensors")
    weights = {key[5:]: value for key, value in held.items() if key.startswith("fp32/")}

    assert weights
    assert all(torch.equal(own[key], value) for key, value in weights.items())


def test_several_files_have_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the weights are larger than one file may be, the index names each tensor's file."""
    monkeypatch.setattr("dsforge.checkpoints.export.SHARD_BYTES", 2000)
    written = export(find_checkpoint(SAMPLES / "zero3-bf16"), tmp_path / "out")

    index = json.loads((written.folder / "model.safetensors.index.json").read_text())
    assert len(written.files) > 1
    assert set(index["weight_map"].values()) == set(written.files)
    assert verify(written.folder, wanted=Wanted(1632)) == []


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    """Nothing is overwritten, and nothing stays behind of a failure."""
    with pytest.raises(DsforgeError, match="exists"):
        export(find_checkpoint(SAMPLES / "zero0"), tmp_path)

    assert [*tmp_path.iterdir()] == []


def test_a_rank_that_is_missing_is_not_made_up(tmp_path: Path) -> None:
    """Half of the weights are no model."""
    import shutil

    copy = shutil.copytree(SAMPLES / "zero3-bf16", tmp_path / "copy")
    next((copy / "global_step3").glob("*rank_1_*optim*")).unlink()

    with pytest.raises(UnusableError) as raised:
        export(find_checkpoint(copy), tmp_path / "out")
    assert {problem.rule for problem in raised.value.problems} == {"rank-missing"}
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
