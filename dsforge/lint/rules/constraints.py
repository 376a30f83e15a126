"""Rules: the constraints of the engines, where a file breaks one.

What is wrong, and the way out, is said by the constraint (`dsforge/constraints`), which the planner
and `dsforge train` ask too. Here stands what concerns the text: in which files a constraint is
looked for, at which key it is shown, how bad it is, and what people have met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dsforge import constraints
from dsforge.constraints import (
    Constraint,
    inputs,
    layers,
    megatron,
    sizes,
    trainer,
)
from dsforge.constraints import deepspeed as engine
from dsforge.findings import Hit, Rule, Severity
from dsforge.importing.marks import Loc
from dsforge.lint.checked_file import ZERO, CheckedFile, rule
from dsforge.lint.rules.accelerate import PLUGIN
from dsforge.lint.rules.batch import TOTAL
from dsforge.lint.rules.megatron import CP, EP, GLOBAL, GROUPS, LAYERS_OF_CHUNK, TP, VIRTUAL
from dsforge.lint.schemas.releases import Release, number
from dsforge.lint.strategies import strategy_of

Place = Loc | Callable[[CheckedFile], Loc]
STAGE: Loc = (ZERO, "stage")
TENSOR: Loc = ("tensor_parallel", "autotp_size")
STAGES: Loc = ("pipeline", "stages")
SEQUENCE: Loc = ("sequence_parallel_size",)
HPZ: Loc = (ZERO, "zero_hpz_partition_size")
TENSOR_WITH_ZERO3 = number("0.19.8")  # the release whose AutoTP accepts ZeRO stage 3

# Ids that lint had before it asked the constraints; `--ignore` and `--explain` still take them.
FORMER_IDS: dict[str, tuple[str, ...]] = {
    "pipeline-zero": ("zero-pipeline",),
    "tensor-zero3": ("zero-tensor",),
    "tensor-pipeline": ("deepspeed-3d",),
    "offload-param-stage": ("offload-parameters",),
    "offload-optimizer-stage": ("offload-optimizer",),
    "offload-ratio-stage": ("offload-ratio",),
    "offload-nvme-stage": ("nvme-stage",),
    "accumulation-type-stage0": ("grad-accum-dtype",),
    "accelerate-offload-stage": ("offload-parameters", "offload-optimizer"),
    "model-heads": ("tensor-heads",),
    "model-kv-heads": ("tensor-kv-heads",),
    "cluster-batch": ("batch-product",),
    "cluster-layout": ("world-size",),
    "cluster-bf16": ("precision",),
    "cluster-nvme-missing": ("nvme-disk", "cluster-nvme-path"),
    "cluster-tensor-node": ("tensor-in-node",),
    "megatron-heads": ("tensor-heads",),
    "megatron-groups": ("tensor-kv-heads",),
    "megatron-experts": ("expert-parallel",),
    "megatron-sequence": ("context-sequence",),
    "megatron-positions": ("sequence-length",),
    "megatron-batch": ("batch-product", "world-size"),
    "megatron-tensor-node": ("tensor-in-node",),
    "train-sequence": ("sequence-length",),
    "train-tensor": ("train-mode",),
}


def _rule(
    asked: Constraint,
    severity: Severity = "error",
    *,
    why: str,
    evidence: str = "",
    before: Release | None = None,
    **places: Place,
) -> Rule[CheckedFile]:
    """The rule that shows a broken constraint at a place of each kind of file.

    `before`: the first release of DeepSpeed that does not have the constraint any more.
    """

    def find(file: CheckedFile) -> Iterator[Hit]:
        problem = asked(strategy_of(file))
        if problem is None or (before is not None and file.release >= before):
            return
        place = places[file.document.kind]
        where = place if isinstance(place, tuple) else place(file)
        yield Hit(where, problem.message, problem.hint)

    known = "; ".join(part for part in (asked.source, evidence) if part)
    return Rule(asked.id, severity, tuple(places), asked.title, why, known, find)


def _offload(block: str) -> Callable[[CheckedFile], Loc]:
    """The key that asks for an offload, in its new or its old spelling."""
    return lambda file: (ZERO, block) if block in file.block(ZERO) else (ZERO,)


def _swap(file: CheckedFile) -> Loc:
    """The device of the first block that is on NVMe."""
    blocks = ("offload_optimizer", "offload_param")
    block = next(block for block in blocks if file.device(block) == "nvme")
    return (ZERO, block, "device")


def _size(file: CheckedFile) -> Loc:
    """The first parallel size that is set."""
    sizes = {TENSOR: file.tensor_parallel_size, STAGES: file.pipeline_stages}
    return next((loc for loc, size in sizes.items() if size > 1), SEQUENCE)


def _chunks(file: CheckedFile) -> Loc:
    """The flag that interleaves a pipeline."""
    return (LAYERS_OF_CHUNK if LAYERS_OF_CHUNK in file.block() else VIRTUAL,)


def _half(file: CheckedFile) -> Loc:
    """The block that chooses the precision."""
    name = file.config.precision or "bf16"
    return (name if name in file.block() else "bfloat16", "enabled")


@rule(
    "train-mode",
    "error",
    "train",
    why="`dsforge train` refuses what DeepSpeed would refuse after all ranks are up, or ignore, "
    "and what it cannot do itself.",
    evidence="dsforge/constraints, which `dsforge train` checks before it starts ranks",
)
def train_mode(file: CheckedFile) -> Iterator[Hit]:
    """Settings of the ds_config that `dsforge train` refuses for this job."""
    if file.engine is None:
        return
    for problem in constraints.broken(strategy_of(file)):
        if problem.rule != inputs.sequence_in_positions.id:
            message = f"in the ds_config: {problem.message}"
            yield Hit(("deepspeed_config",), message, problem.hint)


RULES: tuple[Rule[CheckedFile], ...] = (
    _rule(
        engine.zero_with_pipeline,
        why="Sharded gradients would be reduced in each of the many micro batches of a pipeline; "
        "the pipeline engine refuses stages 2 and 3.",
        evidence="deepspeedai/DeepSpeed#568, deepspeedai/DeepSpeed#1629",
        ds_config=STAGE,
    ),
    _rule(
        engine.zero_with_tensor,
        why="AutoTP training supports ZeRO 0, 1 and 2 in these releases.",
        before=TENSOR_WITH_ZERO3,
        ds_config=STAGE,
    ),
    _rule(
        engine.sequence_with_split,
        why="Ulysses exchanges the heads of whole attention layers over all ranks of a replica; "
        "tensor and pipeline ranks have a part of them. Megatron-LM combines them.",
        ds_config=_size,
    ),
    _rule(
        engine.offload_parameters_stage,
        why="Only stage 3 shards parameters, so only stage 3 can offload them. Lower stages accept "
        "the block, ignore it and train, with all parameters on each GPU.",
        evidence="axolotl-ai-cloud/axolotl's zero2 files",
        ds_config=_offload("offload_param"),
        accelerate=(PLUGIN, "offload_param_device"),
    ),
    _rule(
        engine.offload_optimizer_stage,
        why="Without ZeRO there is no sharded optimizer state to move; the block is ignored or "
        "stops the engine.",
        ds_config=_offload("offload_optimizer"),
        accelerate=(PLUGIN, "offload_optimizer_device"),
    ),
    _rule(
        engine.offload_ratio_stage,
        why="Partial offload splits the sub-groups of stage 3; other stages refuse it.",
        ds_config=(ZERO, "offload_optimizer", "ratio"),
    ),
    _rule(
        engine.offload_optimizer_kind,
        why="An offloaded optimizer runs on the CPU, and only these have a CPU version; others "
        "stop the engine, or compute on the GPU after copying everything back.",
        ds_config=("optimizer", "type"),
    ),
    _rule(
        engine.offload_with_pipeline,
        why="The pipeline engine keeps its gradients on the device.",
        ds_config=_offload("offload_optimizer"),
    ),
    _rule(
        engine.nvme_stage,
        why="Swapping to NVMe is part of stage 3 (ZeRO-Infinity); lower stages use RAM, which "
        "may be too small.",
        ds_config=_swap,
    ),
    _rule(
        engine.nvme_disk,
        why="The cluster file has no disk for the offloaded states.",
        evidence="deepspeedai/DeepSpeed#3376",
        ds_config=_swap,
    ),
    _rule(
        engine.gradient_type_without_zero,
        why="Without ZeRO gradients accumulate in the type of the weights; another one is not "
        "implemented.",
        ds_config=("data_types", "grad_accum_dtype"),
    ),
    _rule(
        engine.bf16_states_with_sums,
        why="ZeRO stage 1 with float32 sums is run by another optimizer, whose states are in "
        "float32 whatever this key says.",
        ds_config=("bf16", "bf16_optimizer_states"),
    ),
    _rule(
        engine.bf16_states_offloaded,
        why="On the CPU only DeepSpeed's Adam keeps moments in bf16; others stop the engine with "
        "an assertion.",
        ds_config=("optimizer", "type"),
    ),
    _rule(
        engine.hpz_stage,
        why="Below stage 3 the key is accepted and does nothing, so the traffic is not reduced.",
        evidence="deepspeedai/DeepSpeed#6889",
        ds_config=HPZ,
    ),
    _rule(
        engine.hpz_divides_ranks,
        why="The groups that share a copy have equal sizes; another number stops every rank.",
        ds_config=HPZ,
    ),
    _rule(
        engine.hpz_with_offload,
        "warning",
        why="hpZ keeps a second copy of the parameters on the GPUs of a node; with states on the "
        "host this was reported to break.",
        ds_config=HPZ,
    ),
    _rule(
        engine.hpz_with_sequence,
        "warning",
        why="The groups of hpZ are made without those of the sequence.",
        ds_config=HPZ,
    ),
    _rule(
        sizes.batch_product,
        why="The global batch is micro batch x accumulation x data-parallel size. On an unknown "
        "number of ranks it must be a multiple of what is given.",
        evidence="deepspeedai/DeepSpeed#17, deepspeedai/DeepSpeed#6914, OpenRLHF/OpenRLHF#346",
        ds_config=(TOTAL,),
        megatron=(GLOBAL,),
    ),
    _rule(
        sizes.world_size,
        why="Tensor, pipeline and sequence ranks together must divide the GPUs.",
        ds_config=_size,
        megatron=(TP,),
    ),
    _rule(
        layers.recurrent_parallel,
        why="State-space, linear-attention and convolution layers pass a state from token to token "
        "that no rank can compute a part of; DeepSpeed shares attention and MLP alone.",
        ds_config=_size,
    ),
    _rule(
        sizes.tensor_divides_heads,
        why="Attention heads cannot be split over ranks.",
        evidence="deepspeedai/DeepSpeed#3634 (52 heads on 8 cards)",
        ds_config=TENSOR,
        megatron=(TP,),
    ),
    _rule(
        sizes.tensor_divides_kv_heads,
        why="Key and value heads are sharded like the others; fewer than ranks leaves some without "
        "any. Megatron-LM can replicate them.",
        evidence="pytorch/torchtitan#2574, NVIDIA-NeMo/Automodel#799",
        ds_config=TENSOR,
        megatron=(GROUPS,),
    ),
    _rule(
        sizes.tensor_in_node,
        "warning",
        why="Tensor ranks exchange activations four times a layer; across nodes that runs at the "
        "speed of the network instead of NVLink.",
        ds_config=TENSOR,
        megatron=(TP,),
    ),
    _rule(
        sizes.pipeline_within_layers,
        why="A stage without a layer has nothing to send.",
        evidence="modelscope/ms-swift#5737",
        ds_config=STAGES,
    ),
    _rule(
        trainer.partition_holds_layers,
        why="The list is the number of layers of each stage; another sum leaves layers out.",
        evidence="NVIDIA/Megatron-LM#1304 (30 layers on 4 stages trained 28)",
        ds_config=("pipeline", "partition"),
    ),
    _rule(
        inputs.precision_on_card,
        why="The GPU has no such tensor unit; the engine stops on every rank.",
        ds_config=_half,
    ),
    _rule(
        inputs.sequence_in_positions,
        why="Positions beyond the table have no embedding.",
        megatron=("--seq-length",),
        train=("sequence_length",),
    ),
    _rule(
        megatron.expert_parallel,
        why="Experts cannot be split over expert-parallel ranks.",
        megatron=(EP,),
    ),
    _rule(
        megatron.virtual_stages,
        why="A rank can take several chunks of layers in turn only where there are ranks to pass "
        "them to; without a pipeline every rank stops with an assertion.",
        megatron=_chunks,
    ),
    _rule(
        megatron.context_splits_sequence,
        why="Each context rank takes two chunks of the sequence, so that causal work is even.",
        megatron=(CP,),
    ),
)
