"""Rules: tensor and pipeline parallelism, activation checkpointing, checkpoints, monitors."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.checked_file import CheckedFile, rule
from dsforge.lint.conditions import If
from dsforge.lint.rows import Look, Row, rules


@rule(
    "tensor-sizes-differ",
    "error",
    why="Both sizes must be equal; DeepSpeed compares them when it creates the process groups.",
    evidence="DeepSpeed runtime/engine.py, _apply_autotp_partitioning",
)
def tensor_sizes_differ(file: CheckedFile) -> Iterator[Hit]:
    """Two different tensor parallel sizes."""
    outer = file.whole("tensor_parallel", "autotp_size")
    for name in ("tp", "tensor_parallel"):
        inner = file.whole("tensor_parallel", name, "tp_size")
        if outer is not None and inner not in (None, 1, outer):
            loc = ("tensor_parallel", name, "tp_size")
            yield Hit(loc, f"`tp_size` (={inner}) must equal `autotp_size` (={outer})")


@rule(
    "tensor-vocabulary",
    "info",
    why="A vocabulary size that is not a multiple of 8 does not use the tensor cores in "
    "the output head.",
    evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._do_warning_check",
)
def tensor_vocabulary(file: CheckedFile) -> Iterator[Hit]:
    """A vocabulary size that is slow on tensor cores."""
    size = file.whole("vocabulary_size")
    if size and size % 8:
        message = f"`vocabulary_size` (={size}) is not a multiple of 8"
        yield Hit(("vocabulary_size",), message, f"pad to {size + 8 - size % 8}")


AUTOCAST = (
    *("fp16", "float16", "half", "torch.float16", "bf16", "bfloat16", "torch.bfloat16"),
    *("fp32", "float32", "float", "torch.float32", "int8", "torch.int8"),
)

ROWS = rules(
    Row(
        "setting-choice",
        "error",
        If("gradient_allreduce_op", "not in", ("mean", "sum")),
        "`{key}` (={value}) must be mean or sum",
        title="A word that the engine does not know.",
        why="Only these words are known; any other stops every rank when it reads the config.",
        evidence="DeepSpeed runtime/config.py, get_gradient_allreduce_op, "
        "get_torch_autocast_dtype; runtime/model_checkpointing/config.py",
        also=(
            Look(
                If("torch_autocast.dtype", "not in", (*AUTOCAST, "auto")),
                "`{key}` (={value}) must be bfloat16 or float16",
            ),
            Look(
                If("checkpoint.writer.data_parallel", "not in", ("replica", "socket", "machine")),
                "`{key}` (={value}) must be replica, socket or machine",
            ),
            Look(
                If("checkpoint.writer.type", "not in", ("mock", "python", "fast")),
                "`{key}` (={value}) must be mock, python or fast",
            ),
        ),
    ),
    Row(
        "checkpointing-unread",
        "info",
        If("activation_checkpointing", "block"),
        "`{key}` does nothing for Hugging Face models",
        title="An activation checkpointing block, which Hugging Face models do not read.",
        why="Only models that call `deepspeed.checkpointing` read this block. Hugging Face "
        "models do not: `gradient_checkpointing` of the trainer decides there.",
        evidence="DeepSpeed runtime/activation_checkpointing/checkpointing.py, configure",
        when=(If("@trainer", "on"),),
    ),
    Row(
        "checkpointing-partition",
        "warning",
        If(
            "activation_checkpointing.contiguous_memory_optimization "
            "activation_checkpointing.cpu_checkpointing",
            "on",
        ),
        "`{key}` requires `partition_activations`",
        "set that to true too",
        title="Checkpointing options that need partitioned activations.",
        why="Activations are partitioned over the model-parallel ranks; with one rank there is "
        "nothing to partition, and both keys require it.",
        evidence="DeepSpeed runtime/activation_checkpointing/checkpointing.py, CheckpointFunction",
        when=(If("activation_checkpointing.partition_activations", "not on"),),
    ),
    Row(
        "checkpointing-number",
        "warning",
        If("activation_checkpointing.contiguous_memory_optimization", "on"),
        "`{key}` requires `number_checkpoints`",
        "set it to the number of layers",
        title="A contiguous checkpoint buffer of unknown size.",
        why="The number of checkpoints determines the size of the contiguous buffer: unless "
        "the program sets it, an assertion fails.",
        evidence="DeepSpeed runtime/activation_checkpointing/checkpointing.py, configure",
        when=(If("activation_checkpointing.number_checkpoints", "missing"),),
    ),
    Row(
        "tag-validation",
        "error",
        If("checkpoint.tag_validation", "not in", ("ignore", "warn", "fail")),
        "`{key}` (={value}) must be Ignore, Warn or Fail",
        title="An unknown mode for checking checkpoint tags.",
        why="Any other word stops the engine when it reads the config.",
        evidence="DeepSpeed runtime/config.py, get_checkpoint_tag_validation_mode",
    ),
    Row(
        "node-local-checkpoint",
        "warning",
        If("checkpoint.use_node_local_storage", "on"),
        "checkpoints stay on each node's own disk",
        "use a shared folder",
        title="Checkpoints on the disks of the nodes.",
        why="Each node then writes only its own shards: a resume on other nodes, or a merge of "
        "the shards, finds a part of the model.",
        evidence="DeepSpeed runtime/engine.py, use_node_local_storage",
    ),
    Row(
        "universal-load-on",
        "info",
        If("checkpoint.load_universal", "on"),
        "`{key}` is on: only converted checkpoints load",
        title="Loading of universal checkpoints switched on.",
        why="It is meant for one resume: a checkpoint that was not converted first does not load.",
        evidence="DeepSpeed runtime/engine.py, load_universal_checkpoint; "
        "deepspeedai/DeepSpeed#2921",
    ),
    Row(
        "secret-in-config",
        "error",
        If("comet.api_key", "given"),
        "`{key}` is stored in the file",
        "use the environment (COMET_API_KEY)",
        title="A secret in the file.",
        why="A config is copied, logged by rank 0 and committed; a key in it is exposed.",
        evidence="DeepSpeed runtime/config.py, print_user_config prints the whole file",
    ),
)
