"""Which rank a collective waited for, and why, from the time-outs of all ranks."""

from __future__ import annotations

import re
from typing import NamedTuple

from dsforge.diagnose.rule import MatchedLine

_SMALL = 16  # elements: a barrier or a flag, not data
_FIRST = 2  # number of a collective up to which its group has hardly begun
_SHOWN = 4  # ranks named in a message
_SHARDED = re.compile(
    r"zero[-_ ]?(?:stage[-_ :\"]*)?3|stage3|partition_param|\bfsdp|trace cache @ step",
    re.IGNORECASE,
)

_LONG_SAVE = "one rank was still saving while the others waited"
_UNSHARED_SAVE = (
    "saving gathers the weights from all ranks, and a rank did not enter it: the save is called on "
    "the main process alone, or one rank failed before"
)
_SKIPPED_MODULE = (
    "under ZeRO-3 each module's forward is a collective: a rank skipped a module (idle "
    "expert, missing modality, branch on data)"
)
_ELSEWHERE = (
    "a rank did not join: it was evaluating, saving, or out of batches while the others "
    "went on; or, under ZeRO-3 or FSDP, it skipped a module"
)


class _Wait(NamedTuple):
    """What ranks waited for when the time ran out."""

    op: str
    numel: str
    phase: str
    who: str  # the rank that is furthest behind
    several: bool  # ranks were at different collectives
    first: bool  # it is the first one of its group
    sharded: bool

    @property
    def small(self) -> bool:
        """Whether it was a barrier or a flag."""
        return bool(self.numel) and int(self.numel) <= _SMALL

    @property
    def at_start(self) -> bool:
        """Whether the ranks had not exchanged anything yet."""
        return self.first and not self.several and not self.sharded

    @property
    def saving(self) -> bool:
        """Whether a checkpoint was being written."""
        return self.phase.startswith("saving")


def collective_timeout(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """Who waited where; and what the pattern of waiting says."""
    works: dict[int, tuple[int, str, str]] = {}
    for hit in hits:
        if hit.rank is not None and hit.rank not in works:
            works[hit.rank] = (int(hit.values["seq"] or 0), hit.values["op"], hit.values["numel"])
    first = hits[0].values
    waiting = works or {-1: (int(first["seq"] or 0), first["op"], first["numel"])}
    behind = min(waiting, key=lambda rank: waiting[rank][0])
    seq, op, numel = waiting[behind]
    limit_s = int(first["limit"] or 0) // 1000
    kinds = " ".join(work[1] for work in works.values())
    wait = _Wait(
        op=op,
        numel=numel,
        phase=hits[0].phase,
        who=f"rank {behind}" if behind >= 0 else "a rank",
        several=len({work[:2] for work in waiting.values()}) > 1,
        first=0 < seq <= _FIRST,
        sharded=any(_SHARDED.search(hit.before) for hit in hits)
        or ("REDUCE_SCATTER" in kinds and "GATHER" in kinds),
    )
    ranks = ", ".join(str(rank) for rank in sorted(works)[:_SHOWN])
    return {
        "who": wait.who, "seq": str(seq) if seq else "", "op": op, "where": _first_seen(ranks),
        "limit": str(limit_s) if limit_s else "", "reason": _reason(wait), "remedy": _remedy(wait),
    }  # fmt: skip


def _first_seen(ranks: str) -> str:
    """Where it was seen; nothing where no line names its rank."""
    what = "ranks" if "," in ranks else "rank"
    return f"{what} {ranks}" if ranks else ""


def _reason(wait: _Wait) -> str:
    """The likeliest way to this time-out."""
    if wait.saving:
        return _UNSHARED_SAVE if wait.sharded and "GATHER" in wait.op else _LONG_SAVE
    if wait.several:
        return (
            f"ranks are at different collectives ({wait.who} is furthest behind): they took "
            "different branches, or one of them had stopped"
        )
    if wait.at_start:
        return (
            "it is the first one of the group: a rank was still busy (downloading, tokenising, "
            "loading on one rank), was not started, or cannot be reached by NCCL, though it took "
            "part in the rendezvous"
        )
    if wait.small:
        return (
            "ranks waited at a barrier or flag: one rank was busy (tokenising, saving, "
            "loading) or had ended"
        )
    if "GATHER" not in wait.op:
        return "a rank never arrived: look for the one that is not in the list"
    return _SKIPPED_MODULE if wait.sharded else _ELSEWHERE


def _remedy(wait: _Wait) -> str:
    """The patch for that way."""
    kit = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000\nTORCH_NCCL_DUMP_ON_TIMEOUT=1"
    longer = (
        "init_process_group(..., timeout=timedelta(hours=2)); ddp_timeout=7200   # longer than the "
    )
    if wait.saving and wait.sharded and "GATHER" in wait.op:
        return (
            "accelerator.save_state(path)    # on every rank, not below `if is_main_process`; "
            "load_state, save_model and state_dict as well\n" + kit
        )
    if wait.at_start and not wait.saving:
        return (
            "NCCL_DEBUG=INFO    # on all ranks: how many came (nranks), by which interface\n"
            "NCCL_SOCKET_IFNAME=<the interface between the nodes>\n"
            "NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1    # as a trial: if it runs then, peer access "
            "(IOMMU, ACS) or InfiniBand is at fault\n"
            + longer
            + "preprocessing, where one rank only was busy"
        )
    if wait.saving or wait.small:
        return longer + "save or the preprocessing\n" + kit
    if not wait.several and "GATHER" not in wait.op:
        return kit + "\n$ py-spy dump --pid PID   # on the rank that is missing"
    way = (
        "deepspeed.utils.set_z3_leaf_modules(model, [MoeBlock])   # each MoE block as one "
        "unit\n# and let no rank skip a module: run idle ones on a dummy input\n"
        if wait.sharded
        else "accelerator.wait_for_everyone()   # or dist.barrier(), around what one rank does "
        "alone: evaluation, saving\n# as many batches on every rank (drop_last=True); under "
        "ZeRO all ranks evaluate and save\n"
    )
    return way + kit


def interface(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The network interface that a line names, or that the environment was set to before it."""
    named = next((h.values.get("name") for h in hits if h.values.get("name")), "")
    before = re.search(
        r"(?:NCCL|GLOO)_SOCKET_IFNAME(?: set by environment to |=| set to )(\S{1,40})",
        hits[0].before,
    )
    found = named or (before.group(1) if before else "")
    return {"name": found}


def ranks_joined(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """Whether more or fewer ranks (`count`) came to a store than it waits for (`world`)."""
    values = hits[0].values
    if not values.get("count") or not values.get("world"):
        return {}
    return {"joined": "more" if int(values["count"]) > int(values["world"]) else "fewer"}
