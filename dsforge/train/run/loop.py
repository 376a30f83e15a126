"""The fine-tuning loop: a TrainJob in, a folder of checkpoints, metrics and final weights out.

What can be wrong with the input is found before any process group exists: a mistake costs seconds,
not a hang of all ranks. The loop itself keeps no state that a checkpoint lacks: sample order and
random numbers are functions of seed, step and rank, so a resumed run goes on as if never stopped.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dsforge.errors import DsforgeError
from dsforge.job import TrainJob
from dsforge.measurement import Evaluation
from dsforge.origin import install_command
from dsforge.reading.job import read_job
from dsforge.train.checkpoints.note import (
    CheckpointNote,
    check_note,
    check_run,
    checkpoints,
    step_of,
)
from dsforge.train.checkpoints.resume import Beginning, chosen_beginning, retune, sound
from dsforge.train.checkpoints.run_identity import RunIdentity, identity_of
from dsforge.train.checkpoints.save_policy import Saver
from dsforge.train.data.pairs import sources as pair_sources
from dsforge.train.data.preparation import Prepared, prepare_data, read_data
from dsforge.train.data.samples import Order, Sample
from dsforge.train.engines.adapter import Adapter
from dsforge.train.engines.engine import Engine
from dsforge.train.engines.registry import adapter_of
from dsforge.train.model.build import build_model, check_source, compile_layers
from dsforge.train.model.source import ModelSource, load_tokenizer, model_source
from dsforge.train.model.trained_state import base_checksum
from dsforge.train.options import Options
from dsforge.train.parallel.agreement import check_agreement, largest, on_first_rank
from dsforge.train.parallel.engine_config import EngineConfig
from dsforge.train.parallel.ranks import (
    Place,
    leave,
    place_of_process,
    prefer_own_tools,
)
from dsforge.train.run.build_locks import free_builds
from dsforge.train.run.heartbeat import IMPORTING, Heartbeat
from dsforge.train.run.learning_rate import rate_factor
from dsforge.train.run.meters import Meters
from dsforge.train.run.metrics_file import MetricsFile
from dsforge.train.run.output_lock import check_holder, held
from dsforge.train.run.outputs import check_inputs
from dsforge.train.run.prediction import read_prediction
from dsforge.train.run.preference_step import PreferenceStepper
from dsforge.train.run.progress import Screen
from dsforge.train.run.references import FILE as REFERENCES
from dsforge.train.run.references import give_references, precomputes
from dsforge.train.run.signals import STOPPED, Attendant, Phase
from dsforge.train.run.step import Stepper
from dsforge.train.run.watchdog import Watchdog, record_flights
from dsforge.train.run.written_report import write_report

MODEL_PACKAGES = ("transformers", "peft", "safetensors")


def train(
    path: Path,
    options: Options | None = None,
    attendant: Attendant | None = None,
    heartbeat: Heartbeat | None = None,
) -> int:
    """The exit code of a fine-tuning run: 0, also after SIGTERM or SIGHUP, and 130 after Ctrl-C.

    After such a signal the step is finished and a checkpoint saved, and no weights are exported.
    Every rank calls this. Raises DsforgeError, before any process group exists where it can.
    """
    options, attendant = options or Options(), attendant or Attendant()
    place = place_of_process()
    job = read_job(path)
    job = job.model_copy(update=options.changes)
    check_installed(adapter_of(job).packages)
    folder = path.resolve().parent
    output = options.output.resolve() if options.output else folder / job.output
    screen = Screen(shown=place.is_first, heartbeat=heartbeat)
    check_inputs(job, path, output)
    with held(output, place, screen.say, attendant.on_leaving):
        beginning = chosen_beginning(options.resume, output, overwrite=options.overwrite)
        start = Start(job, folder, output, beginning, options, place, screen, attendant)
        return start.carried_out()


@dataclass(frozen=True, slots=True)
class Start:
    """A run about to begin: what to do, where, and after which checkpoint."""

    job: TrainJob
    folder: Path
    output: Path
    beginning: Beginning
    options: Options
    place: Place
    screen: Screen
    attendant: Attendant

    def carried_out(self) -> int:
        """The exit code of the run."""
        job, folder, screen, beginning = self.job, self.folder, self.screen, self.beginning
        adapter = adapter_of(job)
        config = adapter.read_config(
            job, folder, self.place.world_size, beginning.global_batch_size
        )
        place = replace(self.place, layout=config.mode.layout)
        screen.doing(f"checking the rows of {Path(job.data.train).name}")
        rows = read_data(job, folder, screen)
        screen.doing(IMPORTING)
        prefer_own_tools()
        _silence_libraries(adapter)
        adapter.choose_device(place)
        adapter.check_precision(config.precision)
        two_sides = check_source(job, folder, config)
        screen.doing("loading the tokenizer")
        tokenizer = load_tokenizer(job, folder)
        screen.doing(f"tokenizing {Path(job.data.train).name}")
        data = prepare_data(job, rows, tokenizer, place, screen=screen, two_sides=two_sides)
        self.output.mkdir(parents=True, exist_ok=True)
        screen.prediction = read_prediction(folder, job, config)
        saver = Saver(self.output / "checkpoints", job.keep_checkpoints, screen.say)
        run = Run(job, config, place, data, self.output, screen, saver, self.attendant)
        record_flights()
        if place.local_rank == 0:
            free_builds(screen.say)
        check_holder(self.output, place)
        screen.doing(f"waiting for all {place.world_size} ranks")
        adapter.join(place)
        code = run.carry_out(folder, tokenizer, beginning, export=self.options.export)
        if place.is_first:
            for line in write_report(self.output):
                screen.say(line)
        leave()  # not after a failure: ranks that wait for each other then would hide its cause
        return code


def check_installed(engine: tuple[str, ...]) -> None:
    """Raise DsforgeError where packages of an engine are missing; nothing is imported."""
    missing = [name for name in (*engine, *MODEL_PACKAGES) if find_spec(name) is None]
    if missing:
        message = f"training needs {', '.join(missing)}, not installed here"
        raise DsforgeError(message, f"install with: {install_command('train')}")


def _silence_libraries(adapter: Adapter) -> None:
    """Keep the libraries' own chatter out of the progress display; warnings still show."""
    from transformers.utils import logging as transformers_logging

    adapter.silence()
    transformers_logging.disable_progress_bar()


@dataclass(slots=True)
class Run:
    """One run as this rank sees it."""

    job: TrainJob
    config: EngineConfig
    place: Place
    data: Prepared
    output: Path
    screen: Screen
    saver: Saver
    attendant: Attendant
    identity: RunIdentity | None = None

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step."""
        per_rank = self.config.micro_batch_size * self.config.gradient_accumulation_steps
        return per_rank * self.place.replicas

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        passes = self.job.epochs * len(self.data.train) / self.global_batch_size
        return self.job.steps or max(1, round(passes))

    def carry_out(self, folder: Path, tokenizer: Any, beginning: Beginning, *, export: bool) -> int:
        """The exit code after training, the last checkpoint and the export."""
        chosen, done = beginning.checkpoint, 0
        begins = step_of(chosen) if chosen else 0
        check_agreement(
            begins, "the step to resume after", "`output` must be on a disk that all hosts share"
        )
        resumed = sound(chosen, self.screen.say, fall_back=beginning.falls_back)
        note = check_note(resumed, self._note(0)) if resumed else None
        self.screen.doing(f"loading the weights of {Path(self.job.model).name}")
        model = build_model(self.job, folder, self.config)
        self.identity = self._identity(model)
        changed = check_run(note, self.identity) if note else []
        self.screen.doing("starting the engine; its C++ ops are built at the first start")
        engine = self._engine(model)
        on_first_rank(beginning.clear)
        adapter = adapter_of(self.job)
        stepper = adapter.stepper(engine, self.job, tokenizer.pad_token_id, self.place)
        self._give_references(stepper, model_source(self.job.model, folder), model)
        if resumed is not None and note is not None:
            done = note.step
            self.screen.doing(f"loading the checkpoint of step {note.step}")
            engine.restore(resumed, note, self._note(0))
            for line in (
                self._resumed(resumed, note),
                *retune(engine, changed),
                *self._resume_notes(note),
            ):
                self.screen.say(line)
        meters = Meters(self.config, self.place, adapter.packages, self.screen.prediction)
        engine.count_sent(meters.traffic)
        self.attendant.enter(Phase.TRAINING)
        wish = self._steps(stepper, done, meters) or self._late_wish(done)
        for line in meters.write(self.output / "measurement.json"):
            self.screen.say(line)
        if wish == 0 and export and self.job.save:
            self._export(engine, tokenizer, folder, max(done, self.total_steps))
        return STOPPED if wish == signal.SIGINT else 0

    def _give_references(self, stepper: Stepper, source: ModelSource, model: Any) -> None:
        """Have the log probabilities of the reference of preference training, where it asks."""
        if not isinstance(stepper, PreferenceStepper) or not precomputes(self.job):
            return
        job, data = self.job, self.data
        base = base_checksum(source, model.config) or job.seed
        given = [data.train_digest, data.validation_digest, job.model, base, self.config.precision]
        found = pair_sources(data.train, data.validation)
        path = self.output / REFERENCES
        give_references(found, stepper, path=path, what=given, screen=self.screen)

    def _export(self, engine: Engine, tokenizer: Any, folder: Path, done: int) -> None:
        """Write the final weights with the files that describe them; all ranks call it."""
        from dsforge.train.checkpoints.final_weights import export
        from dsforge.train.results.card import result_of_job

        self.attendant.enter(Phase.EXPORT)
        self.screen.doing("writing the final weights")
        describe = result_of_job(self.job, folder, self._note(done), self.output).files
        written = export(engine, tokenizer, self.output / "model", describe)
        self.screen.say(f"weights written and checked: {written}")

    def _engine(self, model: Any) -> Engine:
        """The engine around the model, with our schedule on its optimizer."""
        if self.job.compile:
            compile_layers(model)
        factor = rate_factor(self.job, self.total_steps)
        return adapter_of(self.job).start(model, self.job, self.config, factor)

    def _identity(self, model: Any) -> RunIdentity:
        return identity_of(
            self.job,
            self.config,
            data=self.data.train_digest,
            validation=self.data.validation_digest,
            model=model,
            steps=self.total_steps,
        )

    def _note(self, step: int) -> CheckpointNote:
        layout = self.config.mode.layout
        return CheckpointNote(
            step=step,
            engine=self.config.engine,
            strategy=self.config.strategy,
            world_size=self.place.world_size,
            zero_stage=self.config.zero_stage,
            global_batch_size=self.global_batch_size,
            seed=self.job.seed,
            samples=len(self.data.train),
            tensor_parallel_size=layout.tensor_parallel_size,
            pipeline_parallel_size=layout.pipeline_parallel_size,
            context_parallel_size=layout.context_parallel_size,
            run=self.identity,
        )

    def _resumed(self, path: Path, note: CheckpointNote) -> str:
        """What is said of a resume; what has changed since, with it."""
        said = f"resumed from {path} after step {note.step}"
        if note.ranks == self._note(0).ranks:
            return said
        was = f"{note.world_size} ranks under {note.label}"
        batch = f"{self.config.micro_batch_size} x {self.config.gradient_accumulation_steps}"
        return f"{said}, saved by {was}; {batch} samples on each rank keep the global batch"

    def _resume_notes(self, note: CheckpointNote) -> Iterator[str]:
        """What else a person should know of a resume."""
        if note.run is None:
            what = "data, model and settings are not compared"
            yield f"the checkpoint was written by an older dsforge: {what}"
        asked, kept = self.config.asked_batch_size, note.global_batch_size
        if asked not in (None, kept) and note.world_size == self.place.world_size:
            why = "a resumed run keeps its global batch"
            yield f"train_batch_size {kept} -> {asked} is ignored: {why}"
        if note.step > self.total_steps:
            yield f"step {note.step} is past the last step, {self.total_steps}: there is nothing "
            "to train"

    def _late_wish(self, done: int) -> int:
        """A signal that came after the last step, in its save or validation; all ranks agree."""
        wish = round(largest(float(self.attendant.signal_number))[0])
        if wish:
            self.screen.say(f"stopped by a signal after step {max(done, self.total_steps)}")
        return wish

    def _steps(self, stepper: Stepper, done: int, meters: Meters) -> int:
        """The signal that ended training early, all ranks agreeing; 0 after the last step."""
        total, wish = self.total_steps, 0
        by_length = self.job.batching == "by_length"
        order = Order(self.data.train, self.job.seed, self.global_batch_size, by_length=by_length)
        metrics = MetricsFile(self.output / "metrics.jsonl", done) if self.place.is_first else None
        watchdog = Watchdog(
            self.output / "hang", self.place, self.job.hang_after_s, self._newest_checkpoint
        )
        with self.screen.counting("train", total, done), watchdog:
            for step in range(done, total):
                samples = self._samples(order, step)
                self.screen.doing(f"step {step + 1}/{total}")
                with watchdog.over(f"step {step + 1}"):
                    figures = meters.measured(partial(stepper.step, step, samples, self.attendant))
                wish = meters.results[-1].wish
                logged = (step + 1) % self.job.log_every == 0 or step + 1 == total
                if metrics and logged:
                    metrics.add(figures)
                    stepper.engine.report(figures)
                left_s = meters.mean_step_s * (total - step - 1)
                self.screen.step(figures, total, left_s, line=logged)
                with watchdog.beside_steps(f"the checkpoint or validation after step {step + 1}"):
                    self._after(step + 1, stepper, metrics, wish)
                if wish:
                    saved = "saved" if self.job.save else "not asked for"
                    self.screen.say(f"stopped by a signal; checkpoint of step {step + 1} {saved}")
                    break
        return wish

    def _newest_checkpoint(self) -> Path | None:
        return next(reversed(checkpoints(self.saver.folder)), None)

    def _samples(self, order: Order, step: int) -> list[Sample]:
        """The global batch of a step, the same on every rank."""
        return [self.data.train[index] for index in order.indices(step)]

    def _after(self, done: int, stepper: Stepper, metrics: MetricsFile | None, wish: int) -> None:
        """Validate and save where it is time, and after the last step."""
        end = done == self.total_steps
        every = self.job.evaluate_every
        if self.data.validation and not wish and (end or (every and done % every == 0)):
            self.screen.doing("validating")
            loss = stepper.evaluate(self.data.validation, self.config.micro_batch_size)
            self.screen.say(f"step {done}: validation loss {loss:.4f}")
            if metrics:
                metrics.add(Evaluation(done, loss))
                stepper.engine.report(Evaluation(done, loss))
        every = self.job.checkpoint_every
        if self.job.save and (end or wish or (every and done % every == 0)):
            self.screen.doing("saving a checkpoint")
            self.saver.save(stepper.engine, self._note(done))
        elif self.job.save and not self.saver.knows_cost:
            self.saver.rehearse(stepper.engine)
