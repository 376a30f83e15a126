"""RAM of a node, its disk and the size of a checkpoint, worked out."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.estimate import host
from dsforge.estimate.params import lora_parameters, parameters
from dsforge.estimate.states import Load, shares
from dsforge.explain.sheet import Line, Sheet
from dsforge.plan import Plan
from dsforge.strategy import FULLY_SHARDED

RAM = "estimate/host.py: what all ranks of a node hold at the same time"
PINNED = f"{RAM}; torch's host allocator rounds page-locked buffers up to powers of two"


def take_host(sheet: Sheet, plan: Plan, load: Load) -> None:
    """Figures of the four phases, of the disk, of a checkpoint."""
    model, on_cpu = plan.model, plan.cluster.gpu.is_cpu
    lora = plan.workload.lora if plan.workload.method == "lora" else None
    whole = parameters(model)
    trained = lora_parameters(model, lora) if lora else whole
    sheet.give(
        "exact count (estimate/params.py)",
        "elements",
        model_parameters=whole,
        all_trained_parameters=trained,
        adapter_total=trained if lora else 0,
    )
    sheet.give(
        RAM,
        "bytes",
        process_bytes=host.CPU_PROCESS_BYTES if on_cpu else host.PROCESS_BYTES,
        shard_file_bytes=host.SHARD_BYTES,
    )
    group = shares(plan.strategy)
    sheet.give(
        "of the stage with the most off its device (worked out as the others' shard_parameters)",
        "elements",
        hosted_shard=group.of(load.held),
        hosted_trained_shard=group.of_trainable(load.held),
        hosted_parameters=load.held.total,
    )
    rounding = 0.0 if on_cpu else sum(host.pinned_bytes(b) - b for b in load.kept.pinned)
    sheet.give(PINNED, "bytes", pinned_rounding_bytes=rounding)
    sheet.work_out("host memory of a node", tuple(_lines(plan)))


def _offloaded(plan: Plan) -> tuple[str, str]:
    """Bytes of one rank in RAM, and on disk."""
    optimizer, weights = plan.strategy.offload_optimizer, plan.strategy.offload_parameters
    states = "(master_bytes + moments * moment_bytes + 4) * hosted_trained_shard"
    ram: list[str] = []
    disk: list[str] = []
    if optimizer != "none":
        sharded = plan.strategy.zero_stage == FULLY_SHARDED
        wide = sharded and plan.strategy.runs_as.gradients == "fp32"
        if plan.strategy.runs_as.offload_ratio < 1:
            states += " * offloaded_share"
        ram.append(f"{4 if wide else 'element_bytes'} * hosted_trained_shard")
        (disk if optimizer == "nvme" else ram).append(states)
    if weights != "none":
        shard = "hosted_shard" if plan.strategy.zero_stage == FULLY_SHARDED else "hosted_parameters"
        (disk if weights == "nvme" else ram).append(f"element_bytes * {shard}")
    return " + ".join(ram) or "0", " + ".join(disk) or "0"


def _lines(plan: Plan) -> Iterator[Line]:
    strategy = plan.strategy
    ram, disk = _offloaded(plan)
    sharded = strategy.zero_stage == FULLY_SHARDED
    yield Line("offloaded_bytes", "bytes", ram, "states that a rank keeps in RAM")
    yield Line("idle_bytes", "bytes", "gpus_per_node * process_bytes", RAM)
    share = " / (tp * pp * cp)" if strategy.back_end == "megatron" else ""
    read = f"gpus_per_node * element_bytes * model_parameters{share}"
    read = "min(element_bytes * model_parameters, shard_file_bytes)" if sharded else read
    why = f"{RAM}; ZeRO-3 reads file by file"
    if plan.workload.in_4_bits:
        read = "gpus_per_node * min(element_bytes * model_parameters, shard_file_bytes)"
        why = f"{RAM}; packed into 4 bits on the device, tensor by tensor"
    yield Line("host_load", "bytes", f"idle_bytes + {read}", why)
    step = "idle_bytes + gpus_per_node * (offloaded_bytes + pinned_rounding_bytes)"
    yield Line("host_step", "bytes", step, PINNED)
    begin = f"host_step + {read}" if strategy.offloads and ram != "0" else "host_step"
    yield Line("host_init", "bytes", begin, RAM)
    gathered = " + element_bytes * model_parameters" if sharded else ""
    why = f"{RAM}; under ZeRO-3 one rank gathers the weights"
    yield Line("host_save", "bytes", f"host_step{gathered}", why)
    yield Line("nvme_of_node", "bytes", f"gpus_per_node * ({disk})", "states on the node's disk")
    frozen = "" if plan.workload.in_4_bits else "model_parameters + "
    saved = f"element_bytes * ({frozen}adapter_total)"
    saved += " + (master_bytes + moments * moment_bytes) * all_trained_parameters"
    yield Line("checkpoint", "bytes", saved, "weights, master weights and moments of all ranks")
