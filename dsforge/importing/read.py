"""Files -> one setup: recognise each, read it with those beside it, derive the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, Field

from dsforge.errors import Problem, SpecError
from dsforge.importing.derived import derive
from dsforge.importing.draft import Draft, Left, Said
from dsforge.importing.files import Files, files_of
from dsforge.importing.forms import Source
from dsforge.importing.idle import idle_command
from dsforge.importing.parts.launching import Slurm, say_launch, say_slurm
from dsforge.importing.parts.precisions import say_precision
from dsforge.importing.recognition import (
    PYTHON,
    STYLES,
    program_of,
    style_of_file,
    style_of_launch,
    style_of_settings,
    weight_of,
)
from dsforge.importing.script_text import arguments_of
from dsforge.importing.shell.expansion import Piece, without_unset
from dsforge.importing.shell.launches import Launch, flags_of, launches
from dsforge.importing.shell.run import Script, followed
from dsforge.importing.signs import DEEPSPEED_LAUNCH, is_known_word
from dsforge.importing.styles import accelerate, gpt_neox, torchtune
from dsforge.importing.values import Settings, Unknown, Value
from dsforge.importing.work import Passed, Style, Work, settings_of_flags, settings_of_launch
from dsforge.reading.refusals import refusal
from dsforge.specs import FROZEN
from dsforge.training_setup import TrainingSetup

KNOWN = ", ".join(style.name for style in STYLES)
FIRST = ("accelerate",)  # what a launcher says comes before what a trainer says
LAST = ("deepspeed",)
MOST_WORDS = 20_000
MOST_STRANGE = 15  # keys that no known program has, where none of the job is read
OF_JOB = (  # what a training job is known by
    "model",
    *("micro_batch_size", "gradient_accumulation_steps", "global_batch_size", "sequence_length"),
    *("precision", "zero_stage", "learning_rate", "recompute", "lora_rank", "optimizer"),
    *("tensor_parallel_size", "pipeline_parallel_size", "adapter"),
)
TOLD = ("said", "named")  # origins of a value that files tell


class ImportedSetup(BaseModel):
    """What files of other programs say."""

    model_config = FROZEN

    style: str = Field(description="Program whose files they are: a name of `STYLES`.")
    styles: tuple[str, ...] = Field(description="Every style that took part, launchers included.")
    files: tuple[str, ...] = Field(description="Paths of what was read, in order.")
    setup: TrainingSetup = Field(description="Settings of the run in dsforge's words.")
    said: tuple[Said, ...] = Field(description="Each value with its place.")
    open: tuple[Left, ...] = Field(description="Values that only the run knows.")
    lost: tuple[Left, ...] = Field(description="Keys without a field in the setup.")
    problems: tuple[Problem, ...] = Field(description="What is wrong with the files.")

    @property
    def samples_per_replica(self) -> int | None:
        """Samples of a data-parallel rank per optimizer step."""
        micro, steps = self.setup.micro_batch_size, self.setup.gradient_accumulation_steps
        if micro and steps:
            return micro * steps
        total, replicas = self.setup.global_batch_size, self.setup.replicas
        return total // replicas if total and replicas and not total % replicas else None


def read_files(paths: Iterable[Path], program: str | None = None) -> ImportedSetup:
    """The setup in the files at some paths; `program` says whose they are. Raises SpecError."""
    return read_setup(files_of(paths), program)


def read_texts(texts: Mapping[str, str]) -> ImportedSetup:
    """The setup in some texts by name: nothing else is looked up. Raises SpecError."""
    return read_setup(Files(texts))


def read_setup(files: Files, program: str | None = None) -> ImportedSetup:
    """The setup in files. Raises SpecError where none of them is of a known program."""
    work = Work(files, Draft(), [], Passed([], []), program_of(program))
    problems: list[Problem] = []
    for source in files.named:
        if source.form in ("shell", "lines", "python"):
            _attempt(problems, lambda source=source: _read_script(work, source))
    _attempt(problems, lambda: _read_data(work, list(files.named)))
    if not work.styles or work.styles == ["slurm"]:
        if problems:
            raise SpecError(tuple(problems))
        names = ", ".join(source.name for source in files.named)
        hint = f"`dsforge import --as NAME` reads it as a file of one of these: {KNOWN}"
        raise refusal("style-unknown", names, work.passed.why(), hint)
    _check_told(work)
    work.draft.problems += problems
    derive(work.draft, replicates=_replicates(work))
    return _imported(work)


def _check_told(work: Work) -> None:
    """Refuse what only looks like a program's file: all that would be shown are its defaults."""
    draft, files = work.draft, (*work.files.named, *work.files.read)
    told = {field for field in OF_JOB if (held := draft.said.get(field)) and held.origin in TOLD}
    told |= {left.key for left in draft.open.values() if left.place.startswith(_names(files))}
    strange = sum(not is_known_word(left.key) for left in draft.lost)
    if told or work.program is not None or strange < MOST_STRANGE:
        return
    names = ", ".join(source.name for source in work.files.named)
    style = work.styles[-1]
    message = f"looks like a file of {style}, with {strange} keys of which dsforge reads none"
    raise refusal("style-unknown", names, message, f"`dsforge import --as {style}` reads it")


def _names(sources: Iterable[Source]) -> tuple[str, ...]:
    return tuple(source.name for source in sources)


def _replicates(work: Work) -> bool:
    """Whether all programs that took part run torch's replicas where nothing is sharded."""
    styles = {style.name: style for style in STYLES}
    return all(styles[name].replicates for name in work.styles if name in styles)


def _attempt(problems: list[Problem], read: object) -> None:
    try:
        read()  # type: ignore[operator]
    except SpecError as error:
        problems += error.problems


def _imported(work: Work) -> ImportedSetup:
    draft = work.draft
    setup = draft.setup()
    trainers = [name for name in work.styles if name not in ("slurm", "accelerate")]
    sources = (*work.files.named, *work.files.read)
    return ImportedSetup(
        style=trainers[0] if trainers else work.styles[-1],
        styles=tuple(work.styles),
        files=tuple(dict.fromkeys(source.name for source in sources)),
        setup=setup,
        said=tuple(draft.said[name] for name in TrainingSetup.model_fields if name in draft.said),
        open=tuple(draft.open.values()),
        lost=tuple(draft.lost),
        problems=tuple(dict.fromkeys(draft.problems)),
    )


def _read_data(work: Work, sources: list[Source]) -> None:
    """Files of data that no script has referred to, launchers' first and engines' last."""
    found, problems = _recognised(work, sources)
    neox = [source for style, source in found if style is gpt_neox.STYLE]
    for style, source in found:
        if source in work.files.referred or source in neox[1:]:
            continue
        settings = source.settings()
        if source in neox:
            for other in neox[1:]:
                settings = settings.joined(other.settings())
        _read_settings(work, style, settings)
        if style is torchtune.STYLE:
            torchtune.say_comment(work, source)
    if problems:
        raise SpecError(tuple(problems))


def _recognised(
    work: Work, sources: list[Source]
) -> tuple[list[tuple[Style, Source]], list[Problem]]:
    """Each file of data with its style, in the order of reading; and why others have none."""
    found: list[tuple[Style, Source]] = []
    problems: list[Problem] = []
    for source in sources:
        if source.form in ("shell", "lines", "python"):
            continue
        try:
            style = style_of_file(work, source)
        except SpecError as error:
            problems += error.problems
            continue
        if style is not None:
            found.append((style, source))
    order = dict.fromkeys(FIRST, 0) | dict.fromkeys(LAST, 2)
    return sorted(found, key=lambda pair: order.get(pair[0].name, 1)), problems


def _read_settings(work: Work, style: Style, settings: Settings) -> None:
    """Read settings in a style; what nobody asked for is left."""
    work.took_part(style.name)
    style.read(work, settings)
    if style.name not in ("accelerate", "deepspeed", "lightning", "torchtune"):
        work.draft.assume("zero_stage", 0, "plain data parallelism")
    for key, value in settings.unread():
        work.draft.lose(key, value)


def _read_script(work: Work, source: Source) -> None:
    """A script, a file of arguments, or a Python source."""
    if source.form == "python":
        _read_python(work, source)
        return
    if source.form == "lines":
        words = [
            Piece(word.strip("'\""), number)
            for number, line in enumerate(source.text.split("\n"), start=1)
            for word in line.partition(" #")[0].rstrip("\\").split()
        ][:MOST_WORDS]
        settings = settings_of_flags(flags_of(words), source)
        style = style_of_settings(work, settings)
        if style is not None:
            _read_settings(work, style, settings)
        return
    slurm = Slurm(source)
    script = followed(source.text, slurm.variables, lambda name: _text_of(work, name))
    for name, piece in script.documents.items():
        work.files.write(without_unset(name), piece.text, piece.line, source)
    say_slurm(work, slurm)
    chosen = _chosen(work, script, source)
    if chosen is None:
        if not work.passed.idle and not _read_started(work, script, source):
            _read_flags(work, source, script)
        return
    launch, style = chosen
    _read_launch(work, launch, style, source)


def _text_of(work: Work, name: str) -> str | None:
    found = work.files.beside(name)
    return found.text if found is not None and found.form == "shell" else None


def _chosen(work: Work, script: Script, source: Source) -> tuple[Launch, Style] | None:
    """The command that trains: the one whose flags say the most, the first of equals."""
    best: tuple[int, Launch, Style] | None = None
    trains = 0
    for launch in _commands(work, script):
        settings = _quietly(work, launch, source)
        style = style_of_launch(work, launch, settings)
        if style is None:
            continue
        weight = weight_of(launch, style, settings)
        trains += 1
        if best is None or weight > best[0]:
            best = (weight, launch, style)
    if best is None:
        return _launched_alone(work, script, source)
    if trains > 1:
        line = best[1].program.line
        message = f"{trains} commands train; the one that says the most is read"
        work.draft.problem("commands-many", message, source.place(line))
    return best[1], best[2]


def _commands(work: Work, script: Script) -> list[Launch]:
    """What may train. Where a person says whose it is, idle ones only where there is no other."""
    found = list(launches(script.commands))
    if work.program is None:
        return found
    return [launch for launch in found if idle_command(launch) is None] or found


def _read_started(work: Work, script: Script, source: Source) -> bool:
    """Ranks of the first launcher, and the Python source that it starts; whether it is here."""
    launched = (launch for launch in launches(script.commands) if launch.launchers)
    launch = next((each for each in launched if each.name.endswith(".py")), None)
    if launch is None:
        return False
    say_launch(work, launch, source)
    started = work.files.beside(launch.program.text)
    if started is not None and started not in work.files.named:
        _read_python(work, started)
    return started is not None


def _launched_alone(work: Work, script: Script, source: Source) -> tuple[Launch, Style] | None:
    """A program that nobody knows under accelerate, whose settings say enough."""
    if work.passed.foreign:
        return None
    for launch in launches(script.commands):
        if "accelerate" in launch.launchers and idle_command(launch) is None:
            return launch, accelerate.STYLE
    return None


def _quietly(work: Work, launch: Launch, source: Source) -> Settings:
    """The settings of a command, without problems for files that were not given."""
    count = len(work.draft.problems)
    settings = settings_of_launch(work, launch, source)
    del work.draft.problems[count:]
    return settings


def _read_launch(work: Work, launch: Launch, style: Style, source: Source) -> None:
    """Launchers first, then the program with its arguments."""
    say_launch(work, launch, source)
    flags = launch.launchers.get("accelerate")
    if flags is not None:
        asked = settings_of_flags(flags, source)
        if "mason.py" in launch.launchers:  # which replaces these by all devices of its nodes
            asked = asked.without("num_processes", "num_machines")
        _read_accelerate(work, asked)
    settings = settings_of_launch(work, launch, source)
    if style is accelerate.STYLE:
        say_precision(work.draft, settings.find("mixed_precision"))
        return
    if style.name == "torchtune":
        rest = " ".join(p.text for p in launch.arguments.rest)
        given = " ".join(
            f"{k} {' '.join(p.text for p in v[1])}" for k, v in launch.arguments.values.items()
        )
        torchtune.say_recipe(work.draft, f"{rest} {given}", source.place(launch.program.line))
    _read_settings(work, style, settings)


def _read_accelerate(work: Work, settings: Settings) -> None:
    """The file and the flags of `accelerate launch`, which win."""
    work.took_part("accelerate")
    file = settings.find("config_file")
    base = Settings({})
    if file is not None:
        found = work.referred(file, "accelerate config")
        if found is not None:
            base = found.settings()
        else:
            _say_named(work, file)
    joined = base.joined(settings)
    if file is not None or len(joined):
        accelerate.read(work, joined)
    if file is None:
        work.draft.assume("zero_stage", 0, "accelerate without a config: plain data parallelism")


def _say_named(work: Work, file: Value) -> None:
    """What the name of a config that was not given says."""
    from dsforge.importing.parts.engine_config import say_name

    name = file.text.rpartition("/")[2].lower()
    place = f"{file.place} (by the name of {name[:60]})"
    if "fsdp" in name:
        work.draft.say("engine", "fsdp", place, "named")
        work.draft.say("zero_stage", 3, place, "named")
    elif "ddp" in name or "multi_gpu" in name:
        work.draft.say("zero_stage", 0, place, "named")
    elif not isinstance(file.value, Unknown):
        say_name(work.draft, file)


def _read_python(work: Work, source: Source) -> None:
    for style in PYTHON:
        if style.python is not None and style.python(work, source):
            work.took_part(style.name)
            if style.name != "lightning":
                work.draft.assume("zero_stage", 0, "plain data parallelism")
            work.draft.assume("adapter", "none", source.name)
            return


def _read_flags(work: Work, source: Source, script: Script) -> None:
    """A script without a command that is understood: all flags in it together."""
    found = arguments_of(source.text)
    values: dict[str, Value] = {}
    for flag, text in found.values.items():
        mark = found.marks[(flag,)]
        place = source.place(source.text.count("\n", 0, mark.key_start) + 1)
        known = Unknown(flag) if text is None else text or True
        values[flag] = Value(known, place)
    for name, held in script.variables.items():
        if name.isupper() and name in ("NNODES", "GPUS_PER_NODE", "NUM_GPUS"):
            values.setdefault(name, Value(held.text, source.name))
    settings = Settings(values)
    style = style_of_settings(work, settings)
    if style is None:
        return
    style = DEEPSPEED_LAUNCH if style.name == "deepspeed" else style
    for field, names in (
        ("nodes", ("nnodes", "num_nodes")),
        ("gpus_per_node", ("nproc_per_node", "num_gpus")),
    ):
        work.draft.whole(field, settings.find(*names))
    _read_settings(work, style, settings)
