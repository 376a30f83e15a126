"""What the launch scripts really start: run by bash, with small programs in place of the cluster.

`torchrun` and `deepspeed` print what they were called with; `srun` starts one task on each
node, as Slurm does. The scripts are ours, whole and unchanged.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import plans
import pytest

from dsforge.artifacts import write_all
from dsforge.plan import Plan
from dsforge.render import render
from dsforge.specs import ClusterSpec, Host, SlurmSpec

BASH = shutil.which("bash") or "/bin/bash"
SHOWN = 'for word in "$@"; do printf "%s\\n" "$word"; done'
HOSTS = (
    Host(address="10.0.0.1", slots=2, devices=(2, 3)),
    Host(address="10.0.0.2", slots=2, devices=(0, 5)),
)
SELECTED = plans.cluster(2, 2, hosts=HOSTS)
PROGRAMS = {
    "scontrol": '[ "$1 $2 $3" = "show hostnames gpu[07-09]" ] && printf "gpu07\\ngpu08\\ngpu09\\n"',
    # one task on each node: the options of srun end at the first word that is none
    "srun": "while case $1 in -*) true ;; *) false ;; esac; do shift; done\n"
    'for node in 0 1 2; do SLURM_NODEID=$node SLURM_PROCID=$node "$@" || exit; done',
    "torchrun": 'echo "TORCHRUN node=${SLURM_NODEID:-} devices=${CUDA_VISIBLE_DEVICES:-} '
    'connections=${CUDA_DEVICE_MAX_CONNECTIONS:-} threads=$OMP_NUM_THREADS"\n' + SHOWN,
    "deepspeed": f"echo DEEPSPEED\n{SHOWN}",
    "ssh": "exit 0",
    "pdsh": "exit 0",
    "hostname": "echo 10.0.0.1",
    "python": f'exec {sys.executable} "$@"',
}


class Ran(NamedTuple):
    """What came of a script: exit code, errors, and the words of each program that it started."""

    code: int
    errors: str
    lines: list[str]

    def calls(self, mark: str) -> list[list[str]]:
        """The words of each call of a program; the first is its line of variables."""
        found: list[list[str]] = []
        for line in self.lines:
            if line.startswith(mark):
                found.append([line])
            elif found:
                found[-1].append(line)
        return found


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with the programs of a cluster, and a checkout of Megatron-LM."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron/pretrain_gpt.py").touch()
    return folder


def run(plan: Plan, script: str, tools: Path, **variables: str) -> Ran:
    """A script of a plan's run folder, called there."""
    folder = tools.parent / "a run"  # a blank in its name must hurt no script
    write_all(render(plan), folder)
    known = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "MEGATRON_PATH": str(tools.parent / "megatron"),
        "TRAIN_ITERS": "5",
    }
    done = subprocess.run(
        [BASH, script],
        cwd=folder,
        env={**known, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return Ran(done.returncode, done.stderr, done.stdout.splitlines())


def slurm(folder: Path) -> dict[str, str]:
    """The variables of a Slurm job of three nodes that was submitted in a folder."""
    return {
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "gpu[07-09]",
    }


def megatron(on: ClusterSpec) -> Plan:
    """A plan that has chosen Megatron."""
    return plans.plan(on=on, choice=plans.megatron_strategy(on))


def value(words: list[str], flag: str) -> str:
    """The word behind a flag."""
    return words[words.index(flag) + 1]


def test_slurm_starts_megatron_on_every_node(tools: Path) -> None:
    """One torchrun a node, with its rank, the first node as master, and the plan's arguments."""
    plan = megatron(plans.cluster(3))
    stale = {"NODE_RANK": "9", "MASTER_ADDR": "elsewhere"}  # of the shell that called sbatch
    ran = run(plan, "launch/slurm.sbatch", tools, **slurm(tools.parent / "a run"), **stale)
    arguments = next(a.text for a in render(plan) if a.path == "megatron/args.txt").splitlines()
    calls = ran.calls("TORCHRUN")

    assert ran.code == 0, ran.errors
    assert [call[0].split()[1] for call in calls] == ["node=0", "node=1", "node=2"]
    for node, words in enumerate(calls):
        assert value(words, "--node_rank") == str(node)
        assert value(words, "--nnodes") == "3"
        assert value(words, "--nproc_per_node") == "8"
        assert value(words, "--master_addr") == "gpu07"
        assert value(words, "--train-iters") == "1000"
        assert str(tools.parent / "megatron/pretrain_gpt.py") in words
        assert "connections=1" in words[0]
        first = words.index(arguments[0].split()[0])
        given = [word for line in arguments for word in line.split(None, 1)]
        assert words[first : first + len(given)] == given


def test_slurm_starts_deepspeed_where_it_was_chosen(tools: Path) -> None:
    """`dsforge.train` with the job of the choice, and Megatron only from its own folder."""
    plan = plans.plan(on=plans.cluster(3))
    home = tools.parent / "a run"
    ours = run(plan, "launch/slurm.sbatch", tools, **slurm(home)).calls("TORCHRUN")
    other = run(plan, "megatron/slurm.sbatch", tools, **slurm(home)).calls("TORCHRUN")

    assert len(ours) == len(other) == 3
    assert all(words[-3:] == ["--module", "dsforge.train", "train.yaml"] for words in ours)
    assert all(value(words, "--rdzv_endpoint") == "gpu07:29500" for words in ours)
    assert all(value(words, "--tensor-model-parallel-size") == "2" for words in other)


def test_the_alternative_of_megatron_trains_its_own_job(tools: Path) -> None:
    """By the scripts in deepspeed/, which name train-deepspeed.yaml."""
    plan = megatron(plans.cluster(1, hosts=(Host(address="10.0.0.1", slots=8),)))
    for script, mark in (("torchrun", "TORCHRUN"), ("deepspeed", "DEEPSPEED")):
        ran = run(plan, f"deepspeed/{script}.sh", tools)

        assert ran.code == 0, ran.errors
        assert value(ran.calls(mark)[0], "dsforge.train") == "train-deepspeed.yaml"


@pytest.mark.parametrize(
    ("missing", "said"),
    [("MEGATRON_PATH", "set it before sbatch"), ("SLURM_SUBMIT_DIR", "is for sbatch")],
)
def test_what_is_missing_stops_the_job_before_any_task(
    missing: str, said: str, tools: Path
) -> None:
    """One message of the batch script, and no task."""
    variables = {**slurm(tools.parent / "a run"), missing: ""}
    ran = run(megatron(plans.cluster(3)), "launch/slurm.sbatch", tools, **variables)

    assert ran.code != 0
    assert said in ran.errors
    assert ran.lines == []


def test_sbatch_from_elsewhere_is_refused(tools: Path) -> None:
    """Slurm runs a copy of the script, so only the folder of the call tells the run."""
    ran = run(megatron(plans.cluster(3)), "launch/slurm.sbatch", tools, **slurm(tools))

    assert ran.code == 1
    assert "cd RUN && sbatch launch/slurm.sbatch" in ran.errors


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("script", ["launch/torchrun.sh", "megatron/pretrain.sh"])
def test_without_slurm_the_hostfile_names_the_master(script: str, rank: str, tools: Path) -> None:
    """Each host takes its own devices; MASTER_ADDR replaces the hostfile."""
    plan = plans.plan(on=SELECTED)
    words = run(plan, script, tools, NODE_RANK=rank).calls("TORCHRUN")[0]
    named = run(plan, script, tools, NODE_RANK=rank, MASTER_ADDR="head").calls("TORCHRUN")[0]

    assert f"devices={('2,3', '0,5')[int(rank)]} " in words[0]
    assert value(words, "--master_addr") == "10.0.0.1"
    assert value(named, "--master_addr") == "head"
    assert value(words, "--nproc_per_node") == "2"


def test_under_slurm_the_devices_are_those_of_the_job(tools: Path) -> None:
    """Slurm numbers what it gave from 0: the selection is not applied a second time."""
    plan = megatron(SELECTED)
    ran = run(plan, "launch/slurm.sbatch", tools, **slurm(tools.parent / "a run"))

    assert all("devices= " in words[0] for words in ran.calls("TORCHRUN"))


def test_deepspeed_gets_the_selected_devices(tools: Path) -> None:
    """As its `--include`, with the hosts that stand in the hostfile when the script runs."""
    ran = run(plans.plan(on=SELECTED), "launch/deepspeed.sh", tools)
    words = ran.calls("DEEPSPEED")[0]

    assert ran.code == 0, ran.errors
    assert value(words, "--include") == "10.0.0.1:2,3@10.0.0.2:0,5"


def test_one_node_gets_its_selected_devices(tools: Path) -> None:
    """DeepSpeed starts the ranks of one node itself."""
    plan = plans.plan(on=plans.cluster(1, 2, hosts=HOSTS[:1]))
    words = run(plan, "launch/deepspeed.sh", tools).calls("DEEPSPEED")[0]
    ranks = run(plan, "launch/torchrun.sh", tools, NODE_RANK="7").calls("TORCHRUN")[0]

    assert value(words, "--include") == "10.0.0.1:2,3"
    assert "devices=2,3 " in ranks[0]


def test_slurm_is_told_account_partition_and_time(tools: Path) -> None:
    """As directives in front of the first command; none of them without a value."""
    told = SlurmSpec(account="proj-1", partition="gpu,long", time="1-12:00:00")
    for back_end in (megatron, lambda on: plans.plan(on=on)):
        for given in (told, SlurmSpec(partition="gpu"), None):
            texts = {a.path: a.text for a in render(back_end(plans.cluster(slurm=given)))}
            head = texts["launch/slurm.sbatch"].partition("\nset -euo pipefail")[0].splitlines()
            said = {
                key: word
                for line in head
                if line.startswith("#SBATCH --")
                for key, _, word in [shlex.split(line)[1].removeprefix("--").partition("=")]
            }
            wanted = {key: text for key, text in (given or SlurmSpec()) if text is not None}

            assert {k: v for k, v in said.items() if k in SlurmSpec.model_fields} == wanted
            assert (said["nodes"], said["gpus-per-node"], said["cpus-per-task"]) == ("2", "8", "64")


@pytest.mark.parametrize(
    ("changed", "given", "expected"),
    [
        ({"path": "../my model-7b", "hub_id": None}, None, "../my model-7b"),
        ({"path": "../my model-7b", "hub_id": None}, "other", "other"),
        ({"hub_id": "team/x-7b-100gbe"}, None, "team/x-7b-100gbe"),
        ({"path": "../13b/config.json", "hub_id": None}, "mine", "mine"),
        ({"path": "../13b/config.json", "hub_id": None}, None, None),
        ({"hub_id": None}, None, None),
    ],
    ids=["folder", "named", "hub", "config-named", "config", "size"],
)
def test_megatron_takes_the_tokenizer_that_was_named(
    changed: dict[str, str | None], given: str | None, expected: str | None, tools: Path
) -> None:
    """Byte for byte; where nothing names one it is asked for, not guessed from the model's name."""
    plan = plans.plan(on=plans.cluster(1))
    plan = plan.model_copy(update={"model": plan.model.model_copy(update=changed)})
    variables = {"DATA_PATH": "a/prefix"} | ({"TOKENIZER_MODEL": given} if given else {})
    ran = run(plan, "megatron/pretrain.sh", tools, **variables)

    if expected is None:
        assert "TOKENIZER_MODEL: set it" in ran.errors
        assert ran.lines == []
    else:
        assert value(ran.calls("TORCHRUN")[0], "--tokenizer-model") == expected
