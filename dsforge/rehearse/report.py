"""What `dsforge rehearse` reports, as typed values; no torch."""

from __future__ import annotations

from pydantic import BaseModel, Field

from dsforge.rehearse.timeline import Level, PhaseLevels, Timeline, phase_levels
from dsforge.specs import FROZEN


class OwnerBytes(BaseModel):
    """Bytes by what they are for."""

    model_config = FROZEN

    parameter: int = Field(description="Weights, or this rank's partition of them.")
    gradient: int = Field(description="Gradients, float32 copies of the step included.")
    optimizer_state: int = Field(description="Master weights and moments.")
    buffer: int = Field(description="Buffers of the engine: buckets, gathered parameters, staging.")
    activation: int = Field(description="Tensors of the model's forward and backward pass.")


class PhaseAccount(BaseModel):
    """One phase, in bytes on this rank."""

    model_config = FROZEN

    resident_bytes: int = Field(description="Device memory allocated at the end of the phase.")
    peak_bytes: int = Field(description="Peak of device memory.")
    by_owner: OwnerBytes = Field(description="The resident bytes by owner.")
    peak_by_owner: OwnerBytes = Field(description="The peak bytes by owner.")
    host_resident_bytes: int = Field(description="Tensors in host memory at the end of the phase.")
    host_peak_bytes: int = Field(description="Peak of tensors in host memory.")
    host_by_owner: OwnerBytes = Field(description="The resident bytes on the host by owner.")


class Refusal(BaseModel):
    """An objection of the engine."""

    model_config = FROZEN

    phase: str = Field(
        description="Phase in which it stopped: config, init, forward, backward or step."
    )
    message: str = Field(description="Message of the engine.")
    source: str = Field(description="File and line of DeepSpeed that raised it.")


class RehearsalDocument(BaseModel):
    """What `rehearse --json` prints. Bytes are those of one rank."""

    model_config = FROZEN

    model: str = Field(description="Name of the model.")
    world_size: int = Field(description="Ranks of the job.")
    rank: int = Field(description="The rank that was rehearsed, from 0.")
    versions: dict[str, str] = Field(description="Of deepspeed, torch and transformers.")
    ds_config: dict[str, object] = Field(description="The config that was rehearsed.")
    phases: dict[str, PhaseAccount] = Field(
        description="init; first_*: the first step; forward, backward, step: every later one. "
        "A pipeline's forward ends at its first backward pass, its backward with the last one."
    )
    refused: tuple[Refusal, ...] = Field(description="Error of the engine; none: the config runs.")
    seconds: float = Field(description="Wall time of the rehearsal.")


def phase_accounts(timeline: Timeline) -> dict[str, PhaseAccount]:
    """The account of each phase, in order."""
    device, host = phase_levels(timeline), phase_levels(timeline, on_device=False)
    return {one.name: _account(one, other) for one, other in zip(device, host, strict=True)}


def _account(device: PhaseLevels, host: PhaseLevels) -> PhaseAccount:
    return PhaseAccount(
        resident_bytes=device.resident.total,
        peak_bytes=device.peak.total,
        by_owner=_owners(device.resident),
        peak_by_owner=_owners(device.peak),
        host_resident_bytes=host.resident.total,
        host_peak_bytes=host.peak.total,
        host_by_owner=_owners(host.resident),
    )


def _owners(level: Level) -> OwnerBytes:
    return OwnerBytes(**level._asdict())
