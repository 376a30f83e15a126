"""Greedy answers of a model to questions, to see what tuning has changed, and their timing.

The time of an answer is counted from the question to its last character, as the one who asks would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any, NamedTuple

from dsforge.errors import DsforgeError, Problem, SpecError, first_line
from dsforge.outside import UnreadableError, json_value, read_text
from dsforge.train.model.source import ModelSource, model_source

MAX_BYTES = 64 << 20  # of a file of questions
TIMED_TOKENS = (32, 64, 128, 256)
TIMED_QUESTION = "Tell me a long story about a ship that sails around the world."


ADAPTERS = "adapter_config.json"


class Answer(NamedTuple):
    """An answer, its number of tokens, and the seconds it took."""

    question: str
    text: str
    tokens: int
    seconds: float


class Timing(NamedTuple):
    """Answers of one length, each of them timed."""

    tokens: int
    characters: int
    runs_s: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        """Mean seconds of an answer."""
        return mean(self.runs_s)

    @property
    def per_100_characters_s(self) -> float:
        """Mean seconds for 100 characters of the answer."""
        return 100 * self.mean_s / max(1, self.characters)


class Speaker:
    """A model folder, folder of adapters, hub id or GGUF file, loaded.

    On the accelerator, where there is one, in the precision it was stored in; on the CPU in fp32.
    Raises DsforgeError.
    """

    def __init__(self, model: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        adapters = Path(model) if (Path(model) / ADAPTERS).is_file() else None
        source = model_source(_base(adapters) if adapters else model, Path.cwd())
        has_tokenizer = adapters and (adapters / "tokenizer_config.json").is_file()
        speech = ModelSource(str(adapters)) if has_tokenizer else source
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        kind: Any = "auto" if self.device == "cuda" else torch.float32
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(speech.name, **speech.options)
            network = AutoModelForCausalLM.from_pretrained(
                source.name, dtype=kind, **source.options
            )
            network = _adapted(network, adapters) if adapters else network
        except (OSError, ValueError, KeyError) as error:
            words = first_line(error)
            hint = (
                "give `output/model` or `output/adapter` of a run, a GGUF file, or a cached hub id"
            )
            raise DsforgeError(f"cannot load {model}: {words}", hint) from error
        self.network = network.to(self.device).eval()

    def answer(self, question: str, *, max_tokens: int, exactly: bool = False) -> Answer:
        """The greedy answer, through the chat template where there is one.

        `exactly` goes on to `max_tokens` even where the model would end.
        """
        import torch

        begin = perf_counter()
        inputs = self._inputs(question).to(self.device)
        end = self.tokenizer.eos_token_id
        with torch.inference_mode():
            tokens = self.network.generate(
                **inputs,
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens if exactly else None,
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                pad_token_id=end if self.tokenizer.pad_token_id is None else None,
            )
        new = tokens[0, inputs["input_ids"].shape[1] :]
        text = str(self.tokenizer.decode(new, skip_special_tokens=True)).strip()
        return Answer(question, text, len(new), perf_counter() - begin)

    def _inputs(self, question: str) -> Any:
        if not self.tokenizer.chat_template:
            return self.tokenizer(question, return_tensors="pt")
        prompt = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        return self.tokenizer(prompt, add_special_tokens=False, return_tensors="pt")

    def timings(self, runs: int, lengths: tuple[int, ...] = TIMED_TOKENS) -> Iterator[Timing]:
        """The timing of answers of each length, one after another; a first one is not counted."""
        self.answer(TIMED_QUESTION, max_tokens=8, exactly=True)
        for tokens in lengths:
            made = [
                self.answer(TIMED_QUESTION, max_tokens=tokens, exactly=True) for _ in range(runs)
            ]
            yield Timing(tokens, len(made[0].text), tuple(answer.seconds for answer in made))


def answers(model: Path, questions: tuple[str, ...], *, max_tokens: int = 96) -> Iterator[str]:
    """The answer of a model to each question, at most `max_tokens` tokens each."""
    speaker = Speaker(str(model))
    for question in questions:
        yield speaker.answer(question, max_tokens=max_tokens).text


def _base(adapters: Path) -> str:
    """The model that adapters belong to. Raises DsforgeError where they do not say."""
    try:
        settings = json_value(read_text(adapters / ADAPTERS, MAX_BYTES, pipes=False))
    except UnreadableError as error:
        raise DsforgeError(f"{adapters / ADAPTERS}: {error.reason}") from error
    base = settings.get("base_model_name_or_path") if isinstance(settings, dict) else None
    if not isinstance(base, str) or not base:
        hint = "`dsforge ckpt export --model BASE` writes it, or set `base_model_name_or_path`"
        raise DsforgeError(f"{adapters / ADAPTERS} does not name the model of the adapters", hint)
    return base


def _adapted(network: Any, adapters: Path) -> Any:
    """A model with trained adapters."""
    from peft import PeftModel

    return PeftModel.from_pretrained(network, str(adapters))


def read_questions(path: Path) -> tuple[str, ...]:
    """The questions of a file: JSONL as for training, or one question a line.

    Raises SpecError with every line of a JSONL file that holds none.
    """
    try:
        lines = read_text(path, MAX_BYTES).splitlines()
    except UnreadableError as error:
        raise SpecError((Problem("prompts-file", error.reason, place=str(path)),)) from error
    if path.suffix not in (".jsonl", ".json"):
        return tuple(line for line in lines if line.strip())
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    found = {number: _question(line) for number, line in numbered}
    bad = tuple(
        Problem("prompts-row", "contains neither `prompt` nor `messages`", place=f"{path}:{number}")
        for number, question in found.items()
        if question is None
    )
    if bad:
        raise SpecError(bad)
    return tuple(question for question in found.values() if question is not None)


def _question(line: str) -> str | None:
    """The prompt of a row, or the first words of the user in its conversation."""
    try:
        row = json.loads(line)
        if "prompt" in row:
            return str(row["prompt"])
        return next(str(m["content"]) for m in row["messages"] if m["role"] == "user")
    except (ValueError, KeyError, TypeError, StopIteration, RecursionError):
        return None
