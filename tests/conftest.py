"""What every test shares: a clean environment, signals as in a terminal, the golden option."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from browsers import headless

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LAUNCHER_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CUDA_VISIBLE_DEVICES")
LAUNCHER_PREFIXES = ("MASTER_", "NCCL_", "GLOO_", "DS_", "SLURM_", "OMP_NUM", "PYTORCH_", "PDSH_")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes the expected files anew instead of comparing."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tokens that a run keeps lie where the tests of one session find them, and nobody else."""
    os.environ["DSFORGE_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def signals_of_a_terminal() -> None:
    """Under nohup or in the background, children would ignore what the tests send them."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) is signal.SIG_IGN:
                default = number == signal.SIGINT and signal.default_int_handler
                signal.signal(number, default or signal.SIG_DFL)


@pytest.fixture(autouse=True)
def clean_environ() -> None:
    """No variable of a launcher or of the caller's cluster reaches a test."""
    for name in list(os.environ):
        if name in LAUNCHER_NAMES or name.startswith(LAUNCHER_PREFIXES):
            del os.environ[name]


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written."""
    return bool(request.config.getoption("--update-golden"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have counted (`record_property("count", line)`), whichever process ran them."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, line in report.user_properties:
            if name == "count" and report.when == "call":
                terminalreporter.write_line(str(line))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium. Its driver ends with the module: others run loops of their own."""
    with headless() as found:
        yield found
