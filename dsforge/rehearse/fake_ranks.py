"""Fake ranks: this process is one rank of N, and collectives move no data.

torch's fake process group answers every collective at once, so the unmodified DeepSpeed engine sees
the world size of the real job and shards for it. Nothing that depends on other ranks' data means
anything here: losses do not, sizes do.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch.distributed as dist


@contextmanager
def rank_of(world_size: int, rank: int = 0, *, backend: str = "fake") -> Iterator[None]:
    """Context in which the process is `rank` of `world_size`; blocks may follow each other.

    `backend` names devices that torch's fake group does not know by itself (`cpu:fake,gpu:fake`).
    Raises RuntimeError inside another world.
    """
    if dist.is_initialized():
        raise RuntimeError("a process group already exists; destroy it first")
    import deepspeed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    place = {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    with _variables(place), _groups_forgotten():
        dist.init_process_group(backend, rank=rank, world_size=world_size, store=FakeStore())
        try:
            deepspeed.init_distributed(dist_backend="fake", verbose=False)
            yield
        finally:
            dist.destroy_process_group()


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the length of the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            with suppress(KeyError):
                del os.environ[name]
            if value is not None:
                os.environ[name] = value


@contextmanager
def _groups_forgotten() -> Iterator[None]:
    """DeepSpeed's module-level groups as they were before the block: it keeps no other handle.

    So is transformers' attention, which Ulysses puts its exchange into.
    """
    import deepspeed.comm.comm as communication
    from deepspeed.runtime.sequence_parallel import parallel_state_sp as stretches
    from deepspeed.utils import groups
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as ATTENTION

    sharing, sdpa = dict(vars(stretches)), ATTENTION["sdpa"]
    state = [name for name in vars(groups) if name.isupper() and name.startswith("_")]
    state += ["mpu", "mesh_device", "expert_tensor_parallel_world_size"]
    before = {name: copy.copy(getattr(groups, name)) for name in state}
    backend = communication.cdb
    try:
        yield
    finally:
        vars(groups).update(before)
        vars(stretches).update(sharing)
        ATTENTION["sdpa"] = sdpa
        communication.cdb = backend
