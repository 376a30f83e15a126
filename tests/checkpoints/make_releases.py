"""Makes tests/checkpoints/releases: checkpoints as older releases of DeepSpeed write them.

    PYTHONPATH=path/to/deepspeed-0.14.5 python tests/checkpoints/make_releases.py

The unpacked source of a release is enough. What it needs of an older torch is put in its place
here, in this process alone: the files are written by the release's own code, on one rank.
"""

from __future__ import annotations

import os
import shutil
import sys
import types
from pathlib import Path
from typing import Any

RELEASES = Path(__file__).parent / "releases"
CASES = {"zero0-fp16": (0, "fp16"), "zero1-bf16": (1, "bf16"), "zero2-fp16": (2, "fp16")}
CASES |= {"zero3-bf16": (3, "bf16"), "zero3-fp16": (3, "fp16"), "zero0-bf16": (0, "bf16")}


def patch_torch() -> None:
    """What older releases import from torch and newer torch does not have."""
    import logging

    import torch

    elastic = types.ModuleType("torch.distributed.elastic.agent.server.api")
    try:
        from torch.distributed.elastic.agent.server import api
    except ImportError:
        api = elastic
    if not hasattr(api, "log"):
        api.log = logging.getLogger("elastic")
    if not hasattr(api, "_get_socket_with_port"):
        api._get_socket_with_port = None
    for name in ("TorchTensor",):
        if not hasattr(torch, name):
            setattr(torch, name, torch.Tensor)
    from deepspeed.accelerator import get_accelerator

    backend = sys.modules["deepspeed.comm.torch"]
    backend.build_shm_op = lambda: None  # type: ignore[attr-defined]  # one rank needs none
    # A CPU that computes in fp16 is not known to every release.
    get_accelerator().__class__.is_fp16_supported = lambda _: True


def save(folder: Path, stage: int, precision: str) -> None:
    """A checkpoint after two steps of a tiny model."""
    import deepspeed
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 3))
    config: dict[str, Any] = {
        "train_batch_size": 2,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        precision: {"enabled": True},
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=scheduler, config=config
    )
    for _ in range(2):
        dtype = next(engine.module.parameters()).dtype
        engine.backward(engine(torch.ones(2, 5, dtype=dtype)).float().sum())
        engine.step()
    shutil.rmtree(folder, ignore_errors=True)
    engine.save_checkpoint(str(folder), tag="global_step2", client_state={"epoch": 1})
    for script in folder.glob("*.py"):
        script.unlink()


if __name__ == "__main__":
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 29777}.items():
        os.environ[name] = str(value)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    patch_torch()
    import deepspeed

    deepspeed.init_distributed("gloo", verbose=False)
    for case in sys.argv[1:] or CASES:
        try:
            save(RELEASES / deepspeed.__version__.split("+")[0].strip() / case, *CASES[case])
            sys.stderr.write(f"{deepspeed.__version__} {case}: written\n")
        except Exception as error:
            sys.stderr.write(f"{deepspeed.__version__} {case}: {error!r}\n")
