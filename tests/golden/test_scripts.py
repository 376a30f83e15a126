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

BASH = shutil.which("bash") or "/bin/bash"


def test_scripts_pass_shellcheck(tmp_path: Path) -> None:
    """`bash -n` and shellcheck find nothing in any script of any case."""
    for name, cluster in plans.CLUSTERS.items():
        write_all(render(plans.plan(on=cluster)), tmp_path / name)
    scripts = [*tmp_path.rglob("*.sh"), *tmp_path.rglob("*.sbatch")]

    assert len(scripts) >= 3 * len(plans.CLUSTERS)
    for script in scripts:
        subprocess.run([BASH, "-n", script], check=True)
    places = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    checker = shutil.which("shellcheck", path=places)
    assert checker, "shellcheck is part of the test tools (`pip install '.[test]'`)"
    subprocess.run([checker, *scripts], check=True)
