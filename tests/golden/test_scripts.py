"""Every generated script as bash and shellcheck read it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import plans

from dsforge.artifacts import write_all
from dsforge.render import render
from dsforge.specs import Host, SlurmSpec

BASH = shutil.which("bash") or "/bin/bash"


def test_scripts_pass_shellcheck(tmp_path: Path) -> None:
    """`bash -n` and shellcheck find nothing in any script of any case."""
    hosts = (Host(address="10.0.0.1", slots=2, devices=(2, 3)), *plans.HOSTS[1:])
    told = SlurmSpec(account="proj-1", partition="gpu", time="1-0")
    clusters = plans.CLUSTERS | {"selected": plans.cluster(2, 2, hosts=hosts, slurm=told)}
    for name, cluster in clusters.items():
        write_all(render(plans.plan(on=cluster)), tmp_path / name)
        if not cluster.gpu.is_cpu:
            plan = plans.plan(on=cluster, choice=plans.megatron_strategy(cluster))
            write_all(render(plan), tmp_path / f"{name}-megatron")
    scripts = [*tmp_path.rglob("*.sh"), *tmp_path.rglob("*.sbatch")]

    assert len(scripts) >= 3 * len(clusters)
    for script in scripts:
        subprocess.run([BASH, "-n", script], check=True)
    places = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    checker = shutil.which("shellcheck", path=places)
    assert checker, "shellcheck is part of the test tools (`pip install '.[test]'`)"
    subprocess.run([checker, *scripts], check=True)
