"""A tiny model and its tokenizer for tests of the loop's parts on one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_job import write_model


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama with random weights and its tokenizer."""
    return write_model(tmp_path_factory.mktemp("tiny") / "llama")
