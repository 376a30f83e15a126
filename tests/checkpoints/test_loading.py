"""Files of checkpoints are loaded in one place, with torch's own list of good names."""

from __future__ import annotations

import ast
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hostile import call, glob, load_file, text, torch_file
from odd_archives import odd_archives, records_of

from dsforge.checkpoints.torch_files.archive import Archive
from dsforge.errors import DsforgeError, UntrustedError

pytestmark = pytest.mark.engine
torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")
SAMPLES = Path(__file__).parent / "samples"
FILES = sorted(SAMPLES.rglob("*.pt"))
PACKAGE = Path(__file__).parents[2] / "dsforge"
ENUM = "deepspeed.runtime.zero.config"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SAMPLES)))
def test_every_sample_is_loaded(path: Path) -> None:
    """Nothing that DeepSpeed writes lacks in the list, with and without a map of the file."""
    assert load_file(path).keys() == load_file(path, mmap=True).keys()


def with_more(folder: Path, program: bytes) -> Path:
    """A sample's file with one more value."""
    records = records_of(SAMPLES / "zero1/global_step3/mp_rank_00_model_states.pt")
    good = records["data.pkl"]
    records["data.pkl"] = good[:-1] + text("more") + program + b"s."
    return torch_file(folder / "more.pt", records)


@pytest.mark.parametrize("module", ["builtins", "__builtin__"])
def test_members_of_the_enum_are_loaded(module: str, tmp_path: Path) -> None:
    """As Python 3.11.2 writes them, and as any other writes them."""
    from deepspeed.runtime.zero.config import ZeroStageEnum

    member = call(glob(module, "getattr"), glob(ENUM, "ZeroStageEnum"), text("gradients"))
    plain = call(glob(ENUM, "ZeroStageEnum"), b"K\2")

    assert load_file(with_more(tmp_path, member))["more"] is ZeroStageEnum.gradients
    assert load_file(with_more(tmp_path, plain))["more"] is ZeroStageEnum.gradients


@pytest.mark.parametrize(
    ("of", "name"),
    [
        ((ENUM, "ZeroStageEnum"), "__class__"),
        ((ENUM, "ZeroStageEnum"), "mro"),
        (("os", "path"), "os"),
    ],
)
def test_other_attributes_are_not_loaded(of: tuple[str, str], name: str, tmp_path: Path) -> None:
    """Neither reader gives an attribute that is no member."""
    from deepspeed.runtime.zero.config import ZeroStageEnum

    from dsforge.train.checkpoints import loading

    path = with_more(tmp_path, call(glob("builtins", "getattr"), glob(*of), text(name)))
    with pytest.raises(UntrustedError, match=r"would call builtins\.getattr"):
        load_file(path)
    given = ZeroStageEnum if of[0] == ENUM else of
    with pytest.raises(TypeError):
        loading._member(given, name)


def test_names_that_are_only_held_are_not_loaded(tmp_path: Path) -> None:
    """What `verify` warns of does not get to torch."""
    with pytest.raises(DsforgeError, match=r"would import pathlib\.Path"):
        load_file(with_more(tmp_path, glob("pathlib", "Path")))


def test_torch_alone_would_refuse_what_readers_see_differently(tmp_path: Path) -> None:
    """The second wall: torch's own list, should the first ever have a hole."""
    from dsforge.train.checkpoints.loading import _known_classes

    canary = tmp_path / "canary"
    model = SAMPLES / "zero1/global_step3/mp_rank_00_model_states.pt"
    for path in odd_archives(tmp_path, model, canary):
        known = torch.serialization.safe_globals([*_known_classes()])
        with known, suppress(Exception):  # whatever torch raises
            torch.load(path, weights_only=True)
        assert not canary.exists()


@pytest.mark.parametrize("name", ["zero0-bf16", "zero1", "zero2-bf16", "zero3-bf16"])
def test_deepspeeds_own_loading_is_strict(name: str, tmp_path: Path) -> None:
    """Its converter reads healthy files within, and none that calls; then torch is as before."""
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    from dsforge.train.checkpoints.loading import strict_loading

    before = torch.load
    engine = TorchCheckpointEngine()
    bad = with_more(tmp_path, call(glob("os", "system"), text(f"touch {tmp_path / 'canary'}")))
    with strict_loading():
        for file in (SAMPLES / name).rglob("*.pt"):
            assert engine.load(str(file), map_location="cpu")
        with pytest.raises(UntrustedError, match=r"would call os\.system"):
            engine.load(str(bad), map_location="cpu")

    assert torch.load is before
    assert not (tmp_path / "canary").exists()


def loads(tree: ast.AST) -> list[ast.Call]:
    """Calls of something named `load` of torch, or with `weights_only`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        node
        for node in calls
        if ast.unparse(node.func) in ("torch.load", "torch.serialization.load")
        or any(keyword.arg == "weights_only" for keyword in node.keywords)
    ]


def test_nothing_else_loads_with_torch() -> None:
    """No other module calls torch.load, and no call says `weights_only=False`."""
    found: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in loads(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(path.name, []).append(ast.unparse(node))

    assert found.keys() == {"loading.py"}
    assert all("weights_only=True" in line for line in found["loading.py"])


def spoilt_names() -> list[Any]:
    """Names that must not become paths."""
    return [
        *("/abs/path", "../../../../x", "a/b", "a\\b", "a\0b", "a\nb", "a\x1bb", "..", ".", "..a"),
        *(".hidden", "x" * 201, "", "\u202ebackwards"),
    ]


@pytest.mark.parametrize("name", spoilt_names(), ids=ascii)
def test_names_of_parameters_are_no_paths(name: str, tmp_path: Path) -> None:
    """`verify` finds them, `convert` refuses them, nothing is written."""
    from dsforge.checkpoints.folder import find_checkpoint
    from dsforge.checkpoints.verify.checkpoint import verify
    from dsforge.train.checkpoints.universal_conversion import convert

    run = shutil.copytree(SAMPLES / "zero1", tmp_path / "run")
    renamed(run, "model.norm.weight", name)
    found = verify(run)

    assert any("cannot be the name of a parameter" in f.message for f in found)
    with pytest.raises(DsforgeError):
        convert(find_checkpoint(run), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


@pytest.mark.parametrize("name", ["/abs/precious", "../../x", "a b", "fp32", "FP32", "step/"])
def test_names_of_states_are_no_paths(name: str, tmp_path: Path) -> None:
    """An optimizer state is a plain word, and not that of the master weights."""
    from dsforge.checkpoints.folder import find_checkpoint
    from dsforge.checkpoints.verify.checkpoint import verify
    from dsforge.train.checkpoints.universal_conversion import convert

    run = shutil.copytree(SAMPLES / "zero1", tmp_path / "run")
    renamed(run, "exp_avg", name)

    assert any("cannot be the name of an optimizer state" in f.message for f in verify(run))
    with pytest.raises(DsforgeError):
        convert(find_checkpoint(run), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_names_that_differ_in_case_are_not_converted(tmp_path: Path) -> None:
    """They are healthy, but one folder on some disks."""
    from dsforge.checkpoints.folder import find_checkpoint
    from dsforge.checkpoints.verify.checkpoint import verify
    from dsforge.train.checkpoints.universal_conversion import convert

    run = shutil.copytree(SAMPLES / "zero1", tmp_path / "run")
    renamed(run, "model.norm.weight", "MODEL.embed_tokens.weight")

    assert verify(run) == []
    with pytest.raises(DsforgeError, match="differ only in case"):
        convert(find_checkpoint(run), tmp_path / "out")


def renamed(run: Path, old: str, new: str) -> None:
    """A checkpoint in which a text stands for another everywhere."""
    for path in run.rglob("*.pt"):
        records = records_of(path)
        records["data.pkl"] = records["data.pkl"].replace(text(old), text(new))
        torch_file(path, records)
        assert Archive(path).records
