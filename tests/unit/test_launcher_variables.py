"""Ranks of mpirun and srun: their own variables become those of torchrun, or nothing is changed."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsforge.errors import DsforgeError
from dsforge.train.parallel.launcher_variables import LAUNCHERS, NAMES, adopt_launcher_variables

OWN = {name for known in LAUNCHERS for name in known[1:]}
MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def adopted(**variables: str) -> dict[str, str]:
    """RANK and its kin after the call, in an environment with these variables alone."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (*OWN, *NAMES, *MEETING):
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        adopt_launcher_variables()
        found = {name: os.environ[name] for name in NAMES if name in os.environ}
        for name in NAMES:
            os.environ.pop(name, None)
        return found


@given(known=st.sampled_from(LAUNCHERS), rank=st.integers(0, 63), each=st.integers(1, 8))
def test_each_launcher_tells_the_rank(known: tuple[str, ...], rank: int, each: int) -> None:
    """Rank, local rank and both sizes are those that the launcher told."""
    world = 64
    told = (str(rank), str(rank % each), str(world), str(each))
    variables = dict(zip(known[1:], told, strict=True))

    assert adopted(**variables, **MEETING) == dict(zip(NAMES, told, strict=True))


@pytest.mark.parametrize("known", LAUNCHERS, ids=lambda known: known.launcher)
def test_several_ranks_need_a_meeting_place(known: tuple[str, ...]) -> None:
    """Without it each would train alone, or wait for ever."""
    variables = dict(zip(known[1:], ("1", "1", "2", "2"), strict=True))
    for missing in MEETING:
        left = {name: value for name, value in MEETING.items() if name != missing}
        with pytest.raises(DsforgeError, match=missing):
            adopted(**variables, **left)


def test_others_are_left_alone() -> None:
    """One process, torchrun in srun, a batch script, and no number: nothing is changed."""
    set_by_torchrun = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
    batch_script = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}
    alone = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    step = {**alone, "SLURM_STEP_NUM_TASKS": "2"}

    assert adopted() == {}
    assert adopted(**batch_script, **MEETING) == {}
    assert adopted(**alone, **MEETING) == {}
    assert adopted(OMPI_COMM_WORLD_SIZE="many", **MEETING) == {}
    assert adopted(**step, **set_by_torchrun, **MEETING) == set_by_torchrun
    assert adopted(**step, SLURM_STEP_TASKS_PER_NODE="2(x4)", **MEETING)["LOCAL_WORLD_SIZE"] == "2"
