"""Every constraint that the engines enforce, one small function each.

A rule returns a Problem or None; `check` returns all problems of a combination at once, before any
GPU is rented: the engines find most of them only after every rank is up. Each docstring names the
place in DeepSpeed 0.19, Megatron-LM or megatron-core 0.16 that enforces the rule, or says that the
limit is ours.
"""

from __future__ import annotations

from dsforge.constraints import deepspeed, inputs, megatron, sizes, trainer
from dsforge.constraints.case import Case, Rule, divisors, listed
from dsforge.constraints.sizes import tensor_sizes
from dsforge.errors import Problem
from dsforge.specs import ClusterSpec, ModelSpec, Workload
from dsforge.strategy import Strategy

RULES: tuple[Rule, ...] = (
    *(*inputs.RULES, *sizes.RULES, *deepspeed.RULES),
    *(*trainer.RULES, *megatron.RULES),
)

__all__ = ["RULES", "Case", "Rule", "check", "divisors", "listed", "tensor_sizes"]


def check(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy
) -> tuple[Problem, ...]:
    """All rules that the combination breaks; empty where it is legal."""
    case = Case(model, cluster, workload, strategy)
    found = (rule(case) for rule in RULES)
    return tuple(problem for problem in found if problem is not None)
