"""Which runs a comparison needs: one cell for each strategy and repeat, in the order of launch."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from pydantic import BaseModel, Field

from dsforge.errors import LayoutError, Problem, SpecError
from dsforge.job import TorchStrategy
from dsforge.plan import Plan, Priced, Request, VariantName
from dsforge.planner import appraise
from dsforge.planner.pricing import price
from dsforge.specs import FROZEN
from dsforge.strategy import EXECUTIONS, Constraints, ZeroStage

TorchName = Literal["ddp", "torch_zero1", "fsdp2"]
SplitName = Literal["3d"]
BenchName = VariantName | TorchName | SplitName
STAGES = ("zero1", "zero2", "zero3")  # that a number names


class OnTorch(NamedTuple):
    """A strategy of plain torch, and the variant of the plan whose batches it takes."""

    strategy: TorchStrategy
    trainer: str  # what estimates call it
    zero_stage: ZeroStage  # that shards the same
    like: VariantName


ON_TORCH: dict[BenchName, OnTorch] = {
    "ddp": OnTorch("ddp", "ddp", 0, "zero1"),
    "torch_zero1": OnTorch("zero1", "ddp", 1, "zero1"),
    "fsdp2": OnTorch("fsdp2", "fsdp", 3, "zero3"),
}
SPLIT: tuple[BenchName, ...] = get_args(SplitName)  # of no variant of the plan
LEAST_SPLIT = 4  # ranks of a replica: two stages, two tensor ranks each
OF_DEEPSPEED: tuple[BenchName, ...] = tuple(n for n in get_args(VariantName) if n != "megatron")
# In order of sharding: the first of those that are fast enough is recommended.
STRATEGIES: tuple[BenchName, ...] = ("ddp", "torch_zero1", *OF_DEEPSPEED, "fsdp2", "3d")


class Cell(BaseModel):
    """One launch of the matrix."""

    model_config = FROZEN

    variant: BenchName = Field(
        description="Strategy by the name of its files; `ddp`, `torch_zero1` and `fsdp2` are those "
        "of plain torch; `3d` is pipeline x tensor x data parallelism under DeepSpeed."
    )
    repeat: int = Field(ge=1, description="Repetition of the launch, counted from 1.")

    @property
    def name(self) -> str:
        """Folder of the cell: `zero2-1`."""
        return f"{self.variant}-{self.repeat}"

    @property
    def config(self) -> str:
        """The file that says how it trains: a ds_config, or the job with its `torch` block."""
        return "train.yaml" if self.variant in ON_TORCH else f"deepspeed/{self.variant}.json"


def parse_strategies(text: str) -> tuple[BenchName, ...]:
    """Names from the command line: `2,3` or `zero2,fsdp2`, each once, in order of sharding.

    Raises SpecError with every word that is no strategy.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    names = [f"zero{word}" if word.isdecimal() else word for word in words]
    wrong = [w for w, name in zip(words, names, strict=True) if name not in STRATEGIES]
    if wrong or not words:
        legal = "1, 2, 3, " + ", ".join(name for name in STRATEGIES if name not in STAGES)
        problems = [
            Problem("bench-strategy", f"`--stages` (={word}) is not a strategy", f"use {legal}")
            for word in wrong or [text]
        ]
        raise SpecError(tuple(problems))
    return tuple(name for name in STRATEGIES if name in names)


def priced(plan: Plan, variant: BenchName) -> Priced:
    """Strategy and price of a variant. Raises LayoutError where the plan has no such variant."""
    on_torch = ON_TORCH.get(variant)
    if on_torch is not None:
        return _priced_on_torch(plan, on_torch)
    if variant in SPLIT:
        return _priced_in_3d(plan)
    found = next((v for v in plan.variants if v.name == variant), None)
    if found is not None and found.priced is not None:
        return found.priced
    missing = Problem("bench-variant", f"the plan has no {variant}", "run `dsforge gen` again")
    raise LayoutError(found.problems if found and found.problems else (missing,))


def _priced_on_torch(plan: Plan, wanted: OnTorch) -> Priced:
    """A strategy of torch with the layout and the batches of a variant of the plan."""
    like = priced(plan, wanted.like).strategy
    run = EXECUTIONS[wanted.trainer].model_copy(
        update={"loss": like.runs_as.loss, "gradients": "fp32"}
    )
    update = {"zero_stage": wanted.zero_stage, "hpz_partition_size": 1, "execution": run}
    strategy = like.model_copy(update=update)
    return price(plan.model, plan.cluster, plan.workload, strategy)


def _priced_in_3d(plan: Plan) -> Priced:
    """The plan's own choice where it is 3D, else the best with two stages and two tensor ranks.

    Raises LayoutError where the model or the number of ranks does not allow it.
    """
    layout = plan.strategy.layout
    sizes = layout.pipeline_parallel_size, layout.tensor_parallel_size, layout.data_parallel_size
    if min(sizes) > 1 and plan.strategy.engine.has_zero_stages:
        return plan.choice
    if plan.cluster.gpus % (2 * LEAST_SPLIT):
        message = f"{plan.cluster.gpus} ranks cannot be divided into 2 stages x 2 x 2 replicas"
        raise LayoutError((Problem("bench-3d", message, "use a multiple of 8 ranks"),))
    fixed = Constraints(back_end="deepspeed", tensor_parallel_size=2, pipeline_parallel_size=2)
    asked = Request(
        model=plan.model, cluster=plan.cluster, workload=plan.workload, constraints=fixed
    )
    return appraise(asked).choice


def matrix(plan: Plan, variants: tuple[BenchName, ...], repeats: int) -> tuple[Cell, ...]:
    """All cells; repeats are interleaved, so that a slow spell of the machine hits every strategy.

    Raises LayoutError with the broken rules of every variant that the plan forbids.
    """
    problems: list[Problem] = []
    for variant in variants:
        try:
            priced(plan, variant)
        except LayoutError as error:
            problems += error.problems
    if problems:
        raise LayoutError(tuple(problems))
    rounds = range(1, repeats + 1)
    return tuple(Cell(variant=name, repeat=repeat) for repeat in rounds for name in variants)
