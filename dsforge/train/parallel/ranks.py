"""The rank of this process: what the launcher set, its device, its process group.

Every launcher sets the same five environment variables. Where none of them is set, this process is
a run of one rank.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from dsforge.errors import DsforgeError, first_line
from dsforge.layout import Layout
from dsforge.train.meeting_port import holder

FIRST_WAIT = timedelta(minutes=10)
SETTLE_S = 0.2  # for threads of Gloo, which wait for the interpreter's lock at most 5 ms
COUNT = re.compile(r"[0-9]{1,9}")
PORTS = range(1, 65536)


@dataclass(frozen=True, slots=True)
class Place:
    """The rank of this process in the job; without a layout all ranks are data-parallel."""

    rank: int
    local_rank: int
    world_size: int
    layout: Layout | None = None

    @property
    def is_first(self) -> bool:
        """Whether this rank prints messages and writes files."""
        return self.rank == 0

    @property
    def sizes(self) -> Layout:
        """The parallel sizes of the job."""
        return self.layout or Layout(data_parallel_size=self.world_size)

    @property
    def replicas(self) -> int:
        """Ranks, or groups of ranks, that train on samples of their own."""
        return self.sizes.data_parallel_size

    @property
    def replica(self) -> int:
        """Which of them this rank belongs to."""
        return self.sizes.coordinates(self.rank).data

    @property
    def copies(self) -> int:
        """Tensor-parallel ranks: each computes the same loss, and must draw the same numbers."""
        return self.sizes.tensor_parallel_size


def place_of_process() -> Place:
    """The place that the launcher set; a world of one rank where there is no launcher."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    values = [os.environ.get(name) for name in names]
    if all(value is None for value in values):
        return Place(0, 0, 1)
    numbers = [_number(value) for value in values]
    rank, local_rank, world_size = numbers
    if min(numbers) < 0 or rank >= world_size or local_rank >= world_size:
        shown = ", ".join(f"{n}={_shown(v)}" for n, v in zip(names, values, strict=True))
        raise DsforgeError(
            f"the environment does not define a valid rank ({shown})",
            "start the ranks with a launcher, or unset these variables",
        )
    port = os.environ.get("MASTER_PORT")
    if port is not None and _number(port) not in PORTS:
        message = f"MASTER_PORT (={_shown(port)}) must be a whole number from 1 to 65535"
        raise DsforgeError(message, "set it in ordinary digits, or unset it")
    return Place(rank, local_rank, world_size)


def restarts() -> int:
    """How often torchrun has started the ranks of this job again."""
    return max(0, _number(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))


def _number(text: str | None) -> int:
    """A count in ASCII digits, which torch and DeepSpeed read alike; -1 for anything else."""
    return int(text) if text is not None and COUNT.fullmatch(text) else -1


def _shown(text: str | None) -> str:
    return "missing" if text is None else ascii(text[:40])[1:-1]


def join(place: Place) -> None:
    """Form the process group of a DeepSpeed job. Raises DsforgeError where ranks are missing.

    Ranks wait for each other 10 minutes, here and in every collective; DEEPSPEED_TIMEOUT says
    otherwise, in minutes. `agreement.on_first_rank` is for what may take longer.
    """
    import deepspeed

    form_group(place, lambda: deepspeed.init_distributed(verbose=False, init_method=meeting()))
    _unname_shared_memory(place)


def form_group(place: Place, form: Callable[[], object]) -> None:
    """Have the ranks meet. Raises DsforgeError where some are missing."""
    import torch

    if "WORLD_SIZE" not in os.environ:
        _form_world_of_one()
    try:
        form()
    except torch.distributed.DistError as error:
        message = (
            f"the {place.world_size} ranks could not form a process group: {first_line(error)}"
        )
        hint = "check why the other ranks stopped, and look for a firewall"
        if "EADDRINUSE" in str(error):
            port = os.environ["MASTER_PORT"]
            who = holder(int(port)) or "another program"
            message = f"rank 0 cannot listen on port {port}, which is in use by {who}"
            hint = "end that program, or start with another port: `--master_port`, MASTER_PORT"
        raise DsforgeError(message, hint) from error


def meeting() -> str | None:
    """The rendezvous of ranks that torchrun has restarted; None: the default one.

    With `--master_port` torchrun keeps its key-value store, and torch no longer tells one start
    from the next in it (`rendezvous.py`, 2.13): ranks would wait for the addresses of dead ones.
    Where the first rank has the store, it is a new one at each start, and agents that joined later
    count fewer restarts.
    """
    count = restarts()
    if count == 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from torch.distributed import PrefixStore, register_rendezvous_handler, rendezvous

    def stores(_: str, timeout: timedelta = FIRST_WAIT, **__: Any) -> Iterator[tuple[Any, ...]]:
        for store, rank, world_size in rendezvous("env://", timeout=timeout):
            yield PrefixStore(f"start_{count}", store), rank, world_size

    with suppress(RuntimeError):  # registered already
        register_rendezvous_handler("started-again", stores)
    return "started-again://"


def _unname_shared_memory(place: Place) -> None:
    """Unlink the buffer of DeepSpeed's CPU collectives (`shm.cpp`) once every rank has mapped it.

    The engine never does: each run, however it ended, would leave 66 MiB a rank in /dev/shm.
    """
    import deepspeed.comm
    from deepspeed.accelerator import get_accelerator

    if get_accelerator().device_name() != "cpu":
        return
    deepspeed.comm.barrier()
    job = f"{os.getuid()}_{os.environ['MASTER_ADDR']}_{os.environ['MASTER_PORT']}"
    buffer = Path("/dev/shm") / f"deepspeed_allreduce_buffer_{job}_{place.rank}"  # noqa: S108
    buffer.unlink(missing_ok=True)


def prefer_own_tools() -> None:
    """Put the interpreter's own programs first on PATH: DeepSpeed builds its ops with ninja.

    A remote shell does not know the virtual environment. Without ninja no op is built; with another
    ninja every op is built anew, as its log has another version.
    """
    own = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join((own, os.environ.get("PATH", os.defpath)))


def choose_device(place: Place) -> None:
    """Bind this process to its accelerator; on CPU ranks, share out the cores as threads."""
    from deepspeed.accelerator import get_accelerator

    if get_accelerator().device_name() == "cpu":
        share_cores()
    else:
        get_accelerator().set_device(place.local_rank)


def share_cores() -> None:
    """Give this rank its share of the cores as threads, unless OMP_NUM_THREADS says how many."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        local = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local))


def check_precision(precision: str) -> None:
    """Ask the device, before DeepSpeed does so on every rank. Raises DsforgeError."""
    from deepspeed.accelerator import get_accelerator

    device = get_accelerator()
    known = {"bf16": device.is_bf16_supported, "fp16": device.is_fp16_supported}
    if precision in known and not known[precision]():
        others = [name for name, supported in known.items() if name != precision and supported()]
        message = (
            f"`{precision}` is enabled in the DeepSpeed config, but the {device.device_name()}"
        )
        hint = f"enable {' or '.join(f'`{name}`' for name in others)}, or neither for fp32"
        raise DsforgeError(f"{message} here cannot train in it", hint if others else "use fp32")


def _form_world_of_one() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_SIZE": 1, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in alone.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"


def leave() -> None:
    """Leave the process group, so that no rank ends while another still needs it.

    Gloo drops the tensors of a finished collective in a thread of its own, which needs the
    interpreter's lock for that: where Python shuts down first, C++ aborts the rank. DeepSpeed keeps
    the group, and so its threads, alive beyond its end; they get the lock while this one sleeps.
    """
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        has_threads = "gloo" in torch.distributed.get_backend()
        torch.distributed.destroy_process_group()
        if has_threads:
            time.sleep(SETTLE_S)
