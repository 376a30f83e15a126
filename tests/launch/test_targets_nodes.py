"""Scripts that other launchers start on each node, with the variables that those launchers set.

Two nodes are both this machine; torchrun, the rendezvous and the ranks are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import runs
import yaml
from target_runs import generated, is_whole, slow

from dsforge.render.engine import render_text, template_environment
from dsforge.targets.node_script import NodeContext

pytestmark = [pytest.mark.launch, pytest.mark.engine]

ADDRESS = "127.0.0.1"


def variables(name: str, node: int, folder: Path) -> dict[str, str]:
    """What the launcher tells a node; SageMaker writes a file."""
    if name == "sagemaker":
        config = folder / f"opt-{node}/input/config/resourceconfig.json"
        config.parent.mkdir(parents=True)
        hosts = {"current_host": (ADDRESS, "localhost")[node], "hosts": ["localhost", ADDRESS]}
        config.write_text(json.dumps(hosts))
        (folder / "shared").mkdir(exist_ok=True)
        (folder / f"opt-{node}/checkpoints").symlink_to(folder / "shared")
        return {"SAGEMAKER_BASE_DIR": str(folder / f"opt-{node}")}
    found = {
        "kubernetes": {"JOB_COMPLETION_INDEX": str(node), "MASTER_ADDR": ADDRESS},
        "pytorchjob": {"RANK": str(node), "WORLD_SIZE": "2", "MASTER_ADDR": ADDRESS},
        "kubeflow-trainer": {
            "PET_NODE_RANK": str(node),
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "1",
            "PET_MASTER_ADDR": ADDRESS,
        },
        "skypilot": {
            "SKYPILOT_NODE_RANK": str(node),
            "SKYPILOT_NODE_IPS": f"{ADDRESS}\n127.0.0.2\n",
        },
    }
    return found[name]


def port_of(name: str) -> dict[str, str]:
    """The free port of a job, in the variable that the launcher has for it."""
    key = "PET_MASTER_PORT" if name == "kubeflow-trainer" else "MASTER_PORT"
    return {key: str(runs.free_port())}


@pytest.mark.parametrize("engine", ["fsdp2", *slow("deepspeed", "pipeline")])
@pytest.mark.parametrize(
    "name", ["kubernetes", *slow("pytorchjob", "kubeflow-trainer", "skypilot", "sagemaker")]
)
def test_two_nodes_are_one_job(name: str, engine: str, tiny_llama: Path, tmp_path: Path) -> None:
    """Both nodes end well, and the run is of two ranks."""
    on = {"nodes": 2, "gpus_per_node": 1}
    if name == "sagemaker":  # has no instances without GPUs; its script has no values of the plan
        run = generated(tmp_path, tiny_llama, engine=engine, **on)
        script = render_text(template_environment(), f"for/{name}/node.sh.j2", NodeContext())
        (run / "for" / name).mkdir(parents=True)
        (run / "for" / name / "node.sh").write_text(script)
    else:
        run = generated(tmp_path, tiny_llama, name, engine=engine, **on)
    port = port_of(name)
    nodes = [
        subprocess.Popen(
            ["/bin/bash", f"for/{name}/node.sh"],
            cwd=run,
            env=runs.environment(**port, **variables(name, node, tmp_path)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    said = [node.communicate(timeout=240)[0] for node in nodes]

    assert [node.returncode for node in nodes] == [0, 0], said[0][-3000:] + said[1][-3000:]
    is_whole(run, 2)


@pytest.mark.parametrize("engine", ["fsdp2", *slow("deepspeed")])
def test_ray_train_starts_the_ranks(engine: str, tiny_llama: Path, tmp_path: Path) -> None:
    """`python for/ray/start.py` on a Ray cluster of this machine trains the whole run."""
    other = os.environ.get("DSFORGE_RAY_PYTHON")
    if not other:
        pytest.skip("DSFORGE_RAY_PYTHON names no interpreter (a virtual environment with ray)")
    where = "import ray, pathlib; print(pathlib.Path(ray.__file__).parents[1])"
    packages = subprocess.run([other, "-c", where], capture_output=True, text=True, check=True)
    run = generated(tmp_path, tiny_llama, "ray", engine=engine)
    words = [sys.executable, "for/ray/start.py"]
    runs.succeeded(words, run, PYTHONPATH=packages.stdout.strip())

    is_whole(run, 2)


@pytest.mark.parametrize("engine", ["fsdp2", *slow("deepspeed")])
def test_the_command_of_a_compose_file_starts_its_node(
    engine: str, tiny_llama: Path, tmp_path: Path
) -> None:
    """The command and the environment that compose.yaml has for each of two hosts are one job."""
    run = generated(tmp_path, tiny_llama, "docker-compose", engine=engine, nodes=2, gpus_per_node=1)
    service = yaml.safe_load((run / "for/docker-compose/compose.yaml").read_text())["services"]
    train, port = service["train"], str(runs.free_port())
    assert set(train["environment"]) == {"NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}
    nodes = [
        subprocess.Popen(
            train["command"],
            cwd=run,  # `working_dir` is where the folder is mounted
            env=runs.environment(NODE_RANK=str(node), MASTER_ADDR=ADDRESS, MASTER_PORT=port),
        )
        for node in range(2)
    ]

    assert [node.wait(timeout=240) for node in nodes] == [0, 0]
    is_whole(run, 2)
