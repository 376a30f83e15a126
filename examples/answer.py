"""What a model answers to questions that it was not trained on.

python examples/answer.py MODEL QUESTIONS.jsonl        MODEL: a folder or a GGUF file
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

QUESTIONS = 3
LONGEST = 40  # tokens of an answer


def main(model_path: Path, questions: Path) -> None:
    """Print question, held-out answer and the model's own, greedily chosen."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder, options = model_path, {}
    if model_path.suffix == ".gguf":
        folder, options = model_path.parent, {"gguf_file": model_path.name}
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    with questions.open(encoding="utf-8") as lines:
        for line in islice(lines, QUESTIONS):
            user, assistant = json.loads(line)["messages"]
            inputs = tokenizer.apply_chat_template(
                [user], add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            ids = model.generate(**inputs, max_new_tokens=LONGEST, do_sample=False)
            said = tokenizer.decode(
                ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True
            )
            print(f"  question  {user['content']}")
            print(f"  docstring {assistant['content']}")
            print(f"  model     {' '.join(said.split())}\n", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
