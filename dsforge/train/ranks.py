"""The ranks of a run: what the launcher told this process, and how ranks agree.

Every launcher tells a rank its place through the same five variables. Where none of them is set,
this process is a run of one rank.
"""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass, field
from types import FrameType
from typing import Self

from dsforge.errors import DsforgeError


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands in the job."""

    rank: int
    local_rank: int
    world_size: int

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks to people and writes files."""
        return self.rank == 0


def place_of_process() -> Place:
    """The place that the launcher gave; a world of one where there is no launcher."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    values = [os.environ.get(name) for name in names]
    if all(value is None for value in values):
        return Place(0, 0, 1)
    if not all(value is not None and value.isdecimal() for value in values):
        shown = ", ".join(f"{n}={v}" for n, v in zip(names, values, strict=True))
        raise DsforgeError(f"the environment names no place ({shown})", "use a launcher, or none")
    return Place(*(int(value) for value in values if value is not None))


def join(place: Place) -> None:
    """Form the process group of the job. Threads are shared out among CPU ranks first."""
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator

    if "WORLD_SIZE" not in os.environ:
        _form_world_of_one()
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)
    if get_accelerator().device_name() == "cpu":
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local))
    else:
        get_accelerator().set_device(place.local_rank)
    deepspeed.init_distributed(verbose=False)


def _form_world_of_one() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_SIZE": 1, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in alone.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"


def leave() -> None:
    """Leave the process group, so that no rank ends while another still needs it."""
    import deepspeed.comm
    import torch.distributed

    if torch.distributed.is_initialized():
        deepspeed.comm.barrier()
        torch.distributed.destroy_process_group()


def summed(*values: float) -> list[float]:
    """Each value summed over all ranks, in double precision where the device has it."""
    return _reduced(values, "SUM")


def largest(*values: float) -> list[float]:
    """The largest of each value over all ranks."""
    return _reduced(values, "MAX")


def _reduced(values: tuple[float, ...], operation: str) -> list[float]:
    import deepspeed.comm
    import torch
    from deepspeed.accelerator import get_accelerator

    device = get_accelerator().current_device_name()
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    deepspeed.comm.all_reduce(tensor, op=getattr(deepspeed.comm.ReduceOp, operation))
    return [float(value) for value in tensor.tolist()]


@dataclass(slots=True)
class StopRequest:
    """SIGTERM or Ctrl-C, remembered until the step is done; a second Ctrl-C ends at once."""

    signal_number: int = 0
    _before: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, action in self._before.items():
            signal.signal(number, action)  # type: ignore[arg-type]

    def _remember(self, number: int, _: FrameType | None) -> None:
        if self.signal_number == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number
