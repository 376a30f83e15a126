"""Devices: the accelerators of the hostfile exist, are alike, and are healthy."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.hostfile import Entry
from dsforge.preflight.case import Case, check
from dsforge.preflight.checks.install import differing
from dsforge.preflight.job_files import UNLISTED

# nvml.h, nvmlClocksEventReasons: what is not the choice of a person or of an idle card.
THROTTLES = {
    0x8: "hardware slowdown",
    0x20: "temperature, by software",
    0x40: "temperature, by hardware",
    0x80: "power brake",
}
# Oldest Linux driver for each major CUDA release (CUDA compatibility guide, table 2).
OLDEST_DRIVERS = {"11": (450, 80), "12": (525, 60), "13": (580, 65)}
NO_CARD = "check `nvidia-smi` there, or set DS_ACCELERATOR=cpu for CPU ranks"
SAME_SLOTS = "give the number that the plan was made for, or plan again: `dsforge gen`"


@check(
    "slots-missing",
    "devices",
    "error",
    why="A rank is started for every slot; a rank without an accelerator ends with `invalid device "
    "ordinal`, and the others wait.",
)
def slots_missing(case: Case) -> Iterator[Hit]:
    """More slots in the hostfile than the host has accelerators, or cores for CPU ranks."""
    for entry in case.job.entries:
        facts = case.hosts.get(entry.address)
        if facts is None:
            continue
        have, what = len(facts.gpus), "GPUs"
        if case.job.on_cpu:
            have, what = facts.cpu_cores, "cores for CPU ranks"
        if entry.slots > have:
            note = f" ({facts.gpu_note})" if facts.gpu_note and not case.job.on_cpu else ""
            message = f"{_planned_ranks(case, entry)}, but the host has {have} {what}{note}"
            fix = f"write `{entry.address} slots={have}`" if have else NO_CARD
            yield Hit((entry.address,), message, f"{fix}; then plan again: `dsforge gen`")


def _planned_ranks(case: Case, entry: Entry) -> str:
    """How many ranks will start on a host, and where that number comes from."""
    if entry.place not in UNLISTED:
        return f"hostfile gives it slots={entry.slots}"
    who = "the plan has" if case.job.plan else "a run starts at least"
    return f"{who} {entry.slots} rank{'s' * (entry.slots > 1)} on each host"


@check(
    "slots-unplanned",
    "devices",
    "error",
    why="The batch sizes match the planned number of ranks; with another number DeepSpeed "
    "fails after all ranks have started.",
)
def slots_unplanned(case: Case) -> Iterator[Hit]:
    """Slots or hosts that are not what the plan was made for."""
    if case.job.plan is None or not case.job.entries:
        return
    cluster = case.job.plan.cluster
    planned = {host.address: host.listed_slots for host in cluster.hosts}
    for entry in case.job.entries:
        slots = planned.get(entry.address, cluster.gpus_per_node)
        if entry.slots != slots:
            message = f"hostfile gives it slots={entry.slots}, the plan {slots}"
            fix = f"write `{entry.address} slots={slots}`: {SAME_SLOTS}"
            yield Hit((entry.address,), message, fix)
    if len(case.job.entries) != cluster.nodes and not case.job.local:
        message = f"hostfile names {len(case.job.entries)} hosts, the plan is for {cluster.nodes}"
        yield Hit(tuple(e.address for e in case.job.entries), message, SAME_SLOTS)


@check(
    "cards-differ",
    "devices",
    "warning",
    why="Every step waits for the slowest GPU, and the smallest memory limits what fits.",
)
def cards_differ(case: Case) -> Iterator[Hit]:
    """Hosts with other cards or another driver than most."""
    if case.job.on_cpu:
        return
    cards = {h: ", ".join(sorted({g.name for g in f.gpus})) for h, f in case.hosts.items()}
    for hosts, own, usual in differing(cards):
        yield Hit(hosts, f"has {own}, the others {usual}", "use hosts of one kind")
    drivers = {h: f.gpus[0].driver for h, f in case.hosts.items() if f.gpus}
    for hosts, own, usual in differing(drivers):
        yield Hit(hosts, f"has driver {own}, the others {usual}", f"install driver {usual} there")


@check(
    "driver-old",
    "devices",
    "error",
    why="torch then finds no CUDA at all: `The NVIDIA driver on your system is too old`.",
)
def driver_old(case: Case) -> Iterator[Hit]:
    """A driver that is too old for the CUDA release of torch."""
    for host, facts in case.hosts.items():
        oldest = OLDEST_DRIVERS.get(facts.interpreter.cuda.partition(".")[0])
        if oldest is None or not facts.gpus:
            continue
        parts = [int(part) for part in facts.gpus[0].driver.split(".") if part.isdecimal()]
        if parts and tuple(parts[:2]) < oldest:
            needed = ".".join(map(str, oldest))
            message = f"driver {facts.gpus[0].driver} is too old for CUDA {facts.interpreter.cuda}"
            yield Hit((host,), message, f"install driver {needed} or newer there")


@check(
    "ecc-errors",
    "devices",
    "error",
    why="An uncorrectable memory error ends the process that reads the cell, and usually occurs "
    "again.",
)
def ecc_errors(case: Case) -> Iterator[Hit]:
    """A card with uncorrected memory errors."""
    for host, facts in case.hosts.items():
        for number, card in enumerate(facts.gpus):
            if card.ecc_errors:
                message = f"GPU {number} has {card.ecc_errors} uncorrected ECC errors"
                fix = f"drain the host and reset the card: `nvidia-smi --gpu-reset -i {number}`"
                yield Hit((host,), message, fix)


@check(
    "throttled",
    "devices",
    "warning",
    why="A throttled card slows down every rank of the job.",
)
def throttled(case: Case) -> Iterator[Hit]:
    """A card that is throttled for temperature or power."""
    for host, facts in case.hosts.items():
        for number, card in enumerate(facts.gpus):
            reasons = [text for bit, text in THROTTLES.items() if card.throttle & bit]
            if reasons:
                message = f"GPU {number} is throttled: {', '.join(reasons)}"
                yield Hit(
                    (host,), message, "check its cooling and power: `nvidia-smi -q -d PERFORMANCE`"
                )
