"""`dsforge generate`: what a tuned model says, and how fast it says it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsforge.cli.numbers import Whole
from dsforge.cli.paths import NamedPath

if TYPE_CHECKING:
    from dsforge.train.model.generation import Answer, Timing


@click.command()
@click.argument(
    "model", help="Folder such as output/model or output/adapter, GGUF file, or hub id."
)
@click.option("--prompt", help="One prompt.")
@click.option(
    "--prompts",
    type=NamedPath(),
    help="File of prompts: one per line, or JSONL with `prompt` or `messages`.",
)
@click.option(
    "--max-tokens", type=Whole(min=1), default=96, help="Maximum length of an answer in tokens."
)
@click.option(
    "--time", "timed", is_flag=True, help="Measure the time of answers of 32 to 256 tokens."
)
@click.option("--runs", type=Whole(min=1), default=5, help="Runs per length.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def generate(
    *,
    model: str,
    prompt: str | None,
    prompts: Path | None,
    max_tokens: int,
    timed: bool,
    runs: int,
    as_json: bool,
) -> None:
    """Generate text with a trained model and measure its speed.

    Prompts go through the model's chat template. The table of times is for comparing accelerators:
    seconds from the prompt to the last character, the mean of five runs for each length.
    """
    from dsforge.errors import DsforgeError
    from dsforge.reading.source import path_of

    path_of(model, "MODEL")
    if prompt is None and prompts is None and not timed:
        raise DsforgeError("there are no prompts", "use --prompt, --prompts FILE, or --time")
    from dsforge.train.model.generation import Speaker, read_questions

    questions: tuple[str, ...] = () if prompt is None else (prompt,)
    questions += () if prompts is None else read_questions(prompts)
    speaker = Speaker(model)
    for question in questions:
        _show(speaker.answer(question, max_tokens=max_tokens), as_json=as_json)
    if timed:
        _show_timings(list(speaker.timings(runs)), speaker.device, as_json=as_json)


def _show(answer: Answer, *, as_json: bool) -> None:
    """One question and its answer."""
    import json

    from dsforge.masking import printable

    if as_json:
        print(json.dumps(answer._asdict(), ensure_ascii=False), flush=True)
    else:
        print(f"> {printable(answer.question)}\n{printable(answer.text)}\n", flush=True)


def _show_timings(timings: list[Timing], device: str, *, as_json: bool) -> None:
    """The table of times."""
    import json

    if as_json:
        for timing in timings:
            print(json.dumps({**timing._asdict(), "device": device}))
        return
    print(f"tokens  characters  mean of {len(timings[0].runs_s)}  s per 100 characters  tokens/s")
    for timing in timings:
        rate = timing.tokens / timing.mean_s
        print(
            f"{timing.tokens:6}  {timing.characters:10}  {timing.mean_s:7.2f} s  "
            f"{timing.per_100_characters_s:20.2f}  {rate:8.1f}"
        )
