"""The model card beside trained weights: what they are, whose licence they are under, how to load.

It is what one needs to publish or serve the folder: base model, licence, method, data by name (a
path would tell of the machine), settings, measured and predicted figures, versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dsforge import __version__
from dsforge.checkpoints.export import Kind
from dsforge.errors import DsforgeError
from dsforge.job import TrainJob
from dsforge.masking import printable
from dsforge.measurement import Evaluation
from dsforge.reading.job import read_job
from dsforge.render.engine import render_text, template_environment
from dsforge.report.run_folder import read_run
from dsforge.report.run_sections import Ran, compared
from dsforge.specs import LoraSpec
from dsforge.train.checkpoints.note import CheckpointNote
from dsforge.train.checkpoints.own_run import OwnRun
from dsforge.train.checkpoints.run_identity import Value
from dsforge.train.model.source import ModelSource, model_source
from dsforge.train.results.licence import Licence, licence_of
from dsforge.train.results.loading import loading_code, serving_command, serving_note
from dsforge.units import gib, likely_text, seconds

CARD = "README.md"
LORA = "lora."
SHOWN_SETTINGS = {  # rows of the table by the key of train.yaml or ds_config
    "sequence_length": "sequence length, tokens",
    "packing": "packing",
    "optimizer.params.lr": "peak learning rate",
    "schedule": "schedule",
    "warmup_steps": "warm-up steps",
    "optimizer.params.weight_decay": "weight decay",
    "gradient_clipping": "gradient clipping",
}


class Base(NamedTuple):
    """The model that training began from: what adapters name, and how it is called in a text."""

    name: str
    is_path: bool
    text: str


@dataclass(frozen=True, slots=True)
class TrainedResult:
    """A run as its results describe it; what is not known is left out.

    `data` are the files of training and validation; `output` the folder of figures.
    """

    source: ModelSource | None
    note: CheckpointNote | None = None
    data: tuple[str, ...] = ()
    output: Path | None = None
    lora: LoraSpec | None = None

    def files(self, kind: Kind) -> Mapping[str, bytes]:
        """The card of weights and the licence files of their base, by name."""
        if self.source is None and self.note is None:
            return {}
        licence = licence_of(self.source) if self.source else Licence()
        card = render_text(
            template_environment(), "results/model_card.md.j2", self._card(kind, licence)
        )
        return {**licence.files, CARD: card.encode()}

    def _card(self, kind: Kind, licence: Licence) -> CardContext:
        base = self._base(licence)
        ran = self._ran()
        is_adapter = kind == "adapter"
        lora = self.lora or lora_of(self.note)
        gguf = bool(self.source and self.source.gguf_file)
        figures = tuple(_figures(ran))
        named = None if base.is_path else base.name
        two_sides = _has_two_sides(self.note)
        return CardContext(
            header=tuple(_header(kind, base, licence, lora, two_sides=two_sides)),
            title=f"{'Adapter of' if is_adapter else 'Model from'} {base.text}",
            method=method(lora),
            base=base,
            merged=lora is not None and not is_adapter,
            is_adapter=is_adapter,
            licence=tuple(_licence_lines(base, licence)),
            code=loading_code(kind, lora, named, gguf=gguf, two_sides=two_sides),
            server="" if two_sides else serving_command(kind, lora, named, gguf=gguf),
            serving_note=serving_note(kind, lora, gguf=gguf),
            training=tuple(_training(self.note, lora, self.data)),
            figures=figures,
            is_predicted=any(predicted for _, predicted, _ in figures),
            versions=tuple(ran.measurement.versions.items()) if ran and ran.measurement else (),
            version=__version__,
        )

    def _base(self, licence: Licence) -> Base:
        """The base by its id; by its name alone where it is a file or folder of this machine."""
        if self.source is None:
            return Base("", True, "an unknown model")
        if self.source.gguf_file:
            said = f"{licence.model}, " if licence.model else ""
            return Base("", True, f"{said}`{_plain(self.source.gguf_file)}`")
        if Path(self.source.name).exists():
            return Base("", True, f"`{_plain(Path(self.source.name).resolve().name)}`")
        return Base(self.source.name, False, f"`{_plain(self.source.name)}`")

    def _ran(self) -> Ran | None:
        """Figures of the run; none where there are none that can be read."""
        try:
            return read_run(self.output).ran if self.output else None
        except DsforgeError:
            return None


def result_of_job(job: TrainJob, folder: Path, note: CheckpointNote, output: Path) -> TrainedResult:
    """The result of a run that has just ended; `folder` is that of train.yaml."""
    source = model_source(job.model, folder)
    return TrainedResult(source, note, data_names(job), output, job.lora)


def result_of_checkpoint(run: OwnRun, checkpoint: Path, model: Path | None) -> TrainedResult:
    """The result of a checkpoint; `model` is the folder of its base, where a person named one."""
    source = ModelSource(str(model)) if model else run.source
    if run.folder is None:
        return TrainedResult(source)
    output = checkpoint.resolve().parent.parent  # output/checkpoints/global_stepN
    try:
        data = data_names(read_job(run.folder / "train.yaml"))
    except DsforgeError:
        data = ()
    return TrainedResult(source, run.note, data, output)


def data_names(job: TrainJob) -> tuple[str, ...]:
    """The files of training and validation."""
    return tuple(name for name in (job.data.train, job.data.validation) if name)


class CardContext(NamedTuple):
    """What the template of a card sees."""

    header: tuple[tuple[str, Any], ...]
    title: str
    method: str
    base: Base
    merged: bool
    is_adapter: bool
    licence: tuple[str, ...]
    code: str
    server: str
    serving_note: str
    training: tuple[tuple[str, str], ...]
    figures: tuple[tuple[str, str, str], ...]
    is_predicted: bool
    versions: tuple[tuple[str, str], ...]
    version: str


def method(lora: LoraSpec | None) -> str:
    """How was trained, as the first words of a sentence."""
    if lora is None:
        return "Full fine-tuning"
    if lora.frozen_format is not None:
        return f"QLoRA fine-tuning (frozen matrices in {lora.frozen_format})"
    return "LoRA fine-tuning"


def lora_of(note: CheckpointNote | None) -> LoraSpec | None:
    """The adapters that the note of a checkpoint describes."""
    job = note.run.job if note and note.run else {}
    if f"{LORA}rank" not in job:
        return None
    values = {name.removeprefix(LORA): v for name, v in job.items() if name.startswith(LORA)}
    lists = ("targets", "modules_to_save")
    values |= {name: json.loads(str(values[name])) for name in lists if values.get(name)}
    try:
        return LoraSpec.model_validate(values)
    except ValueError:  # written by another release
        return None


def _header(
    kind: Kind, base: Base, licence: Licence, lora: LoraSpec | None, *, two_sides: bool
) -> Iterator[tuple[str, Any]]:
    """The metadata by which the hub and vLLM know a model (hub-docs, modelcard.md)."""
    if base.name:
        yield "base_model", base.name
    if licence.name or licence.files:
        yield "license", licence.key or "other"
    if licence.name not in ("", licence.key):
        yield "license_name", licence.name
    if licence.link:
        yield "license_link", licence.link
    yield "library_name", "peft" if kind == "adapter" else "transformers"
    yield "pipeline_tag", "text2text-generation" if two_sides else "text-generation"
    trained = "full" if lora is None else "qlora" if lora.frozen_format else "lora"
    yield "tags", ["dsforge", "deepspeed", trained]


def _has_two_sides(note: CheckpointNote | None) -> bool:
    """Whether the model has an encoder and a decoder, as its run recorded it."""
    run = note.run if note is not None else None
    return run is not None and bool(run.configuration.get("is_encoder_decoder"))


def _licence_lines(base: Base, licence: Licence) -> Iterator[str]:
    """What is known of the terms of these weights; a person has to read them before publishing."""
    if licence.name not in ("", "other"):
        yield (
            f"The base model is under `{licence.name}` ({licence.named_in}). These weights are "
            "derived from it, and its terms apply to them."
        )
    elif licence.files:
        yield "These weights are derived from the base model, and the terms of its licence apply."
    else:
        where = f": see https://huggingface.co/{base.name}" if base.name else ""
        yield (
            f"The files of the base model state no licence{where}. Its terms apply to these "
            "weights, which are derived from it: find them out before you pass them on."
        )
    if licence.files:
        names = ", ".join(f"`{name}`" for name in licence.files)
        yield f"Its licence files are copied into this folder: {names}."
    yield "dsforge does not know the licence of the training data."


def _training(
    note: CheckpointNote | None, lora: LoraSpec | None, data: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Rows of the settings of a run."""
    names = [_plain(Path(name).name) for name in data]
    if lora is not None:
        yield "adapters", _adapters(lora)
    if names:
        yield "training data", f"`{names[0]}`" + (f", {note.samples:,} samples" if note else "")
    if len(names) > 1:
        yield "validation data", f"`{names[1]}`"
    if note is None or note.run is None:
        return
    run = note.run
    yield "optimizer steps", f"{note.step:,} of {run.total_steps:,}"
    yield "samples per step", f"{note.global_batch_size:,}"
    known: dict[str, Value] = {**run.settings, **run.job}
    for key, label in SHOWN_SETTINGS.items():
        if known.get(key) not in (None, False):
            yield label, _plain(str(known[key]).lower() if known[key] is True else str(known[key]))
    yield "optimizer", _plain(run.optimizer)
    yield "precision", _plain(run.precision)
    yield "seed", str(note.seed)
    yield "ranks", f"{note.world_size:,}, ZeRO stage {note.zero_stage}"


def _adapters(lora: LoraSpec) -> str:
    where = "all matrices of attention and MLP" if lora.is_on_all else ", ".join(lora.targets)
    beside = f"; trained in full: {', '.join(lora.modules_to_save)}" if lora.modules_to_save else ""
    return f"rank {lora.rank}, alpha {lora.alpha:g}, dropout {lora.dropout:g}, on {where}{beside}"


def _figures(ran: Ran | None) -> Iterator[tuple[str, str, str]]:
    """Losses, and what was measured beside what the plan predicted."""
    if ran is None:
        return
    if ran.steps:
        yield f"training loss, step {ran.steps[-1].step:,}", "", f"{ran.steps[-1].loss:.4f}"
    held_out = [record for record in ran.metrics if isinstance(record, Evaluation)]
    if held_out:
        last = held_out[-1]
        yield f"validation loss, step {last.step:,}", "", f"{last.validation_loss:.4f}"
    run = ran.measurement
    if run is None:
        return
    if ran.plan is None or ran.priced is None:
        yield "step time", "", seconds(sorted(run.step_s)[len(run.step_s) // 2])
        yield (
            "memory of the fullest rank",
            "",
            gib(run.memory.allocated_bytes or run.memory.host_bytes),
        )
        return
    for each in compared(ran.plan, ran.priced, run):
        exact = each.predicted.low == each.predicted.high
        said = each.text(each.predicted.likely)
        said = said if exact else likely_text(each.predicted, each.text)
        yield each.name, said, each.text(each.measured)


def _plain(text: str) -> str:
    """Text from files as a cell of a table shows it: one line without marks of Markdown."""
    return " ".join(printable(text).translate(str.maketrans("|`<>", "    ")).split())[:200]
