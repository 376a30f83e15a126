"""The exact simulator against the unmodified engine in every legal cell of the matrix.

{ZeRO stage} x {optimizer offload} x {precision} x {accumulation} x {tied} x {LoRA} x {world size},
each rehearsed as one rank: resident bytes must be equal, peaks within 2 %. Records are written as
they come, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "engine"))

from rehearsed import Cell, cells, proof  # noqa: E402 - the cells of the tests

RESULTS = ROOT / "benchmarks" / "results"
PEAK_ERROR = 0.02
CELLS_PER_PROCESS = 60  # what torch caches of a cell is never used again


def proved(cell: Cell) -> dict[str, Any]:
    """One cell's record; in a process of its own."""
    begin = time.perf_counter()
    found = proof(cell)
    return {
        "cell": cell.name,
        "stage": cell.stage,
        "offload": "cpu" if cell.offload else "none",
        "differences": found.differences,
        "peak_errors": {moment: round(error, 5) for moment, error in found.peak_errors.items()},
        "seconds": round(time.perf_counter() - begin, 2),
    }


def run(records: Path, processes: int) -> float:
    """Seconds of the cells that are not in the file yet; their records are added to it."""
    done = {record["cell"] for record in kept(records)}
    waiting = [cell for cell in cells() if cell.name not in done]
    random.Random(0).shuffle(waiting)  # noqa: S311 - so that what is dear comes spread out
    begin = time.perf_counter()
    pool = get_context("spawn").Pool(processes, quieted, maxtasksperchild=CELLS_PER_PROCESS)
    with pool, records.open("a") as file:
        for count, record in enumerate(pool.imap_unordered(proved, waiting), 1):
            print(json.dumps(record), file=file, flush=True)
            say(record, f"{count} of {len(waiting)}")
    return time.perf_counter() - begin


def quieted() -> None:
    """A worker whose libraries say nothing."""
    os.environ.update({"DS_ACCELERATOR": "cpu", "TORCH_CPP_LOG_LEVEL": "ERROR"})
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
    from dsforge.rehearse.run import quieten

    quieten()


def say(record: dict[str, Any], progress: str) -> None:
    """A line for a cell that differs, and one now and then."""
    worst = max(map(abs, record["peak_errors"].values()), default=0.0)
    if record["differences"] or worst > PEAK_ERROR:
        print(record, file=sys.stderr)
    print(f"\r{progress}", end="", file=sys.stderr)


def kept(records: Path) -> list[dict[str, Any]]:
    """The records that are there."""
    return (
        [json.loads(line) for line in records.read_text().splitlines()]
        if (records.exists())
        else []
    )


def table(found: Iterable[dict[str, Any]]) -> list[str]:
    """Cells, equal ones and the worst error of a peak, by stage and offload."""
    groups = defaultdict(list)
    for record in found:
        groups[record["stage"], record["offload"]].append(record)
    lines = [
        "| ZeRO stage | optimizer | cells | resident bytes equal | worst peak error | median |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for (stage, offload), records in sorted(groups.items(), key=lambda item: str(item[0])):
        equal = sum(not record["differences"] for record in records)
        errors = sorted(abs(e) for record in records for e in record["peak_errors"].values())
        place = "on the CPU" if offload == "cpu" else "on the GPU"
        worst, median = 100 * errors[-1], 100 * errors[len(errors) // 2]
        lines.append(
            f"| {stage} | {place} | {len(records)} | {equal} | {worst:.2f} % | {median:.2f} % |"
        )
    return lines


def main() -> int:
    """Run what is missing and write the table; exit code 1 where a cell differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--records", type=Path, default=ROOT / "engine-matrix.jsonl")
    options = parser.parse_args()
    seconds = run(options.records, options.processes)
    names = {cell.name: place for place, cell in enumerate(cells())}
    found = sorted(kept(options.records), key=lambda record: names[record["cell"]])
    document = {
        "command": "python benchmarks/engine_matrix.py",
        "hardware": f"{os.cpu_count()}-core {platform.machine()} CPU",
        "versions": {name: version(name) for name in ("deepspeed", "torch", "transformers")},
        "wall_s": round(seconds, 1),
        "cell_s": round(sum(record["seconds"] for record in found), 1),
        "records": found,
    }
    write(document, table(found))
    worst = max(abs(e) for record in found for e in record["peak_errors"].values())
    return int(worst > PEAK_ERROR or any(record["differences"] for record in found))


def write(document: dict[str, Any], lines: list[str]) -> None:
    """The result as JSON and Markdown beside the others."""
    stem = f"engine-matrix_2-core-cpu_{time.strftime('%Y%m')}"
    (RESULTS / f"{stem}.json").write_text(json.dumps(document, indent=1) + "\n")
    head = [
        "# The exact simulator against the engine",
        "",
        f"`{document['command']}`, {document['hardware']}, {document['versions']}",
        "",
        "Each cell is a tiny Llama in the unmodified engine as one rank of 1, 2, 3, 8 or 64: bf16,",
        "fp16 or fp32, 1 or 4 micro steps, tied or not, full or LoRA. Resident bytes by owner",
        "after init, accumulation, forward, backward and step; peaks of each of these but init.",
        "",
    ]
    tail = ["", f"{document['cell_s']:.0f} s of cells, {document['wall_s']:.0f} s for the last run"]
    text = "\n".join([*head, *lines, *tail]) + "\n"
    (RESULTS / f"{stem}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    sys.exit(main())
