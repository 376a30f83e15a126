"""Time of `dsforge ckpt verify`: on 1 GB in a few files, and on 128 small files of many parameters.

    python benchmarks/ckpt_verify.py [FOLDER_OF_ANOTHER_DSFORGE ...]

Each folder named holds another state of the package, which is measured in turn with this one. The
checkpoints are synthetic, in the form of ZeRO-3: sizes and names are those that matter here.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

RUNS = 5
HERE = Path(__file__).resolve().parents[1]
# name -> ranks, parameters, elements of each
CASES = {"1 GB, 4 ranks": (4, 40, 2_000_000), "13 B shapes, 64 ranks": (64, 363, 64 * 16)}


def write(folder: Path, ranks: int, parameters: int, elements: int) -> None:
    """A checkpoint of `ranks` ranks under ZeRO-3."""
    import torch

    inside = folder / "global_step1"
    inside.mkdir(parents=True)
    shapes = {f"model.layers.{n}.mlp.weight": torch.Size([elements]) for n in range(parameters)}
    part = parameters * elements // ranks
    for rank in range(ranks):
        module = dict.fromkeys(shapes, torch.empty(0, dtype=torch.bfloat16))
        model = {"module": module, "param_shapes": [shapes], "buffer_names": [], "global_steps": 1}
        model |= {"shared_params": {}, "dp_world_size": ranks, "ds_version": "0.19.8"}
        torch.save(model, inside / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        flats = {name: torch.rand(part) for name in ("exp_avg", "exp_avg_sq")}
        state: dict[str, Any] = {0: {"step": torch.tensor(1.0), **flats}}
        optimizer = {
            "zero_stage": 3,
            "partition_count": ranks,
            "fp32_flat_groups": [torch.rand(part)],
            "optimizer_state_dict": {"state": state, "param_groups": [{"lr": 1e-3}]},
        }
        whole = {"optimizer_state_dict": optimizer}
        torch.save(whole, inside / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (folder / "latest").write_text("global_step1")


def seconds(package: Path, folder: Path) -> tuple[float, float]:
    """Wall and CPU time of one process."""
    call = "from dsforge.cli.main import main; main()"
    command = [sys.executable, "-c", call, "ckpt", "verify", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=package
    )
    taken, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print the figures as JSON: each case and package with its medians and all runs."""
    packages = [HERE, *(Path(name).resolve() for name in sys.argv[1:])]
    rows = []
    for case, sizes in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), *sizes)
            found: dict[Path, list[tuple[float, float]]] = {package: [] for package in packages}
            for run in range(RUNS + 1):
                for package in packages:
                    taken = seconds(package, Path(folder))
                    if run:  # the first fills the cache of the disk
                        found[package].append(taken)
            size = sum(file.stat().st_size for file in Path(folder).rglob("*.pt"))
        for package, runs in found.items():
            row = {"case": case, "bytes": size, "package": package.name}
            row |= {"wall_s": round(median(wall for wall, _ in runs), 3)}
            row |= {"cpu_s": round(median(cpu for _, cpu in runs), 3)}
            rows.append({**row, "runs": [[round(t, 3) for t in run] for run in runs]})
    print(json.dumps({"rows": rows, "load": os.getloadavg()[0]}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
