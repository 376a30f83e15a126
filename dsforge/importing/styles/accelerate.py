"""Hugging Face accelerate: YAML of `accelerate config`, and flags of `accelerate launch`."""

from __future__ import annotations

from dsforge.importing.draft import Draft
from dsforge.importing.parts.engine_config import say_engine_file
from dsforge.importing.parts.precisions import say_precision
from dsforge.importing.parts.sharding import say_fsdp
from dsforge.importing.values import Settings, Value
from dsforge.importing.work import Style, Work, words

CONFIG = "accelerate commands/config/config_args.py, ClusterConfig"
PLUGIN = "accelerate utils/dataclasses.py, DeepSpeedPlugin"
MEGATRON = "accelerate utils/dataclasses.py, MegatronLMPlugin"
_SIZES = (
    ("tensor_parallel_size", "tp_size"),
    ("context_parallel_size", "cp_size"),
)
_PLAIN = (
    "multi_gpu",
    "multi_npu",
    "multi_cpu",
    "multi_mlu",
    "multi_xpu",
    "no",
    "false",
    "multi_hpu",
)
_PASSED = (
    *("compute_environment", "debug", "downcast_bf16", "machine_rank", "main_training_function"),
    *("rdzv_backend", "same_network", "use_cpu", "main_process_port", "main_process_ip", "tpu_env"),
    *("tpu_use_cluster", "tpu_use_sudo", "enable_cpu_affinity", "deepspeed_multinode_launcher"),
)


def read(work: Work, settings: Settings) -> None:
    """Ranks, precision, and whichever plugin the type names."""
    draft = work.draft
    _ranks(draft, settings)
    _precision(draft, settings)
    kind = settings.find("distributed_type")
    word = kind.word if kind is not None else ""
    if _is_asked(settings, word, "deepspeed"):
        _deepspeed(work, settings)
    elif _is_asked(settings, word, "fsdp"):
        _fsdp(draft, settings, kind)
    elif word == "megatron_lm" or _is_on(settings, "use_megatron_lm"):
        _megatron(draft, settings)
    elif kind is not None and (word in _PLAIN or kind.value is False):
        draft.say("zero_stage", 0, kind.place)
        if word in ("no", "") and not draft.is_said("gpus_per_node"):
            draft.assume("gpus_per_node", 1, CONFIG)
    _parallelism(draft, settings)
    settings.pass_over(*_PASSED)


def _is_asked(settings: Settings, word: str, plugin: str) -> bool:
    """Whether a plugin is asked for: by the type, by a flag, or by its block without a type."""
    block = not word and settings.has_block(f"{plugin}_config")
    return word == plugin or block or _is_on(settings, f"use_{plugin}")


def _precision(draft: Draft, settings: Settings) -> None:
    """`no` leaves the choice to the trainer."""
    found = settings.find("mixed_precision")
    if found is None:
        return
    if found.word == "no" or found.value is False:
        draft.assume("precision", "fp32", found.place)
    else:
        say_precision(draft, found)


def _is_on(settings: Settings, name: str) -> bool:
    value = settings.find(name)
    return value is not None and value.truth is True


def _ranks(draft: Draft, settings: Settings) -> None:
    """Processes of all machines, and machines."""
    processes, machines = settings.find("num_processes"), settings.find("num_machines")
    if machines is not None:
        draft.whole("nodes", machines)
    elif not draft.is_said("nodes"):
        draft.assume("nodes", 1, CONFIG)
    chosen = settings.find("gpu_ids")
    if processes is None and chosen is not None and chosen.text and chosen.word != "all":
        listed = len([one for one in chosen.text.split(",") if one.strip()])
        draft.say("gpus_per_node", listed, chosen.place)
    if processes is None:
        return
    if processes.is_open:
        if draft.value("gpus_per_node") is None:
            draft.leave_open("gpus_per_node", processes)
        return
    nodes = draft.value("nodes")
    count = processes.whole
    if count is None or (nodes is None and machines is not None):
        draft.leave_open("gpus_per_node", processes)
    elif count % (nodes or 1):
        message = f"num_processes (={count}) must be a multiple of {nodes} machines"
        draft.problem("accelerate-processes", message, processes.place)
    else:
        draft.whole("gpus_per_node", processes._replace(value=count // (nodes or 1)))


def _plugin(settings: Settings, name: str) -> Value | None:
    return settings.find(f"deepspeed_config.{name}", name)


def _deepspeed(work: Work, settings: Settings) -> None:
    draft = work.draft
    file = _plugin(settings, "deepspeed_config_file")
    if file is not None:
        say_engine_file(work, file)
        settings.pass_over("deepspeed_config")
        return
    draft.say("engine", "deepspeed", PLUGIN)
    stage = _plugin(settings, "zero_stage")
    if stage is None:
        draft.assume("zero_stage", 2, PLUGIN)
    elif stage.whole in (0, 1, 2, 3):
        draft.say("zero_stage", stage.whole, stage.place)
    else:
        draft.leave_open("zero_stage", stage)
    for field, key in (
        ("offload_optimizer", "offload_optimizer_device"),
        ("offload_parameters", "offload_param_device"),
    ):
        device = _plugin(settings, key)
        if device is None or device.word not in ("cpu", "nvme"):
            continue
        if field == "offload_parameters" and draft.value("zero_stage") not in (3, None):
            draft.lose(key, device, "DeepSpeed ignores it below stage 3")
        else:
            draft.say(field, device.word, device.place)
    steps = _plugin(settings, "gradient_accumulation_steps")
    if steps is not None and not steps.is_open:
        draft.whole("gradient_accumulation_steps", steps)
    settings.pass_over("deepspeed_config.gradient_clipping", "deepspeed_config.zero3_init_flag")


def _fsdp(draft: Draft, settings: Settings, kind: Value | None) -> None:
    draft.say("engine", "fsdp", kind.place if kind else CONFIG)
    if settings.has_block("fsdp_config"):
        say_fsdp(draft, settings.below("fsdp_config"), "fsdp_")
    say_fsdp(draft, settings, "fsdp_")


def _megatron(draft: Draft, settings: Settings) -> None:
    block = (
        settings.below("megatron_lm_config")
        if settings.has_block("megatron_lm_config")
        else settings
    )
    draft.say("engine", "megatron", MEGATRON)
    draft.whole("tensor_parallel_size", block.find("megatron_lm_tp_degree"))
    draft.whole("pipeline_parallel_size", block.find("megatron_lm_pp_degree"))
    draft.whole("gradient_accumulation_steps", block.find("megatron_lm_num_micro_batches"))
    parallel = block.find("megatron_lm_sequence_parallelism")
    if parallel is not None and parallel.truth:
        draft.say("sequence_parallel", value=True, place=parallel.place)
    recompute = block.find("megatron_lm_recompute_activations")
    if recompute is not None and recompute.truth:
        draft.say("recompute", "selective", recompute.place)
    sharded = block.find("megatron_lm_use_distributed_optimizer")
    on = sharded is not None and sharded.truth
    if on and sharded is not None:
        draft.say("zero_stage", 1, sharded.place)
    else:
        draft.assume("zero_stage", 0, MEGATRON)


def _parallelism(draft: Draft, settings: Settings) -> None:
    """N-D parallelism: sizes of the mesh."""
    block = (
        settings.below("parallelism_config")
        if settings.has_block("parallelism_config")
        else settings
    )

    def find(name: str) -> Value | None:
        return block.find(f"parallelism_config_{name}", name if block is not settings else "")

    for field, key in _SIZES:
        draft.whole(field, find(key))
    sequence = find("sp_size")
    if sequence is not None and (sequence.whole or 0) > 1:
        draft.whole("context_parallel_size", sequence)
    replicas, shards = find("dp_replicate_size"), find("dp_shard_size")
    copies = replicas.whole if replicas is not None and replicas.whole else 1
    parts = shards.whole if shards is not None and shards.whole else 1
    if replicas is None and shards is None:
        return
    place = (shards or replicas or Value(None, "")).place
    draft.say("data_parallel_size", copies * parts, place)
    if copies > 1 and parts > 1:
        draft.say("shard_group", parts, place)
    if parts > 1:
        draft.assume("zero_stage", 3, CONFIG)


STYLE = Style(
    name="accelerate",
    label="Hugging Face accelerate",
    read=read,
    keys=words(
        "compute_environment distributed_type num_processes mixed_precision num_machines "
        "deepspeed_config fsdp_config machine_rank main_training_function rdzv_backend "
        "megatron_lm_config parallelism_config same_network downcast_bf16 use_cpu"
    ),
    evidence=CONFIG,
)
