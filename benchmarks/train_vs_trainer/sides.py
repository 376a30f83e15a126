"""The two sides of the comparison: each writes its files, launches its ranks, reads its figures."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
LEARNING_RATE = 1e-4
LIMIT_S = 1800


@dataclass(frozen=True, slots=True)
class Case:
    """One way to train; micro batches count packs where samples are packed."""

    name: str
    side: str  # "dsforge" or "trainer"
    micro_batch_size: int
    packing: bool = False
    sampling: str = "random"  # of the Trainer; "sequential": the rows as they lie in the file


@dataclass(frozen=True, slots=True)
class Setting:
    """What all cases share."""

    model: Path
    data: Path
    ordered: Path  # the same rows in the order in which dsforge takes them
    sequence_length: int
    steps: int
    ranks: int
    zero_stage: int
    device: str
    precision: str

    def ds_config(self, case: Case) -> dict[str, Any]:
        """The DeepSpeed config of both sides."""
        rates = {"lr": LEARNING_RATE, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
        precision = {} if self.precision == "fp32" else {self.precision: {"enabled": True}}
        return {
            "train_batch_size": case.micro_batch_size * self.ranks,
            "train_micro_batch_size_per_gpu": case.micro_batch_size,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": self.zero_stage},
            "optimizer": {"type": "AdamW", "params": {**rates, "torch_adam": True}},
            **precision,
        }


class Figures(NamedTuple):
    """What a run gave: seconds from launch to the end of each step, and what they held."""

    ends_s: tuple[float, ...]
    losses: tuple[float, ...]
    tokens: tuple[int, ...]
    peak_bytes: int


def measured(case: Case, setting: Setting, folder: Path) -> Figures:
    """The figures of one run in a new folder. Raises RuntimeError with the end of its output."""
    folder.mkdir(parents=True)
    write = _write_trainer if case.side == "trainer" else _write_dsforge
    words = write(case, setting, folder)
    began = time.time()
    done = subprocess.run(
        [*_launcher(setting), *words],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    (folder / "log.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        raise RuntimeError(f"{case.name} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    read = _read_trainer if case.side == "trainer" else _read_dsforge
    return read(case, setting, folder, began)


def _launcher(setting: Setting) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = "--num_accelerators" if setting.device == "cpu" else "--num_gpus"
    return [str(BIN / "deepspeed"), ranks, str(setting.ranks), "--master_port", port]


def _environment() -> dict[str, str]:
    """The environment of both sides: our interpreter first, byte code kept, no hub."""
    own = {"PATH": f"{BIN}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    return {**inherited, **own, "OMP_NUM_THREADS": str(threads)}


def _write_trainer(case: Case, setting: Setting, folder: Path) -> list[str]:
    in_order = case.sampling == "sequential"
    wanted = {
        "model": str(setting.model),
        "data": str(setting.ordered if in_order else setting.data),
        "micro_batch_size": case.micro_batch_size,
        "sequence_length": setting.sequence_length,
        "steps": setting.steps,
        "learning_rate": LEARNING_RATE,
        "device": setting.device,
        "precision": setting.precision,
        "dtype": {"bf16": "bfloat16", "fp32": "float32"}[setting.precision],
        "ds_config": setting.ds_config(case),
        "sampling": case.sampling,
    }
    path = folder / "case.json"
    path.write_text(json.dumps(wanted, indent=2), encoding="utf-8")
    return [str(HERE / "trainer_side.py"), str(path)]


def _read_trainer(case: Case, setting: Setting, folder: Path, began: float) -> Figures:
    ranks = [json.loads((folder / f"rank{r}.json").read_text()) for r in range(setting.ranks)]
    tokens = [sum(batch) for batch in zip(*(rank["tokens"] for rank in ranks), strict=True)]
    return Figures(
        ends_s=tuple(end - began for end in ranks[0]["ends"]),
        losses=tuple(ranks[0]["losses"]),
        tokens=tuple(tokens[: setting.steps]),
        peak_bytes=max(rank["peak_bytes"] for rank in ranks),
    )


def _write_dsforge(case: Case, setting: Setting, folder: Path) -> list[str]:
    job = {
        "model": str(setting.model),
        "deepspeed_config": "ds_config.json",
        "data": {"train": str(setting.data)},
        "sequence_length": setting.sequence_length,
        "packing": case.packing,
        "steps": setting.steps,
        "schedule": "constant",
        "save": False,
    }
    (folder / "train.yaml").write_text(json.dumps(job, indent=1), encoding="utf-8")
    config = json.dumps(setting.ds_config(case), indent=1)
    (folder / "ds_config.json").write_text(config, encoding="utf-8")
    return ["--module", "dsforge.train", "train.yaml"]


def _read_dsforge(case: Case, setting: Setting, folder: Path, began: float) -> Figures:
    lines = (folder / "output/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [row for row in map(json.loads, lines) if "loss" in row]
    memory = json.loads((folder / "output/measurement.json").read_text())["memory"]
    return Figures(
        ends_s=tuple(row["ended_at"] - began for row in steps),
        losses=tuple(row["loss"] for row in steps),
        tokens=tuple(row["tokens"] for row in steps),
        peak_bytes=memory["host_bytes"],
    )
