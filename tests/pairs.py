"""The model and cluster pairs of pairs.yaml, planned as `dsforge gen --spec` plans them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dsforge.cli.asked import to_request
from dsforge.cli.flags import Flags
from dsforge.plan import Plan
from dsforge.planner import choose

PAIRS: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def plan_of(name: str, folder: Path) -> Plan:
    """The plan of a pair; `folder` takes its spec file and stands for its disk."""
    spec = folder / "spec.yaml"
    spec.write_text(yaml.safe_dump(PAIRS[name]).replace("NVME", str(folder)))
    return choose(to_request(Flags(spec=spec)))
