"""The plans of the golden run folders, from their spec.yaml."""

from __future__ import annotations

from pathlib import Path

import plans
import yaml

from dsforge import catalog
from dsforge.estimate.dropout import drops
from dsforge.plan import Plan
from dsforge.programs import way_of
from dsforge.specs import Host, LoraSpec

CASES = sorted(p.parent for p in Path(__file__).parent.glob("golden/*/spec.yaml"))


def plan_of(case: Path) -> Plan:
    """The plan that spec.yaml describes; prices are made up, so that only rendering is tested."""
    spec = yaml.safe_load((case / "spec.yaml").read_text())
    changed = spec["cluster"]
    names = {"gpu": catalog.gpu, "intra_node": catalog.link, "inter_node": catalog.link}
    for key, read in names.items():
        if isinstance(changed.get(key), str):
            changed[key] = read(changed[key])
    if "hosts" in changed:
        changed["hosts"] = tuple(Host(**host) for host in changed["hosts"])
    on = plans.cpu_cluster(**changed) if spec.get("cpu") else plans.cluster(**changed)
    work = spec.get("workload", {})
    if "lora" in work:
        work["lora"] = LoraSpec(**work["lora"])
    make = plans.megatron_strategy if spec.get("megatron") else plans.deepspeed_strategy
    choice = make(on, **spec.get("strategy", {}))
    program = spec.get("program")
    if program is not None:  # a plan of a program has no variants
        way = way_of(program, stage=choice.zero_stage)
        assert way is not None
        run = way.execution.model_copy(update={"program": program})
        choice = choice.model_copy(update={"execution": run})
    elif choice.back_end == "deepspeed" and drops(catalog.model(spec["model"])):
        run = choice.runs_as.model_copy(update={"dropout": True})
        choice = choice.model_copy(update={"execution": run})
    made = plans.plan(spec["model"], on=on, work=plans.workload(**work), choice=choice)
    return made if program is None else made.model_copy(update={"variants": ()})
