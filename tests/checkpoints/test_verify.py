"""`dsforge ckpt verify`: the ways in which people lost runs are found, good checkpoints pass."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dsforge.checkpoints.torch_files.archive import Archive
from dsforge.checkpoints.verify.checkpoint import Wanted, verify
from dsforge.checkpoints.weights.weight_files import write_safetensors
from dsforge.checkpoints.zero.stated_values import stage_of
from dsforge.cli.main import main
from dsforge.errors import DsforgeError

SAMPLES = Path(__file__).parent / "samples"
NAMES = sorted(path.name for path in SAMPLES.iterdir())
OPTIMIZER = "global_step3/*zero_pp_rank_1_mp_rank_00_optim_states.pt"


@pytest.fixture
def zero2(tmp_path: Path) -> Path:
    """A copy of a good checkpoint of two ranks under ZeRO-2."""
    return Path(shutil.copytree(SAMPLES / "zero2-bf16", tmp_path / "zero2"))


def rules(path: Path) -> set[str]:
    """The rules that a checkpoint breaks, errors only."""
    return {finding.rule for finding in verify(path) if finding.severity == "error"}


def only(folder: Path, pattern: str) -> Path:
    """The one file that a pattern means."""
    (found,) = folder.glob(pattern)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_good_checkpoints_pass(name: str) -> None:
    """Every ZeRO stage, precision and adapters: nothing is found, not even a warning."""
    assert verify(SAMPLES / name) == []


def cut(path: Path) -> None:
    """Lose the last third of a file."""
    os.truncate(path, path.stat().st_size * 2 // 3)


def flip(path: Path) -> None:
    """Change one bit in the largest tensor of a torch file."""
    with zipfile.ZipFile(path) as archive:
        tensors = (info for info in archive.infolist() if "/data/" in info.filename)
        largest = max(tensors, key=lambda info: info.file_size)
    content = bytearray(path.read_bytes())
    name, extra = struct.unpack_from("<HH", content, largest.header_offset + 26)
    content[largest.header_offset + 30 + name + extra + largest.file_size // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (Path.unlink, "rank-missing"),
        (cut, "file-unreadable"),
        (flip, "bytes-changed"),
        (lambda path: path.write_bytes(b""), "file-unreadable"),
        (lambda path: path.write_bytes(b"\0" * 4096), "file-unreadable"),
    ],
    ids=["removed", "cut", "bit-flipped", "empty", "zeros"],
)
@pytest.mark.parametrize("pattern", [OPTIMIZER, "global_step3/*_model_states.pt"])
def test_a_spoilt_file_is_refused(
    zero2: Path, pattern: str, spoil: Callable[[Path], None], rule: str
) -> None:
    """A file of one rank that is missing, cut, changed or hollow."""
    spoil(only(zero2, pattern))

    expected = "model-missing" if (spoil, "model" in pattern) == (Path.unlink, True) else rule
    assert expected in rules(zero2)


def test_a_missing_rank_is_named(zero2: Path) -> None:
    """The message says which rank's file lacks, of how many."""
    only(zero2, OPTIMIZER).unlink()

    assert [f.message for f in verify(zero2)] == ["no optimizer file of rank 1 (of 2)"]


@pytest.mark.parametrize("name", ["zero3-bf16", "zero0"])
def test_a_swapped_tag_is_refused(name: str, tmp_path: Path) -> None:
    """A folder that was renamed to another step: the files still say theirs."""
    copy = shutil.copytree(SAMPLES / name, tmp_path / name)
    (copy / "global_step3").rename(copy / "global_step9")
    (copy / "latest").write_text("global_step9")

    assert rules(copy) == {"tag-swapped"}


def test_a_latest_that_points_nowhere_is_refused(zero2: Path) -> None:
    """The message names what is there instead."""
    (zero2 / "latest").write_text("global_step4")

    with pytest.raises(DsforgeError, match="names `global_step4`, which does not exist") as raised:
        verify(zero2)
    assert "global_step3" in raised.value.hint


def test_files_of_runs_on_other_ranks_are_refused(zero2: Path) -> None:
    """A third rank's file of an earlier run was left in the folder."""
    file = only(zero2, OPTIMIZER)
    shutil.copy(file, file.with_name(file.name.replace("rank_1", "rank_2")))

    assert "parts-lacking" in rules(zero2)


def test_stages_that_are_mixed_are_refused(zero2: Path) -> None:
    """A rank's file was saved under another ZeRO stage."""
    shutil.copy(only(SAMPLES / "zero3-bf16", OPTIMIZER), only(zero2, OPTIMIZER))

    assert "stages-mixed" in rules(zero2)


def thirteen_billion(folder: Path, suffix: str) -> Path:
    """What saving a ZeRO-3 model of 13 B without gathering leaves: 363 empty tensors."""
    folder.mkdir()
    layers = [f"model.layers.{i}.{part}.weight" for i in range(40) for part in "abcdefghi"]
    names = [*layers, "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    if suffix == "safetensors":
        empty = dict.fromkeys(names, ("bfloat16", (0,)))
        write_safetensors(folder / "model.safetensors", empty, [])
    else:
        torch = pytest.importorskip("torch")
        torch.save({name: torch.empty(0) for name in names}, folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize("suffix", ["safetensors", pytest.param("bin", marks=pytest.mark.engine)])
def test_the_classic_empty_model_is_refused(suffix: str, tmp_path: Path) -> None:
    """The 900 kB "13 B" checkpoint: all tensors empty."""
    (finding,) = verify(thirteen_billion(tmp_path / "model", suffix))

    assert finding.rule == "tensor-empty"
    assert finding.message.startswith("363 of 363 tensors are empty: model.")


def plain(folder: Path) -> Path:
    """A folder of weights in two shards."""
    import numpy as np

    folder.mkdir()
    where = {}
    for name in ("a", "b"):
        file = f"model-{name}.safetensors"
        numbers = np.ones(12, np.float32)
        write_safetensors(folder / file, {name: ("float32", (3, 4))}, [iter([numbers])])
        where[name] = file
    index = {"metadata": {"total_size": 96}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_good_weights_pass(tmp_path: Path) -> None:
    """Two shards and their index, alone and against the right number of parameters."""
    assert verify(plain(tmp_path / "model"), wanted=Wanted(24)) == []


def test_a_missing_shard_and_missing_parameters_are_refused(tmp_path: Path) -> None:
    """A shard that the index names is not there."""
    folder = plain(tmp_path / "model")
    (folder / "model-b.safetensors").unlink()

    assert rules(folder) == {"shard-missing"}
    assert [
        f.message for f in verify(tmp_path / "model/model-a.safetensors", wanted=Wanted(24))
    ] == ["12 parameters, the model has 24 (50.00% of them)"]


def test_a_cut_safetensors_file_is_refused(tmp_path: Path) -> None:
    """A header that speaks of more bytes than there are."""
    folder = plain(tmp_path / "model")
    cut(folder / "model-a.safetensors")

    assert "file-unreadable" in rules(folder)


@pytest.mark.engine
def test_names_and_shapes_are_compared_with_a_model(tmp_path: Path) -> None:
    """The model that was trained passes; one with a wider embedding and one more layer does not."""
    pytest.importorskip("torch")
    from transformers import LlamaConfig

    from dsforge.train.model.source import model_shapes

    sizes = {"hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 1, "tie_word_embeddings": True}
    config = LlamaConfig(vocab_size=37, num_hidden_layers=1, **sizes)
    config.save_pretrained(tmp_path / "same")
    LlamaConfig(vocab_size=40, num_hidden_layers=2, **sizes).save_pretrained(tmp_path / "other")
    same, other = (Wanted(shapes=model_shapes(str(tmp_path / n))) for n in ("same", "other"))

    for name in ("zero0", "zero3-bf16", "zero2-lora"):
        assert verify(SAMPLES / name / "global_step3", wanted=same) == []
    found = {f.rule: f.message for f in verify(SAMPLES / "zero3-bf16/global_step3", wanted=other)}
    assert found["shape-other"] == "model.embed_tokens.weight is (37, 12), not (40, 12)"
    assert found["tensor-missing"].startswith("the checkpoint lacks model.layers.1.")


class Runs:
    """An object whose pickle calls a program."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch /tmp/dsforge-was-run",)


@pytest.mark.engine
def test_code_in_a_checkpoint_is_found_and_not_run(tmp_path: Path) -> None:
    """A pickle that would call a program is refused by name; nothing runs."""
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.ones(2), "more": Runs()}, tmp_path / "weights.pt")
    found = verify(tmp_path / "weights.pt")

    assert [(f.rule, f.message) for f in found] == [("runs-code", "would call posix.system")]
    assert not Path("/tmp/dsforge-was-run").exists()


class Member:
    """A member of an enum as Python 3.11.2 pickles it; or of something worse."""

    def __init__(self, of: object, name: str) -> None:
        self.of, self.name = of, name

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, str]]:
        return getattr, (self.of, self.name)


@pytest.mark.engine
@pytest.mark.parametrize("stage", ["optimizer_states", "gradients", "weights"])
def test_members_of_the_stage_enum_are_known_by_name(tmp_path: Path, stage: str) -> None:
    """A checkpoint that Python 3.11.2 wrote, as Debian 12 has it, is as good as any other."""
    torch = pytest.importorskip("torch")
    enum = pytest.importorskip("deepspeed.runtime.zero.config").ZeroStageEnum
    states = {"zero_stage": Member(enum, stage)}
    torch.save({"optimizer_state_dict": states, "weight": torch.ones(2)}, tmp_path / "states.pt")
    value = Archive(tmp_path / "states.pt").value

    assert verify(tmp_path / "states.pt") == []
    assert stage_of(value["optimizer_state_dict"]) == enum[stage].value


@pytest.mark.engine
def test_other_attributes_in_a_checkpoint_are_refused(tmp_path: Path) -> None:
    """Methods of the enum, and attributes of what was built, are calls that no checkpoint needs."""
    torch = pytest.importorskip("torch")
    enum = pytest.importorskip("deepspeed.runtime.zero.config").ZeroStageEnum
    planted = {"method": Member(enum, "__subclasses__"), "built": Member(torch.ones(2), "tolist")}
    for name, value in planted.items():
        torch.save({"weight": torch.ones(2), "more": value}, tmp_path / f"{name}.pt")
        found = verify(tmp_path / f"{name}.pt")

        assert [(f.rule, f.message) for f in found] == [
            ("runs-code", "would call __builtin__.getattr")
        ]


def test_the_command_line_says_it_all(zero2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Findings on stdout, as JSON too; exit code 3 where there are errors, none otherwise."""
    main_ends(["ckpt", "verify", str(zero2)], code=0)
    only(zero2, OPTIMIZER).unlink()
    main_ends(["ckpt", "verify", str(zero2)], code=3)
    shown = capsys.readouterr()
    main_ends(["ckpt", "verify", str(zero2), "--json"], code=3)
    document = json.loads(capsys.readouterr().out)

    assert "no optimizer file of rank 1 (of 2) [rank-missing]" in shown.out
    assert f"{zero2}: good" in shown.err
    assert document["usable"] is False
    assert [finding["rule"] for finding in document["findings"]] == ["rank-missing"]


def main_ends(arguments: list[str], *, code: int) -> None:
    """Run the command line and compare its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert (ended.value.code or 0) == code
