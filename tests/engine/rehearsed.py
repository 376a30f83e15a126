"""Rehearsals of tiny models for tests, in a process of their own.

A fake GPU stays a device of torch for as long as its process lives, so tests that use real
tensors never share a process with it.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal, NamedTuple

from dsforge import catalog
from dsforge.exact.peaks import MicroBatch, phase_peaks
from dsforge.exact.residency import EngineRank, resident
from dsforge.exact.tensors import parameter_tensors
from dsforge.huggingface import config_from_model, tiny
from dsforge.rehearse.report import PhaseAccount
from dsforge.specs import LoraSpec, ModelSpec
from dsforge.strategy import ZeroStage

Precision = Literal["bf16", "bf16_states", "fp16", "fp32"]
ELEMENT_BYTES = {"bf16": 2, "bf16_states": 2, "fp16": 2, "fp32": 4}
IN_BF16 = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
STAGES: tuple[ZeroStage, ...] = (0, 1, 2, 3)
PRECISIONS: tuple[Precision, ...] = ("bf16", "bf16_states", "fp16", "fp32")
WORLDS = (1, 2, 3, 8, 64)
LORA = LoraSpec(rank=4)
BUCKET, SMALL, SAMPLES, TOKENS = 20_000, 1_000, 2, 16
OWNERS = ("parameter", "gradient", "optimizer_state", "buffer")
HEAD = 32  # of a tiny model; the rotary frequencies are half of it, kept twice


class Proof(NamedTuple):
    """Where the simulated resident bytes differ, its peaks' errors as fractions, the phases."""

    differences: dict[str, Any]
    peak_errors: dict[str, float]
    phases: tuple[str, ...]


class Cell(NamedTuple):
    """One way to run a tiny Llama."""

    stage: ZeroStage
    offload: bool
    precision: Precision
    accumulation: int
    tied: bool
    lora: bool
    world: int

    @property
    def in_bf16(self) -> bool:
        """Whether the optimizer steps weights of 16 bits."""
        return self.precision == "bf16_states"

    @property
    def rank(self) -> int:
        """One of the ranks, another one in every other cell: the first, the last, one between."""
        return (0, self.world - 1, self.world // 2)[sum(map(bool, self)) % 3]

    @property
    def name(self) -> str:
        """`zero3-cpu-bf16-x4-tied-lora-8`."""
        parts = [f"zero{self.stage}", "cpu" if self.offload else "gpu", self.precision]
        parts += [f"x{self.accumulation}", "tied" if self.tied else "untied"]
        return "-".join([*parts, "lora" if self.lora else "full", f"{self.rank}of{self.world}"])

    def model(self) -> ModelSpec:
        """A Llama with an odd vocabulary, so that nothing divides by itself."""
        model = tiny(catalog.model("llama-2-7b"))
        return model.model_copy(update={"tied_embeddings": self.tied, "vocab_size": 513})

    def settings(self) -> dict[str, Any]:
        """The ds_config."""
        zero: dict[str, Any] = {
            "stage": self.stage,
            "overlap_comm": True,
            "reduce_bucket_size": BUCKET,
            "allgather_bucket_size": BUCKET,
            "stage3_param_persistence_threshold": SMALL,
        }
        if self.offload:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": SAMPLES,
            "gradient_accumulation_steps": self.accumulation,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "zero_optimization": zero,
        }
        if self.precision == "fp32":
            return config
        if self.in_bf16:
            return config | {"bf16": {"enabled": True, **IN_BF16}}
        return config | {self.precision: {"enabled": True}}

    def engine(self) -> EngineRank:
        """The same for the simulator."""
        return EngineRank(
            tensors=parameter_tensors(self.model(), LORA if self.lora else None),
            element_bytes=ELEMENT_BYTES[self.precision],
            zero_stage=self.stage,
            world_size=self.world,
            rank=self.rank,
            offload_optimizer=self.offload,
            accumulates=self.accumulation > 1,
            master_bytes=2 if self.in_bf16 else 4,
            reduce_bucket_size=BUCKET,
            overlap_comm=True,
            persistence_threshold=SMALL,
        )

    def batch(self) -> MicroBatch:
        """One micro batch of it."""
        return MicroBatch(self.model(), SAMPLES, TOKENS, LORA if self.lora else None)

    def rotary_bytes(self) -> int:
        """Bytes of the model's own buffers: `zero.Init` makes them in the compute precision."""
        size = ELEMENT_BYTES[self.precision] if self.stage == STAGES[-1] else 4
        return 2 * (HEAD // 2) * size


def cells() -> list[Cell]:
    """Every legal cell: DeepSpeed has neither offload nor bf16 states without ZeRO."""
    axes = (STAGES, (False, True), PRECISIONS, (1, 4), (True, False), (False, True), WORLDS)
    every = (Cell(*cell) for cell in itertools.product(*axes))
    return [cell for cell in every if cell.stage or not (cell.offload or cell.in_bf16)]


def rehearsed(cell: Cell) -> dict[str, Any]:
    """Phase -> account of a cell's rehearsal, or `refused`. Runs in the process of its own."""
    from dsforge.rehearse.rehearsed_job import RehearsedJob
    from dsforge.rehearse.report import phase_accounts
    from dsforge.rehearse.run import rehearse

    job = RehearsedJob(config_from_model(cell.model()), TOKENS, lora=LORA if cell.lora else None)
    found = rehearse(job, cell.settings(), world_size=cell.world, rank=cell.rank)
    if found.refused:
        return {"refused": [refusal.model_dump() for refusal in found.refused]}
    return phase_accounts(found.timeline)


def proof(cell: Cell) -> Proof:
    """How the simulator compares with the engine in one cell. Runs in the process of its own."""
    accounts = rehearsed(cell)
    if "refused" in accounts:
        return Proof({"refused": accounts["refused"]}, {}, ())
    phases = tuple(name for name in accounts if not name.startswith("first_"))
    found: dict[str, Any] = {}
    for phase in phases:
        found |= differences(cell, phase, accounts[phase])
    own = cell.rotary_bytes()
    errors = {
        phase: (fullest.peak + own) / accounts[phase].peak_bytes - 1
        for phase, fullest in phase_peaks(cell.engine(), cell.batch()).items()
    }
    return Proof(found, errors, phases)


def differences(cell: Cell, phase: Any, account: PhaseAccount) -> dict[str, tuple[int, int]]:
    """Owner -> simulated and real resident bytes, where they differ."""
    told = resident(cell.engine(), phase)
    own = cell.rotary_bytes()
    device = account.by_owner.model_copy(update={"buffer": account.by_owner.buffer - own})
    places = (("device", told.device, device), ("host", told.host, account.host_by_owner))
    return {
        f"{phase} {place} {owner}": (getattr(simulated, owner), getattr(engine, owner))
        for place, simulated, engine in places
        for owner in OWNERS
        if getattr(simulated, owner) != getattr(engine, owner)
    }


def played(
    settings: dict[str, Any],
    model: ModelSpec,
    world: int,
    recompute: bool = False,
    *,
    rank: int = 0,
) -> dict[str, Any]:
    """Phases and refusals of a rehearsal, as JSON has them. Runs in the process of its own."""
    from dsforge.rehearse.rehearsed_job import RehearsedJob
    from dsforge.rehearse.report import phase_accounts
    from dsforge.rehearse.run import rehearse

    job = RehearsedJob(config_from_model(model), TOKENS, recompute)
    found = rehearse(job, settings, world_size=world, rank=rank)
    accounts = phase_accounts(found.timeline)
    return {
        "phases": {name: account.model_dump() for name, account in accounts.items()},
        "refused": [refusal.model_dump() for refusal in found.refused],
    }
