"""Wall time and memory of a full-size rehearsal: Llama-2-7B under ZeRO-3 as one rank of 64."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

LIMIT_S, LIMIT_BYTES = 90, 4e9
WORLD = 64
FLAGS = ("--model", "llama-2-7b", "--world-size", str(WORLD), "--seq-len", "2048")
MORE = ("--recompute", "full", "--json")
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
RESULTS = Path(__file__).parent / "results"


def measured() -> dict[str, object]:
    """The whole process: interpreter, imports, two optimizer steps, the document."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "ds_config.json")
        config.write_text(json.dumps(CONFIG))
        dsforge = (sys.executable, "-m", "dsforge", "rehearse")
        command = (*dsforge, *FLAGS, "--ds-config", str(config), *MORE)
        begin = time.perf_counter()
        load = os.getloadavg()[0]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    wall_s = time.perf_counter() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    document = json.loads(done.stdout)
    return {
        "command": " ".join(("dsforge rehearse", *FLAGS, "--ds-config ds_config.json", *MORE)),
        "ds_config": CONFIG,
        "hardware": f"{os.cpu_count()}-core {platform.machine()} CPU",
        "load_before": round(load, 1),
        "versions": {name: version(name) for name in ("deepspeed", "torch", "transformers")},
        "wall_s": round(wall_s, 1),
        "rehearsal_s": round(document["seconds"], 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_rss_bytes": used.ru_maxrss * 1024,
        "phases": document["phases"],
    }


def page(found: dict[str, object]) -> str:
    """The result as Markdown."""
    lines = [
        "# Rehearsal of Llama-2-7B, ZeRO-3, rank 0 of 64",
        "",
        f"`{found['command']}`",
        "",
        f"{found['hardware']}, load {found['load_before']} at the start from other work",
        f"versions: {found['versions']}",
        "",
        f"- wall time: {found['wall_s']} s (aim: {LIMIT_S} s on an idle machine)",
        f"- processor time, which other work does not touch: {found['cpu_s']} s",
        f"- peak memory of the process: {float(str(found['peak_rss_bytes'])) / 1e9:.2f} GB",
        "",
        "| phase | resident GiB | peak GiB |",
        "|---|--:|--:|",
    ]
    phases: dict[str, dict[str, int]] = found["phases"]  # type: ignore[assignment]
    for name, phase in phases.items():
        resident, peak = phase["resident_bytes"] / 2**30, phase["peak_bytes"] / 2**30
        lines.append(f"| {name} | {resident:.3f} | {peak:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the result beside the others; exit code 1 where it is over a limit."""
    found = measured()
    stem = f"rehearse_2-core-cpu_{time.strftime('%Y%m')}"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{stem}.json").write_text(json.dumps(found, indent=2) + "\n")
    (RESULTS / f"{stem}.md").write_text(page(found))
    print(page(found))
    wall_s, rss_bytes = float(str(found["wall_s"])), float(str(found["peak_rss_bytes"]))
    return 0 if wall_s <= LIMIT_S and rss_bytes <= LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
