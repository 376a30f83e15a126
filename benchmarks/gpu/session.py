"""One run of the benchmark: what is left to measure, in the time that is left.

A configuration that fails is a result like any other. What was measured, or ran out of memory, in
an earlier run with the same file is not measured again.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dsforge.huggingface import config_from_model
from dsforge.job import TrainJob
from dsforge.render import render
from dsforge.render.job import DS_CONFIG
from dsforge.specs import ClusterSpec, DataSpec
from dsforge.units import gib
from gpu import ranks, table
from gpu.ceilings import ceilings
from gpu.configurations import Case, fits_device
from gpu.machine import hardware_of, versions
from gpu.measure import LEAST_STEPS, WARMUP_STEPS, build_adam, measure
from gpu.published import csv_text
from gpu.records import FINAL, Record, Results, read_results, record_of, write_results

CEILINGS_LIMIT_S = 60.0
FIRST_OVERHEAD_S = {"fork": 6.0, "spawn": 25.0}  # of one configuration, before one is known
HOST_SHARE = 0.8  # of RAM that a configuration may be predicted to need
MEASURE_S = 3.0  # of counted steps
BUILD_LIMIT_S = 900.0  # ending a build leaves a lock behind on which later runs hang
BUILDERS = ("FusedAdamBuilder", "CPUAdamBuilder")
TORCH_ADAM = "torch's fused AdamW in place of DeepSpeed's own, which must be compiled"


class Options(NamedTuple):
    """What the command line says about a run."""

    out: Path
    csv: Path
    minutes: float
    limit_s: float
    start: ranks.Start
    dry_run: bool
    own_adam: bool
    command: str


@dataclass(slots=True)
class Session:
    """The state of a run."""

    options: Options
    cluster: ClusterSpec
    cases: list[Case]
    deadline: float
    start: ranks.Start = field(init=False)
    results: Results = field(init=False)
    facts: dict[str, Any] = field(init=False)
    own_adam: bool = False
    overheads_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        hardware = hardware_of(self.cluster)
        self.start = self.options.start
        self.results = read_results(self.options.out, hardware)
        self.facts = {
            "versions": versions(),
            "hardware": hardware,
            "command": self.options.command,
            "dry_run": self.options.dry_run,
        }

    def run(self) -> int:
        """The exit code: 0 after everything was tried or time was up, 130 after Ctrl-C."""
        code = 0
        pending = [case for case in self.cases if not self._is_final(case)]
        print(f"{len(self.cases) - len(pending)} of {len(self.cases)} are measured already")
        try:
            if pending:
                self._measure(pending)
        except KeyboardInterrupt:
            print("stopped; run the same command again to go on")
            code = 130
        print(table.comparison(self.results))
        print(f"records: {self.options.out}\ntable for `dsforge validate`: {self.options.csv}")
        return code

    def _is_final(self, case: Case) -> bool:
        """Whether an earlier run has settled this case."""
        record = self.results.record(case.configuration.name)
        return record is not None and record.outcome in FINAL

    def _measure(self, pending: list[Case]) -> None:
        """Ceilings, then every case as time allows."""
        print("importing torch, deepspeed, transformers", flush=True)
        _quiet(dry_run=self.options.dry_run)
        if self.start == "fork":
            ranks.preload({case.model.model_type or "" for case in pending})
        if self.options.own_adam:
            self._build_adam()
        if not self.results.ceilings:
            self._measure_ceilings()
        for number, case in enumerate(pending, 1):
            left_s = self.deadline - time.monotonic()
            clock = f"{max(0, left_s) // 60:.0f}:{max(0, left_s) % 60:02.0f} left"
            print(f"[{number}/{len(pending)}, {clock}] {case.configuration.name}", flush=True)
            record = self._record(case, left_s)
            self._keep(record)
            print(f"    {table.progress(record)} ({record.wall_s:.1f} s)", flush=True)

    def _build_adam(self) -> None:
        """DeepSpeed's own Adam, or a word on why it is torch's after all."""
        print("compiling DeepSpeed's Adam; minutes the first time, do not end it", flush=True)
        task = {"builders": BUILDERS}
        ended = ranks.run(build_adam, task, ranks=1, limit_s=BUILD_LIMIT_S, start="spawn")
        self.deadline += ended.wall_s  # it happens once and is not counted
        self.own_adam = ended.outcome == "measured"
        print("compiled" if self.own_adam else f"not compiled, torch's is used: {ended.error}")

    def _measure_ceilings(self) -> None:
        """The rates of the machine; without them the run goes on."""
        limit_s = min(CEILINGS_LIMIT_S, self.deadline - time.monotonic())
        ended = self._ranks(ceilings, {"cuda": not self.options.dry_run}, limit_s)
        found = ended.ranks[0].get("ceilings")
        print(f"ceilings: {'measured' if found else ended.error} ({ended.wall_s:.1f} s)")
        if found:
            self.results = self.results.model_copy(update={"ceilings": found})

    def _record(self, case: Case, left_s: float) -> Record:
        """What came of one case."""
        settings, notes = engine_settings(case, own_adam=self.own_adam)
        more: dict[str, Any] = {"ds_config": settings, "notes": notes}
        objection = self._objection(case, left_s)
        if objection:
            return record_of(case, None, facts={**self.facts, "error": objection}, **more)
        with tempfile.TemporaryDirectory(prefix="dsforge-gpu-") as folder:
            task = written_task(case, settings, Path(folder), dry_run=self.options.dry_run)
            ended = self._ranks(measure, task, min(self.options.limit_s, left_s))
        self.overheads_s.append(ended.wall_s - sum(ended.ranks[0].get("step_s", [])))
        return record_of(case, ended, facts=self.facts, **more)

    def _objection(self, case: Case, left_s: float) -> str | None:
        """Why a case is not started; none where it may be."""
        known = sorted(self.overheads_s) or [FIRST_OVERHEAD_S[self.start]]
        steps_s = case.priced.time.step_s.likely * (WARMUP_STEPS + LEAST_STEPS)
        steps_s = steps_s if fits_device(case) else 0.0  # it ends in the first one
        if left_s < known[len(known) // 2] + steps_s:
            return "time: too little was left"
        needs = case.priced.memory.host_bytes.step
        if not self.options.dry_run and needs > HOST_SHARE * self.cluster.host_memory_bytes:
            have = gib(self.cluster.host_memory_bytes)
            return f"host memory: {gib(needs)} predicted, the machine has {have}"
        return None

    def _ranks(self, work: ranks.Work, task: dict[str, Any], limit_s: float) -> ranks.Ended:
        """Run on all ranks; where CUDA cannot be forked, now and from now on as new processes."""
        count = self.cluster.gpus
        ended = ranks.run(work, task, ranks=count, limit_s=limit_s, start=self.start)
        if ended.outcome == "bad-fork":
            print("CUDA was in use before the ranks were forked: starting new interpreters instead")
            self.start = "spawn"
            ended = ranks.run(work, task, ranks=count, limit_s=limit_s, start=self.start)
        return ended

    def _keep(self, record: Record) -> None:
        """Both files, with this record in place of an earlier one; a skip replaces nothing."""
        if record.outcome == "skipped" and self.results.record(record.name) is not None:
            return
        self.results = self.results.with_record(record)
        write_results(self.options.out, self.results)
        text = csv_text(self.results.records, self.options.out.stem.replace("_", "-"))
        self.options.csv.write_text(text, encoding="utf-8")


def engine_settings(case: Case, *, own_adam: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The ds_config that dsforge renders for the strategy, and what was changed in it."""
    text = next(file.text for file in render(case.plan) if file.path == DS_CONFIG)
    settings: dict[str, Any] = json.loads(text)
    if own_adam:
        return settings, ()
    settings["optimizer"]["params"] |= {"torch_adam": True, "fused": True}
    return settings, (TORCH_ADAM,)


def written_task(
    case: Case, settings: dict[str, Any], folder: Path, *, dry_run: bool
) -> dict[str, Any]:
    """What the ranks are told; config.json and ds_config.json lie in `folder`."""
    configuration = case.configuration
    job = TrainJob(
        model="config.json",
        random_weights=True,
        deepspeed_config="ds_config.json",
        data=DataSpec(train="random tokens"),
        sequence_length=configuration.sequence_length,
        gradient_checkpointing=configuration.recompute,
        lora=case.workload.lora,
    )
    files = {"config.json": config_from_model(case.model), "ds_config.json": settings}
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values), encoding="utf-8")
    return {
        "folder": str(folder),
        "job": job.model_dump(mode="json"),
        "cuda": not dry_run,
        "card_bytes": case.cluster.gpu.memory_bytes,
        "global_batch_size": case.workload.global_batch_size,
        "sequence_length": configuration.sequence_length,
        "vocab_size": case.model.vocab_size,
        "seconds": 0.1 if dry_run else MEASURE_S,
    }


def _quiet(*, dry_run: bool) -> None:
    """Variables that must stand before the libraries are imported."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # only DeepSpeed's Muon would compile, on import
    if dry_run:
        os.environ |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
