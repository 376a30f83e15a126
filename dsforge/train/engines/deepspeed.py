"""DeepSpeed as an engine to train with: `deepspeed.initialize`, in every mode that it has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsforge.ds_config import read
from dsforge.errors import DsforgeError, Problem
from dsforge.job import TrainJob
from dsforge.measurement import Evaluation, StepMetrics
from dsforge.strategy import Strategy
from dsforge.train.checkpoints import deepspeed_files
from dsforge.train.checkpoints.deepspeed_weights import consolidated
from dsforge.train.checkpoints.forms import saved_by
from dsforge.train.checkpoints.loading import strict_loading
from dsforge.train.checkpoints.note import CheckpointNote
from dsforge.train.checkpoints.reshape import fill, loads_own_states
from dsforge.train.checkpoints.resume import set_rates
from dsforge.train.checkpoints.written import OwnFiles
from dsforge.train.engines.adapter import Adapter, RateFactor
from dsforge.train.engines.engine import Engine
from dsforge.train.model.qlora import quantisation_problems
from dsforge.train.model.source import has_two_sides
from dsforge.train.parallel import ranks
from dsforge.train.parallel.engine import start_engine
from dsforge.train.parallel.engine_config import EngineConfig, read_engine_config
from dsforge.train.parallel.low_bit_optimizer import optimizer_problems
from dsforge.train.parallel.modes import check_model
from dsforge.train.parallel.pipeline_step import PipelineStepper
from dsforge.train.parallel.ranks import Place
from dsforge.train.parallel.ulysses import SequenceStepper
from dsforge.train.run.metrics_file import monitor
from dsforge.train.run.preference_step import PreferenceStepper
from dsforge.train.run.sides_step import SidesStepper
from dsforge.train.run.step import Stepper
from dsforge.train.run.traffic import Traffic


@dataclass(frozen=True, slots=True)
class DeepSpeedEngine:
    """What `deepspeed.initialize` returned, with the names that all engines share."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        """What the steppers of DeepSpeed's own modes ask of it."""
        return getattr(self.inner, name)

    def __call__(self, **inputs: Any) -> Any:
        """Forward pass."""
        return self.inner(**inputs)

    @property
    def module(self) -> Any:
        """The model; under pipeline parallelism this rank's stage."""
        return self.inner.module

    @property
    def lr_scheduler(self) -> Any:
        """The schedule around DeepSpeed's optimizer."""
        return self.inner.lr_scheduler

    @property
    def device(self) -> Any:
        """Where inputs must be."""
        return self.inner.device

    @property
    def micro_batch_size(self) -> int:
        """Samples of a data-parallel rank in one forward pass."""
        return int(self.inner.train_micro_batch_size_per_gpu())

    @property
    def scales_loss(self) -> bool:
        """Whether it trains in fp16."""
        return bool(self.inner.fp16_enabled())

    @property
    def loss_scale(self) -> float:
        """What DeepSpeed multiplies the loss with before backward."""
        return float(getattr(self.inner.optimizer, "loss_scale", 1.0))

    def train(self) -> None:
        """Set the model to training."""
        self.inner.train()

    def eval(self) -> None:
        """Set the model to evaluation."""
        self.inner.eval()

    def learning_rate(self) -> float:
        """Learning rate of the next optimizer step."""
        return float(self.inner.get_lr()[0])

    @contextmanager
    def micro_step(self, *, last: bool) -> Iterator[None]:
        """DeepSpeed counts micro steps itself: each ends with its `step`."""
        yield
        self.inner.step()

    def backward(self, loss: Any) -> None:
        """Add gradients; DeepSpeed divides by the micro steps and takes the mean over ranks."""
        self.inner.backward(loss)

    def gradient_norm(self) -> float | None:
        """Norm of the gradients of the last step before clipping; none where it has none."""
        norm = self.inner.get_global_grad_norm()
        return None if norm is None else float(norm)

    def count_sent(self, traffic: Traffic) -> None:
        """Have the bytes counted at DeepSpeed's communication back end."""
        import deepspeed.comm.comm as communication

        traffic.watch(communication.cdb)

    def report(self, record: StepMetrics | Evaluation) -> None:
        """Hand figures to the monitors of the DeepSpeed config."""
        monitor(self.inner, record)

    def checkpoint_bytes(self) -> int:
        """Bytes of this rank's part of a checkpoint, predicted."""
        return deepspeed_files.checkpoint_bytes(self.inner)

    def write_checkpoint(self, folder: Path, tag: str) -> OwnFiles:
        """Write DeepSpeed's files, read them back and compare."""
        return deepspeed_files.write(self.inner, folder, tag)

    def any_ranks(self) -> bool:
        """Whether its checkpoints say which part of which parameter each rank holds."""
        return deepspeed_files.names_parts(self.inner)

    def restore(self, path: Path, note: CheckpointNote, present: CheckpointNote) -> None:
        """Load weights, optimizer, schedule and scaler. Raises DsforgeError.

        Onto the same ranks through DeepSpeed's own loader, bit for bit; else through `reshape`.
        """
        if note.ranks != present.ranks or not loads_own_states(self.inner):
            fill(self.inner, saved_by(path, note))
            if note.engine != present.engine:  # its groups have no rates
                set_rates(self.lr_scheduler)
            return
        with strict_loading():
            loaded, _ = self.inner.load_checkpoint(str(path.parent), tag=path.name)
        if loaded is None:
            raise DsforgeError(f"DeepSpeed could not load {path}", "use an older checkpoint")

    def whole_weights(self) -> tuple[Any, dict[str, Any]]:
        """The transformers model, and its weights on the CPU of the first rank, else none."""
        module = self.inner.module
        if hasattr(module, "gathered_weights"):  # a pipeline: no rank has all of the model
            return module.whole, module.gathered_weights()
        return module, consolidated(module)


def read_config(
    job: TrainJob, folder: Path, world_size: int, global_batch_size: int | None
) -> EngineConfig:
    """The DeepSpeed config of a job. Raises SpecError with all problems."""
    return read_engine_config(folder / str(job.deepspeed_config), world_size, global_batch_size)


def job_problems(job: TrainJob, config: EngineConfig, gguf: bool) -> list[Problem]:
    """Why this machine cannot quantise, or store moments, as a job asks."""
    quantising = quantisation_problems(job, config, gguf=gguf)
    return [*quantising, *optimizer_problems(job.optimizer_states, config)]


def model_problems(job: TrainJob, config: EngineConfig, configuration: Any) -> list[Problem]:
    """The constraints that a model breaks in the mode of the config."""
    return check_model(
        config.mode,
        configuration,
        adapters=job.lora is not None,
        attention=job.attention,
        packing=job.packing,
        compiled=job.compile,
        zero_stage=config.zero_stage,
    )


def silence() -> None:
    """Keep DeepSpeed's log out of the progress display; warnings still show."""
    import logging

    from deepspeed.utils import logger

    logger.setLevel(logging.WARNING)


def loading(config: EngineConfig) -> AbstractContextManager[Any]:
    """The context in which transformers loads weights into ZeRO-3 partitions."""
    if not config.shards_parameters:
        return nullcontext()
    from transformers.integrations import HfDeepSpeedConfig, unset_hf_deepspeed_config

    class Loading(AbstractContextManager[Any]):
        """transformers holds the config by a weak reference only."""

        def __enter__(self) -> Any:
            self.config = HfDeepSpeedConfig(config.settings)
            return self.config

        def __exit__(self, *_: object) -> None:
            unset_hf_deepspeed_config()

    return Loading()


def start(model: Any, job: TrainJob, config: EngineConfig, factor: RateFactor) -> Engine:
    """The engine around a model; all ranks call it."""
    return DeepSpeedEngine(start_engine(model, config, factor, job.optimizer_states))


def made_stepper(engine: Engine, job: TrainJob, pad_token: int, place: Place) -> Stepper:
    """The Stepper that suits the mode."""
    kind: type[Stepper] = Stepper if job.preference is None else PreferenceStepper
    if place.sizes.pipeline_parallel_size > 1:
        kind = PipelineStepper
    elif place.sizes.context_parallel_size > 1:
        kind = SequenceStepper
    elif has_two_sides(engine.module.config):
        kind = SidesStepper
    return kind(engine, job, pad_token, place)


def is_planned(plan: Strategy, config: EngineConfig) -> bool:
    """Whether a strategy is that of a config: what decides memory and time is the same."""
    written = read(config.settings, filled_in=False).config
    return (
        plan.back_end == "deepspeed"
        and plan.layout == config.mode.layout
        and plan.zero_stage == config.zero_stage
        and plan.hpz_partition_size == written.hpz_partition_size
        and plan.micro_batch_size == config.micro_batch_size
        and plan.gradient_accumulation_steps == config.gradient_accumulation_steps
        and (plan.runs_as.gradients == "fp32") == written.sums_in_fp32
        and (plan.runs_as.reduced == "fp32") == written.sends_fp32
        and plan.runs_as.quantized_weights == written.quantized_weights
        and plan.runs_as.quantized_gradients == written.quantized_gradients
        and plan.offload_optimizer == written.offload_optimizer
        and plan.runs_as.offload_ratio == written.offload_ratio
        and plan.offload_parameters == written.offload_parameters
    )


ADAPTER = Adapter(
    packages=("torch", "deepspeed"),
    read_config=read_config,
    job_problems=job_problems,
    model_problems=model_problems,
    silence=silence,
    choose_device=ranks.choose_device,
    check_precision=ranks.check_precision,
    join=ranks.join,
    loads_weights=lambda config: True,
    loading=loading,
    start=start,
    stepper=made_stepper,
    is_planned=is_planned,
)
