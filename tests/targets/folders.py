"""Files of one target for several clusters, as text."""

from __future__ import annotations

from typing import Any

import plans

from dsforge import catalog
from dsforge.errors import RenderError
from dsforge.plan import Plan
from dsforge.specs import ClusterSpec
from dsforge.targets import files_for

CLUSTERS: dict[str, ClusterSpec] = plans.CLUSTERS | {
    "infiniband": plans.cluster(
        hosts=plans.HOSTS, ssh_user="me", ssh_port=2222, inter_node=catalog.link("infiniband-400")
    ),
    "efa": plans.cluster(4, inter_node=catalog.link("efa-400"), nics_per_node=4),
    "amd": plans.cluster(2, gpu=catalog.gpu("mi300x"), inter_node=catalog.link("roce-400")),
    "gaudi": plans.cluster(2, gpu=catalog.gpu("gaudi-2")),
    "many": plans.cluster(16, 4, gpu=catalog.gpu("h100-80gb")),
}


def plan_on(cluster: ClusterSpec, **changed: Any) -> Plan:
    """A plan for a cluster."""
    return plans.plan(on=cluster, **changed)


def texts(name: str, plan: Plan) -> dict[str, str]:
    """The files of a target by name; none where it refuses the plan with a reason and a way out."""
    try:
        return {file.path.rpartition("/")[2]: file.text for file in files_for(plan, (name,))}
    except RenderError as refused:
        return {} if refused.hint else {"refused without a way out": str(refused)}
