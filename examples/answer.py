"""What a model answers to questions that it was not trained on.

Use: python examples/answer.py MODEL QUESTIONS.jsonl, where MODEL is a folder or a GGUF file.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

from transformers.utils import logging

from dsforge.train.model.generation import answers

QUESTIONS = 2
LONGEST = 32  # tokens of an answer


def main(model: Path, questions: Path) -> None:
    """Print question, held-out answer and the model's own."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with questions.open(encoding="utf-8") as lines:
        pairs = [json.loads(line)["messages"] for line in islice(lines, QUESTIONS)]
    asked = tuple(user["content"] for user, _ in pairs)
    for (user, assistant), said in zip(
        pairs, answers(model, asked, max_tokens=LONGEST), strict=True
    ):
        print(f"  question  {user['content']}")
        print(f"  docstring {assistant['content']}")
        print(f"  model     {' '.join(said.split())}\n", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
