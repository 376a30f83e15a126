"""Slow steps beside the plan: named as the network where a slower network explains them."""

from __future__ import annotations

from functools import cache

import planning
import pytest

from dsforge.diagnose import Cause, diagnose_stream, diagnose_text
from dsforge.diagnose.slow_network import rate_of, step_alone, step_at
from dsforge.plan import Plan
from dsforge.planner import choose
from dsforge.specs import Host

SLOW = 6.25e6  # 50 Mbit/s
LINES = {
    "dsforge": "step {n}/10  loss 2.1  lr 1.00e-05  100 tokens/s  {s:.4f} s/step  3 min left\n",
    "trainer": "{{'train_runtime': 99.1, 'train_samples_per_second': {rate:.6f}, 'epoch': {n}}}\n",
    "timer": "[INFO] epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=1.0, "
    "CurrSamplesPerSec={rate:.9f}, MemAllocated=1.0GB\n",
}


@cache
def plan(nodes: int = 2) -> Plan:
    """GPT-2 on nodes of one card, gradients over 10 Gbit/s Ethernet; named hosts are all used."""
    on = planning.cluster(nodes, 1, inter="10gbe")
    hosts = tuple(Host(address=f"10.0.0.{n}", slots=1) for n in range(1, nodes + 1))
    on = on.model_copy(update={"hosts": hosts})
    request = planning.ask("gpt2", on, planning.workload(512, 16), zero_stage=2)
    return choose(request)


def log(step_s: float, kind: str = "dsforge", first_s: float | None = None) -> str:
    """Ten steps of that length, the first of another."""
    taken = [first_s or step_s, *[step_s] * 9]
    return "".join(LINES[kind].format(n=n, s=s, rate=16 / s) for n, s in enumerate(taken, start=1))


def found(text: str, given: Plan) -> tuple[Cause, ...]:
    """The causes beside a plan."""
    return diagnose_stream([text.encode()], "run.log", given)


@pytest.mark.parametrize("kind", LINES)
def test_a_slow_network_is_named_with_both_rates(kind: str) -> None:
    """Steps as long as on 50 Mbit/s: the rate is found again, beside the planned and needed one."""
    text = log(step_at(plan(), SLOW), kind)

    (cause,) = found(text, plan())

    assert cause.rule == "slow-network"
    assert "as on a network of 50 Mbit/s" in cause.message
    assert "counts on 10 Gbit/s and needs 6 Gbit/s" in cause.message
    assert "one node alone takes" in cause.message
    assert "dsforge preflight" in cause.fix
    assert len(cause.evidence) == 4


def test_without_a_plan_nothing_is_slow() -> None:
    """How long a step should take is not in the log."""
    assert diagnose_text(log(step_at(plan(), SLOW))) == ()


@pytest.mark.parametrize("step_s", [1.0, 1.4], ids=["as-planned", "a-little-slower"])
def test_steps_near_the_plan_are_well(step_s: float) -> None:
    """What the interval of the plan nearly allows is no finding; nor is a slow first step."""
    text = log(step_s * plan().choice.time.step_s.high, first_s=300.0)

    assert found(text, plan()) == ()


def test_one_node_has_no_network_to_blame() -> None:
    """Slow steps on one node have another cause."""
    assert found(log(100 * plan(1).choice.time.step_s.high), plan(1)) == ()


def test_no_network_is_that_slow() -> None:
    """Steps that no rate explains are not put down to the network."""
    assert found(log(1e7), plan()) == ()


def test_an_error_stands_before_the_pace() -> None:
    """A run that failed on a slow network is told both, the failure first."""
    failure = "RuntimeError: [Errno 28] No space left on device\n"
    causes = found(log(step_at(plan(), SLOW)) + failure, plan())

    assert [cause.rule for cause in causes] == ["disk-full", "slow-network"]


def test_the_rate_from_which_two_nodes_pay_is_told() -> None:
    """At the rate that is said, two nodes take as long as one."""
    alone = step_alone(plan())

    assert alone is not None
    worth = rate_of(plan(), alone)
    assert worth is not None
    assert worth > SLOW
    assert step_at(plan(), worth) == pytest.approx(alone, rel=1e-3)
