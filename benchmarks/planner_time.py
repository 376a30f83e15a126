"""Seconds of plans and of inverse questions after start, and how they grow with the cluster."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

from dsforge import catalog
from dsforge.plan import Request
from dsforge.planner import choose, inverse, search
from dsforge.planner.inverse import Found
from dsforge.reading.sizes import llama_like
from dsforge.specs import ClusterSpec, Workload

RUNS = 5
QUESTION_LIMIT_S = 1.0


class Case(NamedTuple):
    """A model on nodes of eight cards, and the limit that was set for it."""

    model: str
    gpus: int
    gpu: str
    links: tuple[str, str]
    batch: int
    tokens: int
    limit_s: float | None = None

    def request(self) -> Request:
        """What the planner is asked: nothing is fixed, both back ends."""
        return Request(
            model=catalog.model(self.model),
            cluster=ClusterSpec(
                nodes=self.gpus // 8,
                gpus_per_node=8,
                gpu=catalog.gpu(self.gpu),
                intra_node=catalog.link(self.links[0]),
                inter_node=catalog.link(self.links[1]),
                nics_per_node=8,
                host_memory_bytes=1024**4,
                cpu_cores=96,
            ),
            workload=Workload(
                sequence_length=self.tokens, global_batch_size=self.batch, learning_rate=1e-5
            ),
        )


A100 = ("a100-80gb", ("nvlink-3", "infiniband-200"))
H100 = ("h100-80gb", ("nvlink-4", "infiniband-400"))
CASES = (
    Case("llama-2-7b", 8, *A100, 64, 4096, 0.1),
    Case("llama-3.1-70b", 64, *H100, 512, 8192),
    Case("gpt3-175b", 1024, *A100, 1536, 2048, 1.0),
    Case("mixtral-8x22b", 512, *H100, 1024, 4096),
    Case("deepseek-v3", 2048, *H100, 15360, 4096),
    Case("llama-3.1-405b", 16384, *H100, 2048, 8192),
    Case("megatron-1t", 16384, *A100, 3072, 2048, 3.0),
    *(Case("gpt3-175b", gpus, *A100, 1536, 2048) for gpus in (64, 256, 4096, 16384)),
)


def timed(case: Case) -> dict[str, Any]:
    """Candidates of a case and seconds of its plan, after one run that fills the caches."""
    request = case.request()
    found, chosen, times = search(request), choose(request), []
    for _ in range(RUNS):
        begin = time.perf_counter()
        choose(request)
        times.append(time.perf_counter() - begin)
    return {
        "model": case.model,
        "gpus": case.gpus,
        "candidates": found.candidates,
        "choose_median_s": round(median(times), 3),
        "choose_fastest_s": round(min(times), 3),
        "search_s": round(found.seconds, 3),
        "limit_s": case.limit_s,
        "chosen": chosen.strategy.label(),
    }


def largest(request: Request) -> Found:
    """The largest model of the catalog, and the largest well-shaped one."""
    known = tuple(catalog.model(name) for name in catalog.model_names())
    return inverse.largest_model(request, known, llama_like)


QUESTIONS: dict[str, Callable[[Request], Found]] = {
    "micro-batch": inverse.largest_micro_batch,
    "seq-len": inverse.longest_sequence,
    "gpus": inverse.fewest_gpus,
    "model": largest,
}
ASKED = {
    "8b on 8": Case("llama-3.1-8b", 8, *A100, 64, 4096),
    "70b on 128": Case("llama-3.1-70b", 128, *A100, 128, 4096),
}


def answered(question: str, asked: str) -> dict[str, Any]:
    """Seconds of an inverse question, `estimate --find`."""
    request, times = ASKED[asked].request(), []
    for _ in range(RUNS):
        begin = time.perf_counter()
        found = QUESTIONS[question](request)
        times.append(time.perf_counter() - begin)
    return {
        "question": question,
        "asked": asked,
        "answer": found.answer.name,
        "median_s": round(median(times), 3),
        "fastest_s": round(min(times), 3),
        "limit_s": QUESTION_LIMIT_S,
    }


def main() -> int:
    """Print the figures as JSON; exit code 1 where a median is above its limit."""
    plans = [timed(case) for case in CASES]
    questions = [answered(question, asked) for question in QUESTIONS for asked in ASKED]
    head = {"python": sys.version.split()[0], "runs": RUNS}
    print(json.dumps({**head, "plans": plans, "questions": questions}, indent=2))
    late = [row for row in plans if row["limit_s"] and row["choose_median_s"] > row["limit_s"]]
    late += [row for row in questions if row["median_s"] > row["limit_s"]]
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
