"""Rules: tensor and pipeline parallelism, activation checkpointing, checkpoints, monitors."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.lint.case import Case, rule, shown

RECOMPUTE = "activation_checkpointing"
TAG_MODES = ("ignore", "warn", "fail")


@rule(
    "tensor-sizes-differ",
    "error",
    why="The inner size must be the outer one; DeepSpeed compares them when it makes the groups.",
    evidence="DeepSpeed runtime/engine.py, _apply_autotp_partitioning",
)
def tensor_sizes_differ(case: Case) -> Iterator[Hit]:
    """Two different tensor parallel sizes."""
    outer = case.whole("tensor_parallel", "autotp_size")
    for name in ("tp", "tensor_parallel"):
        inner = case.whole("tensor_parallel", name, "tp_size")
        if outer is not None and inner not in (None, 1, outer):
            loc = ("tensor_parallel", name, "tp_size")
            yield Hit(loc, f"`tp_size` (={inner}) must equal `autotp_size` (={outer})")


@rule(
    "tensor-vocabulary",
    "info",
    why="A vocabulary that is no multiple of 8 misses the tensor cores in the output head.",
    evidence="DeepSpeed runtime/config.py, DeepSpeedConfig._do_warning_check",
)
def tensor_vocabulary(case: Case) -> Iterator[Hit]:
    """A vocabulary size that tensor cores do not like."""
    size = case.whole("vocabulary_size")
    if size and size % 8:
        message = f"`vocabulary_size` (={size}) is no multiple of 8"
        yield Hit(("vocabulary_size",), message, f"pad to {size + 8 - size % 8}")


@rule(
    "checkpointing-unread",
    "info",
    why="This block is read by models that call `deepspeed.checkpointing`. Hugging Face models do "
    "not: there `gradient_checkpointing` of the trainer decides.",
    evidence="DeepSpeed runtime/activation_checkpointing/checkpointing.py, configure",
)
def checkpointing_unread(case: Case) -> Iterator[Hit]:
    """An activation checkpointing block, which Hugging Face models do not read."""
    if case.block(RECOMPUTE):
        yield Hit((RECOMPUTE,), "`activation_checkpointing` does nothing for Hugging Face models")


@rule(
    "checkpointing-partition",
    "warning",
    why="Activations are partitioned over the ranks of model parallelism; with one rank there is "
    "nothing to partition, and both keys below need it.",
    evidence="DeepSpeed runtime/activation_checkpointing/checkpointing.py, CheckpointFunction",
)
def checkpointing_partition(case: Case) -> Iterator[Hit]:
    """Checkpointing options that need partitioned activations."""
    for key in ("contiguous_memory_optimization", "cpu_checkpointing"):
        if case.is_on(RECOMPUTE, key) and not case.is_on(RECOMPUTE, "partition_activations"):
            loc = (RECOMPUTE, key)
            yield Hit(loc, f"`{key}` needs `partition_activations`", "set that to true too")


@rule(
    "checkpointing-number",
    "warning",
    why="The contiguous buffer is sized by the number of checkpoints: unless the program says it, "
    "an assertion fails.",
    evidence="DeepSpeed runtime/activation_checkpointing/checkpointing.py, configure",
)
def checkpointing_number(case: Case) -> Iterator[Hit]:
    """A contiguous checkpoint buffer of unknown size."""
    loc = (RECOMPUTE, "contiguous_memory_optimization")
    if case.is_on(*loc) and not case.number(RECOMPUTE, "number_checkpoints"):
        message = "`contiguous_memory_optimization` needs `number_checkpoints`"
        yield Hit(loc, message, "set it to the number of layers")


@rule(
    "tag-validation",
    "error",
    why="Any other word stops the engine when the config is read.",
    evidence="DeepSpeed runtime/config.py, get_checkpoint_tag_validation_mode",
)
def tag_validation(case: Case) -> Iterator[Hit]:
    """An unknown mode for checking checkpoint tags."""
    loc = ("checkpoint", "tag_validation")
    value = case.at(*loc)
    if value is not None and case.word(*loc) not in TAG_MODES:
        yield Hit(loc, f"`tag_validation` (={shown(value)}) must be Ignore, Warn or Fail")


@rule(
    "node-local-checkpoint",
    "warning",
    why="Each node then writes only its own shards: a resume on other nodes, or a merge of the "
    "shards, finds a part of the model.",
    evidence="DeepSpeed runtime/engine.py, use_node_local_storage",
)
def node_local_checkpoint(case: Case) -> Iterator[Hit]:
    """Checkpoints on the disks of the nodes."""
    loc = ("checkpoint", "use_node_local_storage")
    if case.is_on(*loc):
        yield Hit(loc, "checkpoints stay on each node's own disk", "use a shared folder")


@rule(
    "universal-load-on",
    "info",
    why="It is meant for one resume: a checkpoint that was not converted first does not load.",
    evidence="DeepSpeed runtime/engine.py, load_universal_checkpoint; deepspeedai/DeepSpeed#2921",
)
def universal_load_on(case: Case) -> Iterator[Hit]:
    """Loading of universal checkpoints switched on."""
    loc = ("checkpoint", "load_universal")
    if case.is_on(*loc):
        yield Hit(loc, "`load_universal` is on: only converted checkpoints load")


@rule(
    "secret-in-config",
    "error",
    why="A config is copied, logged by rank 0 and committed; a key in it is a key given away.",
    evidence="DeepSpeed runtime/config.py, print_user_config prints the whole file",
)
def secret_in_config(case: Case) -> Iterator[Hit]:
    """A secret in the file."""
    loc = ("comet", "api_key")
    if case.word(*loc):
        yield Hit(loc, "`api_key` stands in the file", "use the environment (COMET_API_KEY)")
