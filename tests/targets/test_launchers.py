"""Launchers among the targets, and the page of all targets."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import plans
import pytest
from folders import CLUSTERS, plan_on, texts

from dsforge import process
from dsforge.errors import RenderError
from dsforge.specs import Host
from dsforge.targets import BY_NAME, TARGETS, files_for, lost_in

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_targets_is_made_from_them() -> None:
    """docs/targets.md is what scripts/targets.py writes."""
    process.run((sys.executable, "scripts/targets.py", "--check"), timeout_s=60, cwd=ROOT).check(
        "scripts/targets.py --check (run it without --check)"
    )


def test_a_proof_names_its_test() -> None:
    """Every file that a row names as its test exists, and a proof has one."""
    for target in TARGETS:
        named = re.findall(r"tests/[\w/]+\.py", target.proved_by)
        assert all((ROOT / name).is_file() for name in named), target.name
        assert named or not target.proof, target.name


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_scripts_of_targets_pass_shellcheck(cluster: str, tmp_path: Path) -> None:
    """`shellcheck` finds nothing in any script of any target."""
    checked = 0
    for name in BY_NAME:
        for file, text in texts(name, plan_on(CLUSTERS[cluster])).items():
            if text.startswith("#!"):
                script = tmp_path / f"{name}-{file}"
                script.write_text(text)
                checked += 1
    done = process.run(("shellcheck", *map(str, tmp_path.iterdir())), timeout_s=60)

    assert done.code == 0, done.output
    assert checked >= 10


@pytest.mark.parametrize(
    ("nodes", "batch", "expected"),
    [(1, 128, "1:1"), (4, 128, "4:4"), (2, 128, "1:2"), (4, 96, "1:4"), (3, 48, "1:3")],
)
def test_elastic_ranges_keep_the_batch_whole(nodes: int, batch: int, expected: str) -> None:
    """Every count in the range of torchrun divides the global batch; the others are named."""
    on = plans.cluster(nodes)
    steps = batch // on.gpus // 2
    if batch % on.gpus or not steps:
        steps = 1
    plan = plan_on(
        on, micro_batch_size=batch // on.gpus // steps, gradient_accumulation_steps=steps
    )
    first, last = map(int, expected.split(":"))
    whole = plan.strategy.global_batch_size

    assert f"--nnodes {expected} " in texts("torchrun-elastic", plan)["launch.sh"]
    assert all(whole % (count * 8) == 0 for count in range(first, last + 1))
    assert first == 1 or whole % ((first - 1) * 8)
    assert bool(lost_in(plan, "torchrun-elastic")) == (first > 1)


def test_chosen_devices_are_refused() -> None:
    """Launchers that cannot select devices of a host say so, and none starts on others."""
    hosts = (Host(address="10.0.0.1", slots=2, devices=(2, 3)), *plans.HOSTS[1:])
    plan = plan_on(plans.cluster(2, 2, hosts=hosts))
    for name in (
        "openmpi",
        "mpich",
        "intel-mpi",
        "kubernetes",
        "mpijob",
        "docker-compose",
        "slurm",
    ):
        with pytest.raises(RenderError, match="certain devices"):
            files_for(plan, (name,))


def test_horovod_names_what_it_cannot_do() -> None:
    """ZeRO and offload are named, in the answer and in the script."""
    plan = plan_on(plans.cluster(), zero_stage=3, offload_optimizer="cpu")
    said = lost_in(plan, "horovod")

    assert any("ZeRO stage 3" in each for each in said)
    assert any("offload of optimizer states" in each for each in said)
    assert all(each in texts("horovod", plan)["launch.sh"] for each in said)
