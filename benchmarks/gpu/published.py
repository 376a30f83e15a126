"""Records as a table in the columns of published measurements, which `dsforge validate` reads.

A record becomes one row for each memory counter, because a row has one memory: the tag `mem=` in
its notes says which. The step time stands in the first of them, so that it is scored once.
"""

from __future__ import annotations

import csv
import io

from dsforge.estimate.params import parameters
from dsforge.specs import ModelSpec
from dsforge.units import GIB
from gpu.records import COUNTERS, Record

COLUMNS = (
    *("id", "source", "model_name", "params_b", "layers", "hidden", "heads", "kv_heads"),
    *("ffn_hidden", "vocab", "seq_len", "gpu_type", "gpus", "gpus_per_node", "framework"),
    *("dp", "tp", "pp", "cp", "vpp_or_interleave", "ep", "zero_stage_or_sharding"),
    *("sequence_parallel", "recompute", "offload", "precision", "micro_batch", "global_batch"),
    *("peak_mem_gib", "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "hfu"),
    "notes",
)
TAGS = {
    "allocated": "mem=max over ranks of torch max_memory_allocated",
    "reserved": "mem=max over ranks of torch max_memory_reserved",
    "device": "mem=nvidia-smi view: total less free of the device, max over ranks",
}
DRY_TAG = "mem=peak resident memory of a CPU rank"
OFFLOADS = {"none": "none", "optimizer": "cpu (optimizer)", "everything": "cpu (params+optimizer)"}


def csv_text(records: tuple[Record, ...], name: str) -> str:
    """The table of all measured records; `name` begins the ids and is the source."""
    out = io.StringIO(newline="")
    table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    table.writeheader()
    number = 0
    for record in records:
        timed = False
        for counter in COUNTERS:
            peak = record.measured_bytes(counter)
            if peak is None:
                continue
            number += 1
            row = _row(record, counter, peak, with_time=not timed)
            table.writerow({"id": f"{name}-{number:04d}", "source": f"dsforge {name}", **row})
            timed = True
    return out.getvalue()


def _row(record: Record, counter: str, peak_bytes: int, *, with_time: bool) -> dict[str, object]:
    """One row without id and source."""
    model = ModelSpec.model_validate(record.plan["model"])
    strategy, workload = record.plan["strategy"], record.plan["workload"]
    ranks = strategy["layout"]["data_parallel_size"]
    shape = {
        "model_name": model.name,
        "params_b": round(parameters(model) / 1e9, 4),
        "layers": model.layers,
        "hidden": model.hidden_size,
        "heads": model.attention_heads,
        "kv_heads": model.kv_heads,
        "ffn_hidden": model.ffn_hidden_size,
        "vocab": model.vocab_size,
    }
    run = {
        "seq_len": workload["sequence_length"],
        "gpu_type": record.hardware["gpu"].upper(),
        "gpus": ranks,
        "gpus_per_node": ranks,
        "framework": "DeepSpeed",
        **dict.fromkeys(("tp", "pp", "cp"), 1),
        "dp": ranks,
        "zero_stage_or_sharding": f"ZeRO-{strategy['zero_stage']}",
        "sequence_parallel": "no",
        "recompute": strategy["recompute"],
        "offload": OFFLOADS[record.plan["configuration"]["offload"]],
        "precision": workload["precision"],
        "micro_batch": strategy["micro_batch_size"],
        "global_batch": workload["global_batch_size"],
    }
    measured = {"peak_mem_gib": round(peak_bytes / GIB, 4)}
    if with_time and strategy["offload_optimizer"] == "none":  # no column describes the host
        measured |= _speed(record, ranks)
    return {**shape, **run, **measured, "notes": _notes(record, model, counter)}


def _speed(record: Record, ranks: int) -> dict[str, float]:
    """The columns of time."""
    workload, found = record.plan["workload"], record.measured or {}
    tokens = workload["sequence_length"] * workload["global_batch_size"]
    return {
        "step_time_s": round(found["median_step_s"], 5),
        "tokens_per_s_per_gpu": round(tokens / found["median_step_s"] / ranks, 1),
        "tflops_per_gpu": round(found["model_tflops_per_gpu"], 2),
        "mfu": round(100 * found["mfu"], 2),
    }


def _notes(record: Record, model: ModelSpec, counter: str) -> str:
    """What the columns cannot say; rows that they cannot describe at all say `incomplete`."""
    parts = [f"mlp={'gated' if model.gated_mlp else 'plain'}"]
    parts.append(f"tied_emb={'yes' if model.tied_embeddings else 'no'}")
    if model.head_size * model.attention_heads != model.hidden_size:
        parts.append(f"head_dim {model.head_size}")
    parts.append(DRY_TAG if record.dry_run else TAGS[counter])
    parts.append("tflops_kind=model")
    lora = record.plan["workload"]["lora"]
    if lora:
        parts.append(f"incomplete: LoRA of rank {lora['rank']} has no column")
    if model.qk_norm or model.position == "learned":
        parts.append("incomplete: norms of queries, learned positions have no column")
    if record.dry_run:
        parts.append("incomplete: dry run of a tiny model on CPU ranks")
    versions = record.versions
    parts.append(f"torch {versions['torch']}, deepspeed {versions['deepspeed']}")
    parts.append(f"buckets sized by dsforge {versions['dsforge']}")
    return "; ".join((*parts, *record.notes))
