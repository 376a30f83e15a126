"""`dsforge init`: a job on this machine from a model and a data file, ready to launch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsforge.cli.numbers import Whole
from dsforge.cli.paths import NamedPath
from dsforge.errors import DsforgeError

if TYPE_CHECKING:
    from dsforge.api.starting import MethodChoice
    from dsforge.specs import MethodName
    from dsforge.train.data.summary import DataSummary

SPEC, CLUSTER, RUN = "dsforge.yaml", "cluster.yaml", "run"
DATA_SUFFIXES = (".jsonl", ".parquet")
SHOWN_FILES = 8
OTHER = "name another folder"
HEAD = """\
# A training job, as `dsforge init` wrote it. After a change, in this folder:
#   dsforge gen --spec dsforge.yaml --out run
# `dsforge gen --help` lists what else can be set.
"""


@click.command()
@click.argument(
    "folder",
    type=NamedPath(files=False),
    default=Path(),
    help="Folder to write to (default: the current one).",
)
@click.option("--model", help="Catalog name, hub id, folder, config.json or GGUF file.")
@click.option("--data", type=NamedPath(), help="JSONL or Parquet file.")
@click.option("--method", type=click.Choice(("full", "lora", "qlora")), help="Training method.")
@click.option(
    "--cluster",
    type=NamedPath(),
    help="Cluster file of the training machines (default: this machine).",
)
@click.option("--gpu", help="Accelerator of the training machine, where it is not this one.")
@click.option("--gpus-per-node", type=Whole(min=1), help="Accelerators of that machine.")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing and take the defaults.")
@click.option("--force", is_flag=True, help="Overwrite the files of an earlier init.")
def init(
    *,
    folder: Path,
    model: str | None,
    data: Path | None,
    method: MethodName | None,
    cluster: Path | None,
    gpu: str | None,
    gpus_per_node: int | None,
    yes: bool,
    force: bool,
) -> None:
    """Write a training job for your data and this machine.

    Looks at the machine, the data and the model, compares full training, LoRA and QLoRA, and writes
    dsforge.yaml (the job), cluster.yaml (the machine) and the run folder run/. On a terminal it
    asks for what is not given; elsewhere --model and --data are required.
    """
    from dsforge.api.starting import first_spec, methods, with_method
    from dsforge.artifacts.whole import make_folder
    from dsforge.cli.show import note, save

    asks = sys.stdin is not None and sys.stdin.isatty() and not yes
    _check_free(folder, force=force)
    if not asks:
        _check_given(model, data)
    machine = _machine(cluster, gpu, gpus_per_node)
    path = data or _asked_data()
    summary = _summary(path)
    spec = first_spec(model or _asked_model(), path, summary, machine)
    choices = methods(spec)
    _show_methods(choices)
    spec = with_method(spec, _chosen(choices, method, asks=asks))
    make_folder(folder, OTHER)
    save(folder / CLUSTER, _yaml(machine))
    save(folder / SPEC, HEAD + _yaml(_seen_from(folder, spec)))
    note(f"wrote {folder / SPEC} and {folder / CLUSTER}\n")
    _generate(folder, force=force)


def _check_free(folder: Path, *, force: bool) -> None:
    """Raise DsforgeError where an earlier init wrote here."""
    found = [name for name in (SPEC, CLUSTER) if os.path.lexists(folder / name)]
    if found and not force:
        message = f"{folder / found[0]} exists"
        raise DsforgeError(message, f"`--force` overwrites it; or {OTHER}")


def _machine(cluster: Path | None, gpu: str | None, gpus_per_node: int | None) -> dict[str, Any]:
    """The keys of the cluster file: as named, or of this machine."""
    if cluster is not None and gpu is not None:
        raise click.UsageError("--gpu cannot be combined with --cluster.")
    if gpus_per_node is not None and gpu is None:
        raise click.UsageError("--gpus-per-node requires --gpu.")
    if cluster is not None:
        from dsforge.reading.source import read_source

        return dict(read_source(cluster).values)
    if gpu is not None:
        return {"gpu": gpu, "nodes": 1, "gpus_per_node": gpus_per_node or 1}
    from dsforge.cli.text import show
    from dsforge.probe.detect import cluster_file
    from dsforge.probe.node import probe

    file, notes = cluster_file(probe())
    card = file.gpu if isinstance(file.gpu, str) else file.gpu.name if file.gpu else ""
    ram = f"{file.host_memory_gib:g} GiB of RAM"
    show([f"machine  {file.gpus_per_node} x {card}, {ram}, {file.cpu_cores} cores"])
    show([f"         {line}" for line in notes] or [])
    return file.model_dump(mode="json", exclude_none=True, exclude_defaults=True)


def _check_given(model: str | None, data: Path | None) -> None:
    """Raise UsageError where something is missing that nobody can be asked for."""
    missing = [name for name, value in (("--model", model), ("--data", data)) if value is None]
    if missing:
        found = ", ".join(map(str, _data_here()))
        near = f" Data files found here: {found}." if found and data is None else ""
        are = "is" if len(missing) == 1 else "are"
        message = f"{' and '.join(missing)} {are} required where no terminal can ask for it.{near}"
        raise click.UsageError(message)


def _data_here() -> list[Path]:
    """Data files in the current folder."""
    return sorted(p for p in Path().iterdir() if p.suffix in DATA_SUFFIXES)[:SHOWN_FILES]


def _asked_data() -> Path:
    """The data file that the user names; one of this folder is offered."""
    found = _data_here()
    default = str(found[0]) if found else None
    return Path(click.prompt("data (JSONL or Parquet)", default=default))


def _asked_model() -> str:
    """The model that the user names."""
    return str(click.prompt("model (hub id, folder, catalog name or GGUF file)"))


def _summary(path: Path) -> DataSummary:
    """What the data is. Raises SpecError where rows are bad or of an unknown shape."""
    from dsforge.cli.text import show
    from dsforge.train.data.summary import summary_of

    found = summary_of(path)
    if found.bad.count or not found.rows:
        if not found.rows:
            raise DsforgeError(f"{path} holds no rows")
        raise found.bad.error()
    more = "" if found.is_whole else " or more"
    rows = f"{found.rows:,}{more} rows" if found.rows != 1 else "1 row"
    show([f"data     {rows} ({found.shape}), the longest about {found.longest_tokens:,} tokens"])
    return found


def _show_methods(choices: tuple[MethodChoice, ...]) -> None:
    """Memory, time and strategy of each method."""
    from dsforge.cli.text import show
    from dsforge.planner.figures import fit
    from dsforge.units import gib, seconds

    lines = ["", f"{'method':8} {'memory':>10} {'step':>9}  strategy"]
    for choice in choices:
        if choice.plan is None:
            lines.append(f"{choice.method:8} {'-':>10} {'-':>9}  {choice.reason}")
            continue
        priced = choice.plan.choice
        memory, step = gib(priced.memory.device_bytes.likely), seconds(priced.time.step_s.likely)
        how = f"{choice.plan.strategy.label()}, {fit(choice.plan.cluster, priced)}"
        lines.append(f"{choice.method:8} {memory:>10} {step:>9}  {how}")
    show([*lines, ""])


def _chosen(
    choices: tuple[MethodChoice, ...], method: MethodName | None, *, asks: bool
) -> MethodName:
    """The method that was given, or that the user confirms. Raises DsforgeError."""
    from dsforge.api.starting import METHODS, preferred

    if method is not None:
        return method
    best = preferred(choices)
    if best is None:
        hint = "a smaller model, or larger machines with --gpu and --gpus-per-node or --cluster"
        raise DsforgeError("no method fits on this machine", hint)
    if not asks:
        return best.method
    kind = click.Choice(METHODS)
    answer: MethodName = click.prompt("method", type=kind, default=best.method)
    return answer


def _seen_from(folder: Path, spec: dict[str, Any]) -> dict[str, Any]:
    """The spec with its paths as the folder of its file sees them."""
    model, data = spec["model"], spec["workload"]["data"]["train"]
    if Path(model).expanduser().exists():
        model = _moved(Path(model).expanduser(), folder)
    return {
        "model": model,
        "cluster": CLUSTER,
        "workload": {**spec["workload"], "data": {"train": _moved(Path(data), folder)}},
        "strategy": spec["strategy"],
    }


def _moved(path: Path, folder: Path) -> str:
    """A path as files in a folder write it: absolute ones stay."""
    if path.is_absolute():
        return str(path)
    moved = os.path.relpath(path, folder)
    return moved if moved.startswith("..") else f"./{moved}"


def _yaml(values: dict[str, Any]) -> str:
    """A mapping as YAML."""
    import yaml

    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _generate(folder: Path, *, force: bool) -> None:
    """Write the run folder and show it as `dsforge gen` does."""
    from dsforge.cli.gen import gen

    arguments = ["--spec", str(folder / SPEC), "--out", str(folder / RUN)]
    gen.main([*arguments, *(["--force"] if force else [])], standalone_mode=False)
