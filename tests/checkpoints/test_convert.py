"""Universal checkpoints: what is written here is what DeepSpeed's own converter writes."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from dsforge.checkpoints.folder import find_checkpoint
from dsforge.checkpoints.torch_files.verified_reads import UnusableError
from dsforge.checkpoints.verify.checkpoint import verify

pytestmark = pytest.mark.engine
SAMPLES = Path(__file__).parent / "samples"
torch = pytest.importorskip("torch")
NAMES = ["zero0", "zero0-bf16", "zero1-bf16", "zero2-bf16", "zero2-lora", "zero3-bf16"]


def stored(path: Path) -> Any:
    """The tensor in a file of a universal checkpoint, flat."""
    value = torch.load(path, weights_only=False)
    return (value["param"] if isinstance(value, dict) else value).detach().reshape(-1)


@pytest.mark.parametrize("name", NAMES)
def test_a_universal_checkpoint_is_good(name: str, tmp_path: Path) -> None:
    """Every ZeRO stage can be converted, stage 0 too, and `verify` finds nothing."""
    from dsforge.train.checkpoints.universal_conversion import convert

    written = convert(find_checkpoint(SAMPLES / name), tmp_path / "universal")

    assert verify(written) == []
    assert (tmp_path / "latest_universal").read_text() == "universal"


@pytest.mark.parametrize("name", ["zero1-bf16", "zero2-bf16", "zero3-bf16"])
def test_deepspeeds_own_converter_writes_the_same(name: str, tmp_path: Path) -> None:
    """Each state of each parameter, bit for bit."""
    from deepspeed.checkpoint.ds_to_universal import main

    from dsforge.train.checkpoints.universal_conversion import convert

    folder = find_checkpoint(SAMPLES / name)
    own = convert(folder, tmp_path / "own") / "zero"
    names = {"input_folder": str(folder.path), "output_folder": str(tmp_path / "theirs")}
    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False}
    main(Namespace(**names, **options, strict=False, inject_missing_state=True))
    theirs = tmp_path / "theirs" / "zero"
    files = {path.relative_to(own) for path in own.glob("*/*.pt") if path.stem != "step"}
    others = {path.relative_to(theirs) for path in theirs.glob("*/*.pt") if path.stem != "step"}

    assert others - files <= {Path("lm_head.weight/fp32.pt")}  # tied to the embedding
    assert all(torch.equal(stored(own / file), stored(theirs / file)) for file in files)


def test_a_universal_checkpoint_without_weights_is_refused(tmp_path: Path) -> None:
    """A parameter whose master weights were lost, and one state that is empty."""
    from dsforge.train.checkpoints.universal_conversion import convert

    written = convert(find_checkpoint(SAMPLES / "zero3-bf16"), tmp_path / "universal")
    (written / "zero/model.norm.weight/fp32.pt").unlink()
    torch.save({"param": torch.empty(0)}, written / "zero/lm_head.exp_avg.pt")
    state = written / "zero/model.embed_tokens.weight/exp_avg.pt"
    torch.save({"param": torch.empty(0)}, state)

    found = {finding.rule for finding in verify(written)}
    assert found == {"weights-missing", "states-missing", "tensor-empty"}


def test_code_is_not_unpickled(tmp_path: Path) -> None:
    """A file that names more than known types never gets to a converter that would run it."""
    from dsforge.train.checkpoints.universal_conversion import convert

    folder = tmp_path / "global_step1"
    folder.mkdir()
    torch.save({"module": {}, "more": Path}, folder / "mp_rank_00_model_states.pt")

    with pytest.raises(UnusableError) as raised:
        convert(find_checkpoint(tmp_path), tmp_path / "out")
    assert "would import pathlib" in str(raised.value.problems)
    assert not (tmp_path / "out").exists()
