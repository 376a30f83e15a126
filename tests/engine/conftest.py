"""A tiny model and its tokenizer for tests of the loop's parts on one process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from tiny_job import write_model


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama with random weights and its tokenizer."""
    return write_model(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def apart() -> Iterator[ProcessPoolExecutor]:
    """A process for rehearsals: their fake GPU stays a device of torch while it lives."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        yield pool
