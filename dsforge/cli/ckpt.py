"""`dsforge ckpt`: anybody's checkpoint judged, described, converted, turned into weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsforge.cli.numbers import Real
from dsforge.cli.paths import NamedPath
from dsforge.errors import EXIT_FINDINGS

if TYPE_CHECKING:
    from dsforge.checkpoints.export import Exported
    from dsforge.checkpoints.inspect import Description
    from dsforge.checkpoints.verify.checkpoint import Wanted
    from dsforge.findings import Finding

PATH = NamedPath()
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
UNCHECKED = click.option("--unchecked", is_flag=True, help="Skip the checksums of the checkpoint.")
CHECKPOINT = "Folder with rank files, its parent with `latest`, folder with weights, or one file."


@click.group()
def ckpt() -> None:
    """Verify, inspect, convert and export DeepSpeed checkpoints.

    Reads ZeRO 0 to 3, universal checkpoints, folders of transformers and single files, without
    unpickling them: code in a checkpoint is never executed.
    """


@ckpt.command()
@click.argument("checkpoint", type=PATH, help=CHECKPOINT)
@click.option("--model", help="Compare with this model: folder, config.json, or a name.")
@click.option("--quick", is_flag=True, help="Skip checksums, which read every byte.")
@click.option("--values", is_flag=True, help="Count NaN and inf in every tensor.")
@JSON
def verify(
    checkpoint: Path, *, model: str | None, quick: bool, values: bool, as_json: bool
) -> None:
    """Check a checkpoint for damage; the exit code is 3 if it cannot be used.

    Finds empty tensors, missing files of ranks, two saves or two runs mixed in one folder, a wrong
    `latest`, cut or changed bytes, missing shards, and code that torch.load would run.
    """
    from dsforge.checkpoints.verify.checkpoint import verify as found_in
    from dsforge.cli.show import note
    from dsforge.findings.writers import as_lines, counted
    from dsforge.masking import printable

    found = found_in(
        checkpoint, checksums=not quick, values=values, wanted=_expected_shapes(model, checkpoint)
    )
    errors = sum(finding.severity == "error" for finding in found)
    if as_json:
        _show_json(checkpoint=str(checkpoint), usable=not errors, findings=_rows(found))
    else:
        for line in as_lines(found):
            print(printable(line))
    said = f"not usable, {counted(errors, 'error')}" if errors else "good"
    note(f"{checkpoint}: {said}")
    if errors:
        sys.exit(EXIT_FINDINGS)


@ckpt.command()
@click.argument("checkpoint", type=PATH, help=CHECKPOINT)
@click.option("--tensors", is_flag=True, help="List every tensor.")
@JSON
def inspect(checkpoint: Path, *, tensors: bool, as_json: bool) -> None:
    """Describe a checkpoint: ZeRO stage, ranks, step, parameters, types, bytes."""
    from dsforge.checkpoints.inspect import inspect as described

    found = described(checkpoint)
    if as_json:
        values = {k: v for k, v in found._asdict().items() if k not in ("path", "tensors")}
        rows = [tensor._asdict() for tensor in found.tensors]
        more = {"tensors": rows} if tensors else {"tensors": len(rows)}
        _show_json(path=str(found.path), parameters=found.parameters, **values, **more)
        return
    for name, value in _figures(found).items():
        print(f"{name:<12} {value}")
    if tensors:
        print()
        for tensor in found.tensors:
            shape = " x ".join(map(str, tensor.shape))
            print(f"{tensor.name}  {shape}  {tensor.dtype}{'' if tensor.trained else '  frozen'}")


@ckpt.command()
@click.argument("checkpoint", type=PATH, help=CHECKPOINT)
@click.argument("out", type=PATH, help="Folder to write; must not exist.")
@UNCHECKED
def convert(checkpoint: Path, out: Path, *, unchecked: bool) -> None:
    """Write a universal checkpoint for DeepSpeed.

    DeepSpeed loads it on any number of ranks under ZeRO 1, 2 and 3, with
    `"checkpoint": {"load_universal": true}` in ds_config.json. `dsforge train` does not need it: it
    resumes on other ranks and ZeRO stages by itself. If the checkpoint is damaged, the exit code is
    3 and nothing is written.
    """
    from dsforge.checkpoints.folder import find_checkpoint
    from dsforge.cli.progress import watching
    from dsforge.cli.show import note
    from dsforge.train.checkpoints.universal_conversion import convert as universal
    from dsforge.train.engines import deepspeed
    from dsforge.train.run.loop import check_installed

    check_installed(deepspeed.ADAPTER.packages)
    with watching() as watcher:
        written = universal(find_checkpoint(checkpoint), out, unchecked=unchecked, watcher=watcher)
    note(f"written and read back: {written}")


@ckpt.command()
@click.argument("checkpoint", type=PATH, help=CHECKPOINT)
@click.argument("out", type=PATH, help="Folder to write; must not exist.")
@click.option("--model", type=PATH, help="Folder with the configuration and tokenizer to copy.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    help="Data type of the weights (default: auto, that of training).",
)
@click.option(
    "--lora-alpha",
    type=Real(min=0, min_open=True),
    help="Scale of adapters; known for checkpoints of `dsforge train`.",
)
@UNCHECKED
def export(
    checkpoint: Path,
    out: Path,
    *,
    model: Path | None,
    dtype: str,
    lora_alpha: float | None,
    unchecked: bool,
) -> None:
    """Write safetensors for transformers or peft.

    A checkpoint of `dsforge train` says itself what it was trained from: configuration, tokenizer
    and the scale of adapters go along. Others need --model and --lora-alpha. A model card and the
    licence files of the base stand beside the weights. Memory does not grow with the model. Only
    bytes that match the checksums are used, and all is read back. Exit code 3: damaged.
    """
    from dsforge.checkpoints.export import export as exported
    from dsforge.checkpoints.folder import find_checkpoint
    from dsforge.cli.progress import watching
    from dsforge.cli.show import note
    from dsforge.train.checkpoints.own_run import own_run
    from dsforge.train.results.card import result_of_checkpoint

    folder = find_checkpoint(checkpoint)
    run = own_run(folder.path)
    with watching() as watcher, run.described_model(model) as described:
        written = exported(
            folder,
            out,
            model=described,
            dtype=dtype,
            lora_alpha=lora_alpha or run.lora_alpha,
            base=str(model or run.base),
            describe=result_of_checkpoint(run, folder.path, model).files,
            unchecked=unchecked,
            watcher=watcher,
        )
    if described is not None and model is None:
        note(f"configuration and tokenizer are those of {run.base}, which the checkpoint names")
    _say_written(written, is_described=described is not None)


def _say_written(written: Exported, *, is_described: bool) -> None:
    """What was exported, and what transformers needs beside it."""
    from dsforge.cli.show import note
    from dsforge.units import size

    held = f"{written.tensors} tensors, {size(written.bytes)} of {written.dtype}"
    if not is_described and any(name.startswith("model") for name in written.files):
        note("no config.json and tokenizer, which transformers requires; --model copies them")
    note(f"written and read back: {written.folder} ({held})")


def _expected_shapes(model: str | None, checkpoint: Path) -> Wanted:
    """What the weights must be: those of the model named, or of a config.json beside them.

    Names and shapes where the model is a folder or file and transformers is here to build it.
    """
    from importlib.util import find_spec

    from dsforge.checkpoints.verify.checkpoint import Wanted
    from dsforge.errors import SpecError
    from dsforge.estimate.params import parameters
    from dsforge.reading.model import read_model
    from dsforge.reading.source import path_of

    if model is not None:
        if path_of(model, "--model").exists() and find_spec("transformers"):
            from dsforge.train.model.source import model_shapes

            return Wanted(shapes=model_shapes(model))
        return Wanted(parameters(read_model(model)[0]))
    if not (checkpoint / "config.json").is_file():
        return Wanted()
    try:
        config = str(checkpoint / "config.json")  # the weights are what is verified
        return Wanted(parameters(read_model(config, trust_config=True)[0]))
    except SpecError:  # a kind of model that cannot be counted here
        return Wanted()


def _rows(found: list[Finding]) -> list[dict[str, Any]]:
    """The findings in the JSON document; its readers know `place` and `hint`."""
    return [
        {
            "rule": finding.rule,
            "severity": finding.severity,
            "place": finding.file,
            "message": finding.message,
            "hint": finding.fix,
        }
        for finding in found
    ]


def _figures(found: Description) -> dict[str, str]:
    """The figures of a checkpoint for people; none that it does not say."""
    from dsforge.units import size

    trained = sum(tensor.trained for tensor in found.tensors)
    tensors = f"{len(found.tensors)}" + (f", {trained} of them trained" if trained else "")
    figures: dict[str, object] = {
        "checkpoint": f"{found.path} ({found.kind})",
        "size": size(found.bytes),
        "ZeRO stage": found.zero_stage,
        "ranks": found.world_size,
        "step": found.step,
        "samples": found.samples,
        "parameters": f"{found.parameters:,}",
        "tensors": tensors,
        "trained in": found.trained_in,
        "states": ", ".join(found.states) or None,
        "tied": ", ".join(found.tied) or None,
        "DeepSpeed": found.deepspeed,
    }
    return {name: str(value) for name, value in figures.items() if value is not None}


def _show_json(**values: Any) -> None:
    from dsforge.cli.show import show_json

    show_json(values)
