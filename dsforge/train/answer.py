"""Answers: what a model says to questions, greedily; to see what tuning has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dsforge.train.model import model_source


def answers(model: Path, questions: tuple[str, ...], *, max_tokens: int = 96) -> Iterator[str]:
    """The answer of a model folder or GGUF file to each question, at most `max_tokens` tokens.

    Questions go through the chat template; decoding is greedy, in fp32, on one process.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = model_source(str(model), Path.cwd())
    tokenizer = AutoTokenizer.from_pretrained(source.name, **source.options)
    network = AutoModelForCausalLM.from_pretrained(
        source.name, dtype=torch.float32, **source.options
    ).eval()
    for question in questions:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
        with torch.inference_mode():
            tokens = network.generate(
                **inputs,
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id,
            )
        new = tokens[0, inputs["input_ids"].shape[1] :]
        yield str(tokenizer.decode(new, skip_special_tokens=True)).strip()
