"""The byte ledger against the engine itself.

What is resident after each phase to the byte, and the fullest moment of each phase within 2 %.
"""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor

import pytest
from rehearsed import STAGES, Cell, cells, rehearsed

from dsforge.estimate.ledger import Moment, resident
from dsforge.estimate.peaks import peaks
from dsforge.rehearse.account import OwnerBytes, PhaseAccount

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

SAMPLED = 24
PEAK_ERROR = 0.02
DEAR = 8  # ranks from which on gathering a tensor of ZeRO 3 takes long: a view for each rank
OWNERS = ("parameter", "gradient", "optimizer_state", "buffer")


def sample() -> list[Cell]:
    """The same cells every time; the dear ones are left to the whole matrix."""
    quick = [cell for cell in cells() if cell.stage < STAGES[-1] or cell.world <= DEAR]
    return random.Random(3).sample(quick, SAMPLED)  # noqa: S311 - it only has to be the same


def differences(cell: Cell, moment: Moment, account: PhaseAccount) -> dict[str, tuple[int, int]]:
    """Owner -> bytes of ledger and engine, where they differ."""
    told = resident(cell.engine(), moment)
    own = cell.rotary_bytes()
    device = account.by_owner.model_copy(update={"buffer": account.by_owner.buffer - own})
    places: tuple[tuple[str, object, OwnerBytes], ...] = (
        ("device", told.device, device),
        ("host", told.host, account.host_by_owner),
    )
    return {
        f"{moment} {place} {owner}": (getattr(ledger, owner), getattr(engine, owner))
        for place, ledger, engine in places
        for owner in OWNERS
        if getattr(ledger, owner) != getattr(engine, owner)
    }


def peak_errors(cell: Cell, accounts: dict[str, PhaseAccount]) -> dict[str, float]:
    """Phase -> how far the walk's peak is above the engine's, as a fraction."""
    told = peaks(cell.engine(), cell.batch())
    own = cell.rotary_bytes()
    return {
        moment: (fullest.peak + own) / accounts[moment].peak_bytes - 1
        for moment, fullest in told.items()
    }


def prove(cell: Cell, apart: ProcessPoolExecutor) -> None:
    """Compare each phase of the steady step, and what stands after init."""
    accounts = apart.submit(rehearsed, cell).result()
    moments = [name for name in accounts if not name.startswith("first_")]
    found = {}
    for moment in moments:
        found |= differences(cell, moment, accounts[moment])

    assert {"init", "forward", "backward", "step"} <= set(moments)
    assert ("accumulation" in moments) == (cell.accumulation > 1)
    assert found == {}
    errors = peak_errors(cell, accounts)
    assert all(abs(error) <= PEAK_ERROR for error in errors.values()), errors


@pytest.mark.parametrize("cell", sample(), ids=lambda cell: cell.name)
def test_the_ledger_is_the_engine_to_the_byte(cell: Cell, apart: ProcessPoolExecutor) -> None:
    """Weights, gradients, optimizer state and ZeRO's buffers, on the device and on the host."""
    prove(cell, apart)


@pytest.mark.slow  # about an hour
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "cell", [c for c in cells() if c not in sample()], ids=lambda cell: cell.name
)
def test_every_other_cell_too(cell: Cell, apart: ProcessPoolExecutor) -> None:
    """The rest of the matrix."""
    prove(cell, apart)
