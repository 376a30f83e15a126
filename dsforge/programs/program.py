"""What a program that trains by itself can do: facts, with the places in its source that say so.

A program computes with one of the `engines`; `Way` says what of that engine the program lets a
person use, and with which kernels, loss and states it runs unless it is told otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.execution import Execution, Recompute
from dsforge.specs import BaseFormat, MethodName, Optimizer, Precision
from dsforge.zero_stages import Offload, ZeroStage

WHOLE: tuple[Recompute, ...] = ("none", "full")
ON_DEVICE: tuple[Offload, ...] = ("none",)
IN_RAM: tuple[Offload, ...] = ("none", "cpu")
ANYWHERE: tuple[Offload, ...] = ("none", "cpu", "nvme")
HALF: tuple[Precision, ...] = ("bf16", "fp32")
MIXED: tuple[Precision, ...] = ("bf16", "fp16", "fp32")
ALL_METHODS: tuple[MethodName, ...] = ("full", "lora", "qlora")


class Way(NamedTuple):
    """What a program can do on one engine."""

    execution: Execution  # the engine, and how the program runs it
    source: str  # version and files of the program that say so
    stages: tuple[ZeroStage, ...]  # ZeRO stages, or FSDP's sharding as the stage that does the same
    optimizers: tuple[Optimizer, ...]
    methods: tuple[MethodName, ...] = ("full",)
    bases: tuple[BaseFormat, ...] = ("nf4",)  # formats of frozen matrices, with qlora
    precisions: tuple[Precision, ...] = HALF
    recompute: tuple[Recompute, ...] = WHOLE
    offload_optimizer: tuple[Offload, ...] = ON_DEVICE
    offload_parameters: tuple[Offload, ...] = ON_DEVICE
    offloads_together: bool = False  # parameters and optimizer leave the device both or not at all
    tensor: bool = False
    pipeline: bool = False
    context: bool = False
    expert: bool = False
    splits_adapters: bool = False  # LoRA with tensor or pipeline parallelism
    combines: bool = False  # more than one of tensor, pipeline and context parallelism in one run
    virtual_stages: bool = False
    sequence_parallel: bool = False  # with tensor parallelism, always
    hpz: bool = False  # ZeRO++'s second copy of the weights
    zero_plus: bool = False  # ZeRO++'s quantised messages
    hybrid: bool = False  # shards within groups of ranks, replicas between them
    activations_in_ram: bool = False  # inputs of checkpointed layers
    tiled_mlp: bool = False  # MLPs over a stretch of the sequence at a time
    chunks_loss: bool = False  # head and loss of some tokens at a time, where the model allows it
    kinds: tuple[str, ...] = ()  # `model_type`s that it knows; none: those of transformers


class Program(NamedTuple):
    """A program that trains, by its ways; the first that shards as asked is taken."""

    name: str  # of `gen --for`
    label: str  # as its project writes it
    ways: tuple[Way, ...]
    start: str = "run.sh"  # file of its folder that starts the ranks, or whose head says how
    starts_all: bool = False  # from one host; the others start the ranks of each host
    is_own: bool = False  # `dsforge train`: its files are train.yaml and the scripts of launch/
