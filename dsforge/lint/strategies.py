"""The strategy that a file describes, as the constraints of the engines judge it.

A file says a part of it: what is not written, or left to a trainer (`auto`), is unknown.
"""

from __future__ import annotations

from functools import lru_cache

from dsforge import constraints
from dsforge.constraints import ModelShape, case_of_config, shape_of
from dsforge.lint.checked_file import CheckedFile
from dsforge.lint.rules.accelerate import PLUGIN
from dsforge.lint.rules.megatron import (
    CP,
    EP,
    GLOBAL,
    GROUPS,
    HEADS,
    LAYERS,
    LAYERS_OF_CHUNK,
    MICRO,
    PP,
    TP,
    VIRTUAL,
    count_of,
)
from dsforge.zero_stages import ZERO_STAGES, Offload

FORMAT_OF_BITS = {4: "nf4", 8: "int8"}  # where no format is named


@lru_cache(maxsize=1)  # two dozen constraints look at the same file
def strategy_of(file: CheckedFile) -> constraints.Case:
    """What a file says of a strategy, with the model and the cluster where they are named."""
    if file.document.kind == "megatron":
        return _of_arguments(file)
    if file.document.kind == "accelerate":
        return _of_plugin(file)
    config, cluster = file.config, file.cluster
    of_job = file.document.kind == "train"
    ranks = None if cluster is None else cluster.gpus
    found = case_of_config(config, ranks)._replace(
        global_batch_size=config.train_batch_size,
        micro_batch_size=config.micro_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        shape=None if file.model is None else shape_of(file.model),
        cluster=None if of_job else cluster,  # what the machines are, `train` does not judge
    )
    if of_job:
        tied = file.model is not None and file.model.tied_embeddings
        saved = file.block("lora").get("modules_to_save") or ()
        found = found._replace(
            tied_modules=tuple(map(str, saved)) if tied and isinstance(saved, list) else (),
            sequence_length=file.whole("sequence_length"),
            adapters=bool(file.block("lora")),
            optimizer_states=file.word("optimizer_states") or None,
            base=_base(file),
            quant_storage=file.word("lora", "quant_storage") or None,
            kernel=file.word("lora", "kernel") or None,
            attention=file.word("attention") or None,
            packing=file.is_on("packing"),
            preference=_preference(file),
            reference=file.word("preference", "reference") or None,
            compiled=file.is_on("compile"),
        )
    filled = ranks is None or ranks % config.model_ranks == 0
    return found if filled else found._replace(data_parallel_size=None)


def _preference(file: CheckedFile) -> str | None:
    """Loss of a job on pairs of sequences; none where it has none."""
    return file.word("preference", "kind") or ("dpo" if file.block("preference") else None)


def _base(file: CheckedFile) -> str | None:
    """Format of a job's frozen matrices; none where they are not quantised."""
    return file.word("lora", "base") or FORMAT_OF_BITS.get(file.whole("lora", "bits") or 16)


def _of_arguments(file: CheckedFile) -> constraints.Case:
    """The strategy of Megatron arguments; the size of the model is among them."""

    def flag(name: str) -> int | None:
        return count_of(file, name) or None

    sizes, uncertain = (TP, PP, CP, EP), file.document.uncertain
    unknown = any(size in file.block() and file.at(size) is None for size in sizes)
    if unknown or not uncertain.isdisjoint(sizes):
        return constraints.Case(back_end="megatron")  # a script computes its sizes
    ranks = None if file.cluster is None else file.cluster.gpus
    found = constraints.Case(
        back_end="megatron",
        world_size=ranks,
        tensor_parallel_size=flag(TP) or 1,
        pipeline_parallel_size=flag(PP) or 1,
        context_parallel_size=flag(CP) or 1,
        expert_parallel_size=flag(EP) or 1,
        virtual_stages=_virtual_stages(file),
        global_batch_size=flag(GLOBAL),
        micro_batch_size=flag(MICRO),
        sequence_length=flag("--seq-length"),
        cluster=file.cluster,
        shape=ModelShape(
            attention_heads=flag(HEADS),
            kv_heads=flag(GROUPS),
            experts=flag("--num-experts"),
            positions=flag("--max-position-embeddings"),
        ),
    )
    replicas = None if ranks is None or ranks % found.model_ranks else ranks // found.model_ranks
    return found._replace(data_parallel_size=replicas)


def _virtual_stages(file: CheckedFile) -> int:
    """Chunks of a pipeline rank: as many as are given, or as its layers make of so many each."""
    if not file.document.uncertain.isdisjoint((VIRTUAL, LAYERS_OF_CHUNK, LAYERS)):
        return 1
    each, stages = count_of(file, LAYERS_OF_CHUNK), count_of(file, PP, 1) or 1
    chunks = count_of(file, LAYERS) // (each * stages) if each else count_of(file, VIRTUAL)
    return max(1, chunks)


def _of_plugin(file: CheckedFile) -> constraints.Case:
    """The strategy of an accelerate YAML: its stage and devices."""
    written = file.whole(PLUGIN, "zero_stage")
    devices: dict[str, Offload] = {"cpu": "cpu", "nvme": "nvme"}

    def device(key: str) -> Offload | None:
        return devices.get(file.word(PLUGIN, key))

    return constraints.Case(
        zero_stage=next((stage for stage in ZERO_STAGES if stage == written), None),
        offload_optimizer=device("offload_optimizer_device"),
        offload_parameters=device("offload_param_device"),
    )
