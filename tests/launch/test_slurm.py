"""The generated Slurm scripts with real ranks: two nodes that are both this machine.

`srun` and `scontrol` stand for Slurm: one task for each node, at once. torchrun, its rendezvous and
the ranks are real. Megatron-LM is a program that says what it was given and sums over all ranks.
"""

from __future__ import annotations

import json
from pathlib import Path

import plans
import pytest
import runs
from test_train_generated import generated, rows

from dsforge.artifacts import write_all
from dsforge.render import render

pytestmark = [pytest.mark.launch, pytest.mark.engine]

SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
for ((node = 0; node < NODES; node++)); do
  SLURM_NODEID=$node SLURM_PROCID=$node "$@" &
  tasks+=("$!")
done
code=0
for task in "${tasks[@]}"; do wait "$task" || code=$?; done
exit "$code"
"""
PRETRAIN = """
import json, os, sys
from pathlib import Path
import torch
from torch import distributed
distributed.init_process_group("gloo")
total = torch.tensor([distributed.get_rank() + 1.0])
distributed.all_reduce(total)
said = {"sum": total.item(), "world": distributed.get_world_size(), "arguments": sys.argv[1:]}
said["group"] = os.environ["GROUP_RANK"]
Path(f"rank{distributed.get_rank()}.json").write_text(json.dumps(said))
distributed.destroy_process_group()
"""


def job(tools: Path, run: Path, nodes: int) -> dict[str, str]:
    """The environment of a Slurm job on so many nodes that are all this machine."""
    tools.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\necho 127.0.0.1\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return {
        "PATH": f"{tools}:{runs.environment()['PATH']}",
        "NODES": str(nodes),
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NODELIST": "here",
        "SLURM_SUBMIT_DIR": str(run),
        "MASTER_PORT": str(runs.free_port()),
    }


def test_megatron_starts_on_every_node_as_one_job(tmp_path: Path) -> None:
    """Ranks of both nodes meet; node and rank agree; each has the plan's arguments."""
    on = plans.cluster(2, 1)
    run, checkout = tmp_path / "run", tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "pretrain_gpt.py").write_text(PRETRAIN)
    write_all(render(plans.plan(on=on, choice=plans.megatron_strategy(on))), run)
    variables = job(tmp_path / "bin", run, 2) | {"MEGATRON_PATH": str(checkout)}
    runs.succeeded(["bash", "launch/slurm.sbatch"], run, **variables)
    arguments = (run / "megatron/args.txt").read_text(encoding="utf-8").split()

    for rank in range(2):
        said = json.loads((run / f"rank{rank}.json").read_text(encoding="utf-8"))
        assert (said["sum"], said["world"], said["group"]) == (3.0, 2, str(rank))
        assert said["arguments"][: len(arguments)] == arguments


def test_deepspeed_trains_under_slurm(tiny_llama: Path, tmp_path: Path) -> None:
    """The job of the choice, with its own ranks and its own number of steps."""
    data = rows(tmp_path / "data.jsonl", "prompt")
    run = generated(tmp_path, tiny_llama, {"train": str(data)}, "fp32")
    done = runs.succeeded(["bash", "launch/slurm.sbatch"], run, **job(tmp_path / "bin", run, 1))

    assert done.stderr.count("step 6/6") == 1
    assert len(runs.figures(run / "output", "loss")) == 6
