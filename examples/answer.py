"""What a model answers to questions that it was not trained on.

Use: python examples/answer.py MODEL QUESTIONS.jsonl, where MODEL is a folder or a GGUF file.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

from transformers.utils import logging

from dsforge.train.answer import answer

QUESTIONS = 2
LONGEST = 32  # tokens of an answer


def main(model: Path, questions: Path) -> None:
    """Print question, held-out answer and the model's own."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with questions.open(encoding="utf-8") as lines:
        for line in islice(lines, QUESTIONS):
            user, assistant = json.loads(line)["messages"]
            said = answer(model, user["content"], max_tokens=LONGEST)
            print(f"  question  {user['content']}")
            print(f"  docstring {assistant['content']}")
            print(f"  model     {' '.join(said.split())}\n", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
