"""What a constraint judges, and how a constraint is declared.

The planner knows model, cluster and workload; `train` a config and the model that it loads; `lint`
often a config alone. So every field of a case may be unknown, and a constraint that needs an
unknown value is silent. No pydantic here: `lint` starts without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from dsforge.errors import Problem

if TYPE_CHECKING:
    from dsforge.ds_config import DsConfig
    from dsforge.engines import Engine
    from dsforge.specs import ClusterSpec, ModelSpec, Workload
    from dsforge.strategy import Strategy
    from dsforge.zero_stages import Offload, ZeroStage

BackEnd = Literal["deepspeed", "megatron"]
UNLIMITED_POSITIONS = ("alibi", "relative", "none")
LONGEST_LIST = 10


class ModelShape(NamedTuple):
    """What constraints ask of a model; none: not known."""

    name: str = "the model"
    model_type: str | None = None  # a size without a kind counts as a Llama
    attention_heads: int | None = None
    kv_heads: int | None = None
    layers: int | None = None
    experts: int | None = None  # 1 without experts
    positions: int | None = None  # longest sequence; none also where there is no limit
    latent: bool = False  # keys and values of different width (MLA)
    windowed: bool = False  # sliding-window attention
    two_halves: bool = False  # an encoder with a decoder behind it
    recurrent: bool = False  # state-space, linear-attention or convolution layers
    indexed: bool = False  # a lightning indexer chooses the tokens that attention reads
    tensor_styles: frozenset[str] | None = None  # of transformers' tensor-parallel plan


class Case(NamedTuple):
    """A strategy and what is known beside it. None: not known, or left open by a file."""

    back_end: BackEnd = "deepspeed"
    world_size: int | None = None  # accelerators that the run has
    data_parallel_size: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_parallel_size: int = 1
    virtual_stages: int = 1
    sequence_parallel: bool = False  # Megatron's, over the tensor ranks
    partition: tuple[int, ...] | None = None  # decoder layers of each pipeline stage
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    zero_stage: ZeroStage | None = None
    hpz_partition_size: int = 1
    offload_optimizer: Offload | None = None
    offload_parameters: Offload | None = None
    offload_ratio: float = 1.0
    recompute: str | None = None
    offload_activations: bool = False
    tiled_mlp: bool = False
    loads_whole: bool = False  # on each device, before it is sharded
    no_sync: bool = False  # gradients are reduced once a step
    expert_modules: bool = False  # each expert is a module of its own
    optimizer: str | None = None  # in small letters, as the config or the workload names it
    optimizer_states: str | None = None  # of bitsandbytes' AdamW, as a train.yaml says
    bf16_states: bool = False  # neither fp32 weights nor fp32 moments in the optimizer
    optimizer_in_backward: bool = False
    any_cpu_optimizer: bool = False  # the config allows optimizers without a CPU version
    precision: str | None = None
    gradient_type: str | None = None  # of accumulation; none: that of the precision
    reduce_scatter: bool = True
    splits_vocabulary: bool = False  # tensor_parallel.vocab_parallel_lm_head
    chunked_loss: bool = False
    fused_loss: str | None = None  # a fused kernel, which `dsforge train` has not
    sequence_length: int | None = None  # tokens of a sample
    attention: str | None = None  # attention kernel of transformers
    packing: bool = False
    trainer: str | None = None  # engine that computes, where it is not the one that writes files
    compiled: bool = False  # torch.compile of the decoder layers
    adapters: bool = False  # LoRA
    base: str | None = None  # format of quantised frozen matrices (QLoRA)
    quant_storage: str | None = None  # type of stored 4-bit matrices; none: what suits
    kernel: str | None = None  # of a GPTQ base
    quantized_weights: bool = False  # ZeRO++ qwZ
    preference: str | None = None  # loss on pairs of sequences
    reference: str | None = None  # of that loss
    program: str | None = None  # that trains by itself: a name of `programs.PROGRAMS`
    by_others: bool = False  # in scripts that dsforge has not written
    tied_modules: tuple[str, ...] = ()  # `modules_to_save` of a model with tied embeddings
    words: tuple[tuple[str, object], ...] = ()  # of a person's `strategy`, that some engines lack
    shape: ModelShape | None = None
    model: ModelSpec | None = None
    cluster: ClusterSpec | None = None

    @property
    def on_megatron(self) -> bool:
        """Whether Megatron runs it."""
        return self.back_end == "megatron"

    @property
    def engine(self) -> Engine:
        """The engine that computes."""
        from dsforge.engines import BY_NAME  # its tables are not needed to lint a file

        return BY_NAME[self.trainer or self.back_end]

    @property
    def on_deepspeed(self) -> bool:
        """Whether DeepSpeed's engine runs it, and not others' scripts on another one."""
        is_ours = self.program is None and not self.by_others
        return not self.on_megatron and (is_ours or self.trainer in (None, "deepspeed"))

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one replica together: tensor x pipeline x context."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.context_parallel_size

    @property
    def offloads_parameters(self) -> bool:
        """Whether parameters are known to leave the device."""
        return self.offload_parameters not in (None, "none")

    @property
    def offloads_optimizer(self) -> bool:
        """Whether the optimizer is known to leave the device."""
        return self.offload_optimizer not in (None, "none")

    @property
    def swaps(self) -> bool:
        """Whether anything is offloaded to NVMe."""
        return "nvme" in (self.offload_optimizer, self.offload_parameters)


class Broken(NamedTuple):
    """What is wrong with which value, and the way out."""

    message: str
    hint: str


class Constraint(NamedTuple):
    """One constraint: its id, its title, and the place in the engine's source that enforces it."""

    id: str
    title: str
    source: str
    judge: Callable[[Case], Broken | None]
    ours: bool = False  # of what dsforge writes and runs: software of others may not have it

    def __call__(self, case: Case) -> Problem | None:
        """The problem of a case that breaks it; none where it holds or cannot be judged."""
        broken = self.judge(case)
        return None if broken is None else Problem(self.id, *broken)


def constraint(
    name: str, *, source: str, ours: bool | None = None
) -> Callable[[Callable[[Case], Broken | None]], Constraint]:
    """A decorator that declares a constraint; its title is the first line of the docstring.

    `source`: the place in DeepSpeed 0.19, Megatron-LM or megatron-core 0.16 that enforces it, or
    `dsforge: ` and why the limit is ours. `ours`: also where the source is a library that `dsforge
    train` builds on and others do not.
    """
    limit = source.startswith("dsforge") if ours is None else ours

    def declared(judge: Callable[[Case], Broken | None]) -> Constraint:
        title = (judge.__doc__ or "").strip().split("\n")[0]
        return Constraint(name, title, source, judge, limit)

    return declared


def case_of(model: ModelSpec, cluster: ClusterSpec, workload: Workload, strategy: Strategy) -> Case:
    """The case of a strategy: everything is known."""
    from dsforge.programs import is_own  # its tables are not needed to lint a file

    how = strategy.runs_as
    found = _split(strategy)._replace(
        world_size=cluster.gpus,
        global_batch_size=workload.global_batch_size,
        zero_stage=strategy.zero_stage,
        hpz_partition_size=strategy.hpz_partition_size,
        offload_optimizer=strategy.offload_optimizer,
        offload_parameters=strategy.offload_parameters,
        offload_ratio=1.0 if strategy.offload_optimizer == "none" else how.offload_ratio,
        recompute=strategy.recompute,
        offload_activations=how.offload_activations,
        tiled_mlp=how.tiled_mlp,
        loads_whole=how.loads_whole,
        no_sync=how.no_sync,
        expert_modules=how.expert_modules,
        optimizer=workload.optimizer,
        precision=workload.precision,
        gradient_type=how.gradients if how.gradients != "compute" else None,
        chunked_loss=how.loss == "chunked",
        fused_loss=how.fused_loss,
        sequence_length=workload.sequence_length,
        trainer=how.trainer,
        compiled=how.kernels == "compiled" and how.trainer == "deepspeed",
        preference=workload.preference,
        reference=workload.compares_with,
        program=how.program,
        by_others=how.software == "others" or not is_own(how.program),
        quantized_weights=how.quantized_weights,
        bf16_states=not how.master_weights,
        optimizer_in_backward=how.fused_backward,
        shape=shape_of(model),
        model=model,
        cluster=cluster,
    )
    return _adapted(found, model, workload) if workload.method == "lora" else found


def _split(strategy: Strategy) -> Case:
    """The sizes of a strategy's layout and batches."""
    layout = strategy.layout
    return Case(
        back_end=strategy.back_end,
        micro_batch_size=strategy.micro_batch_size,
        gradient_accumulation_steps=strategy.gradient_accumulation_steps,
        data_parallel_size=layout.data_parallel_size,
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        context_parallel_size=layout.context_parallel_size,
        expert_parallel_size=layout.expert_parallel_size,
        virtual_stages=strategy.virtual_stages,
        sequence_parallel=strategy.sequence_parallel,
    )


def _adapted(case: Case, model: ModelSpec, workload: Workload) -> Case:
    """The case with its adapters and the base under them."""
    storage, kernel = _of_base(workload)
    return case._replace(
        adapters=True,
        base=workload.base,
        quant_storage=storage,
        kernel=kernel,
        tied_modules=_saved(workload) if model.tied_embeddings else (),
    )


def _saved(workload: Workload) -> tuple[str, ...]:
    """Modules that train as a whole beside adapters."""
    return () if workload.lora is None else workload.lora.modules_to_save


def _of_base(workload: Workload) -> tuple[str | None, str | None]:
    """Type in which 4-bit matrices are stored, and the kernel of a GPTQ base."""
    if workload.lora is None or workload.base is None:
        return None, None
    kernel = workload.lora.kernel if workload.base == "gptq" else None
    return workload.lora.quant_storage, kernel


def case_of_config(config: DsConfig, world_size: int | None = None) -> Case:
    """The case of a DeepSpeed config, without its batch sizes, which follow from each other."""
    return Case(
        world_size=world_size,
        data_parallel_size=None if world_size is None else config.replicas(world_size),
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_stages,
        context_parallel_size=config.sequence_parallel_size,
        partition=config.partition if isinstance(config.partition, tuple) else None,
        zero_stage=config.zero_stage,
        hpz_partition_size=config.hpz_partition_size,
        offload_optimizer=config.offload_optimizer,
        offload_parameters=config.offload_parameters,
        offload_ratio=config.offload_ratio,
        optimizer=config.optimizer_name or None,
        any_cpu_optimizer=config.any_cpu_optimizer,
        precision=config.precision,
        bf16_states=config.bf16_states,
        gradient_type=config.gradient_type,
        reduce_scatter=config.reduce_scatter,
        splits_vocabulary=config.splits_vocabulary,
        quantized_weights=config.quantized_weights,
    )


def shape_of(model: ModelSpec) -> ModelShape:
    """The shape of a model whose sizes are known."""
    unlimited = model.position in UNLIMITED_POSITIONS
    return ModelShape(
        name=model.name,
        model_type=model.model_type,
        attention_heads=model.attention_heads,
        kv_heads=model.kv_heads,
        layers=model.layers,
        experts=model.moe.experts if model.moe else 1,
        positions=None if unlimited else model.max_position_embeddings,
        latent=model.mla is not None,
        windowed=model.sliding_window is not None,
        two_halves=model.is_two_halves,
        recurrent=model.recurrent is not None,
        indexed=model.mla is not None and model.mla.index_heads > 0,
    )


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    large = [number // n for n in reversed(small) if n * n != number]
    return (*small, *large)


def listed(numbers: tuple[int, ...]) -> str:
    """`1, 2, 4 or 8`; a long list keeps its ends."""
    shown = numbers if len(numbers) <= LONGEST_LIST else (*numbers[:7], *numbers[-2:])
    words = [str(number) for number in shown]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
