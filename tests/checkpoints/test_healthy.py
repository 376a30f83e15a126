"""Files that torch itself writes in its newer forms, and what people keep in them: all are read."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dsforge.checkpoints.verify.checkpoint import verify
from dsforge.cli.main import main

WEIGHTS = {"weight": torch.ones(3, 4)}
SHARED = torch.ones(4)
DTYPES = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2", "uint16", "uint64")


def tagged() -> torch.Tensor:
    """A parameter with the attributes that DeepSpeed's MoE layers give to theirs."""
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.allreduce = False  # type: ignore[attr-defined]
    parameter.group_name = "ep_size_1"  # type: ignore[attr-defined]
    return parameter


def stepped() -> dict[str, Any]:
    """The state of an optimizer that took a step."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([parameter])

    def closure() -> torch.Tensor:
        loss = (parameter**2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    return dict(optimizer.state_dict())


HEALTHY: dict[str, Callable[[], Any]] = {
    "empty": dict,
    "random": lambda: {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    },
    "modules": lambda: torch.nn.Sequential(torch.nn.Linear(2, 2)).state_dict(),
    "attributes": lambda: {"weight": tagged()},
    "arguments": lambda: {"args": argparse.Namespace(dtype=torch.float16, betas=(0.9, 0.95))},
    "optimizer": stepped,
    "views": lambda: {"a": SHARED, "b": SHARED[1:], "c": SHARED.view(2, 2).t()},
    "arrays": lambda: [np.ones((2, 3)), np.asfortranarray(np.ones((2, 3))), np.array([])],
    "shape": lambda: {"shape": torch.Size([1, 2]), "device": torch.device("cpu")},
    "large-numbers": lambda: {2**62: 1, -(2**63): 2},
    **{name: lambda name=name: torch.empty(4, dtype=getattr(torch, name)) for name in DTYPES},
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_what_torch_writes_is_read(name: str, protocol: int, tmp_path: Path) -> None:
    """Without an error or a warning."""
    file = tmp_path / "state.pt"
    torch.save(HEALTHY[name](), file, pickle_protocol=protocol)

    assert verify(file) == []


@contextmanager
def setting(name: str, value: Any) -> Iterator[None]:
    """Inside, torch saves in another way."""
    config = pytest.importorskip("torch.utils.serialization.config").save
    before = getattr(config, name)
    setattr(config, name, value)
    try:
        yield
    finally:
        setattr(config, name, before)


@pytest.mark.parametrize("bytes_", [64, 4096, 65536])
def test_every_alignment_is_read(bytes_: int, tmp_path: Path) -> None:
    """Newer releases put storages where a page begins."""
    with setting("storage_alignment", bytes_):
        torch.save(WEIGHTS, tmp_path / "state.pt")

    assert verify(tmp_path / "state.pt") == []


@pytest.fixture
def without_sums(tmp_path: Path) -> Path:
    """A file of which torch was told to write no checksums."""
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(WEIGHTS, tmp_path / "state.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    return tmp_path / "state.pt"


def test_a_file_without_sums_is_no_damaged_one(
    without_sums: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said once that damage cannot be found; the file is not called changed."""
    assert [(f.severity, f.rule) for f in verify(without_sums)] == [("warning", "sums-missing")]
    with pytest.raises(SystemExit) as ended:
        main(["ckpt", "verify", str(without_sums)])
    assert ended.value.code in (0, None)
    assert "set_crc32_options" in capsys.readouterr().out


def test_kinds_of_tensors_that_are_not_read_are_no_code(tmp_path: Path) -> None:
    """Torch loads them; nothing in them would run, and the message does not say so."""
    for value in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        torch.save({"weight": value}, tmp_path / "state.pt")
        (found,) = verify(tmp_path / "state.pt")

        assert found.rule == "file-unreadable"
        assert "tensor, which is not supported" in found.message
