"""Files for SkyPilot and Ray, read by SkyPilot and Ray.

Both need versions of packages that dsforge does not have, so each has an environment of its own:
DSFORGE_SKYPILOT_PYTHON and DSFORGE_RAY_PYTHON name their interpreters.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from folders import CLUSTERS, plan_on, texts

from dsforge import process

READ_TASKS = """
import sys, sky
for path in sys.argv[1:]:
    task = sky.Task.from_yaml(path)
    task.validate_run()
    print(path, task.num_nodes, *[r.accelerators for r in task.resources])
"""
READ_CLUSTERS = """
import sys, yaml
from ray.autoscaler._private.util import prepare_config, validate_config
for path in sys.argv[1:]:
    config = prepare_config(yaml.safe_load(open(path)))
    validate_config(config)
    print(path, len(config["provider"]["worker_ips"]), config["max_workers"])
"""


def said(variable: str, program: str, paths: list[Path]) -> list[str]:
    """What a program of another environment prints of some files."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no interpreter (a virtual environment with the package)")
    words = [python, "-c", program, *map(str, paths)]
    done = process.run(tuple(words), timeout_s=300, cwd=paths[0].parent)
    assert done.code == 0, done.tail
    return [line for line in done.output.splitlines() if line.startswith("/")]


def written(folder: Path, target: str, name: str) -> dict[str, Path]:
    """By cluster the file of this name, where the target has one."""
    found = {}
    for cluster, on in CLUSTERS.items():
        files = texts(target, plan_on(on))
        if files:
            found[cluster] = folder / f"{cluster}.yaml"
            found[cluster].write_text(files[name])
    return found


def test_sky_reads_the_tasks(tmp_path: Path) -> None:
    """As many nodes as the plan, with its accelerators."""
    found = written(tmp_path, "skypilot", "task.yaml")
    lines = said("DSFORGE_SKYPILOT_PYTHON", READ_TASKS, list(found.values()))

    assert len(lines) == len(found)
    for (cluster, path), line in zip(found.items(), lines, strict=True):
        on = CLUSTERS[cluster]
        assert line.startswith(f"{path} {on.nodes} ")
        assert on.gpu.is_cpu or f": {on.gpus_per_node}" in line


def test_ray_reads_the_clusters(tmp_path: Path) -> None:
    """A head, and a worker for each further node."""
    found = written(tmp_path, "ray", "cluster.yaml")
    lines = said("DSFORGE_RAY_PYTHON", READ_CLUSTERS, list(found.values()))

    workers = {path: CLUSTERS[cluster].nodes - 1 for cluster, path in found.items()}
    assert lines == [f"{path} {count} {count}" for path, count in workers.items()]
