"""Which rank a collective waited for, and why, from the time-outs of all ranks."""

from __future__ import annotations

import re

from dsforge.diagnose.rule import MatchedLine

_SMALL = 16  # elements: a barrier or a flag, not data
_SHOWN = 4  # ranks named in a message
_SHARDED = re.compile(
    r"zero[-_ ]?(?:stage[-_ :\"]*)?3|stage3|partition_param|\bfsdp", re.IGNORECASE
)

_LONG_SAVE = "one rank was still saving while the others waited"
_UNSHARED_SAVE = (
    "saving gathers the weights from all ranks, and a rank did not enter it: the save is called on "
    "the main process alone, or one rank failed before"
)


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
    sharded = any(_SHARDED.search(hit.before) for hit in hits) or (
        "REDUCE_SCATTER" in kinds and "GATHER" in kinds
    )
    several = len({work[:2] for work in waiting.values()}) > 1
    who = f"rank {behind}" if behind >= 0 else "a rank"
    ranks = ", ".join(str(rank) for rank in sorted(works)[:_SHOWN])
    return {
        "who": who, "seq": str(seq) if seq else "", "op": op, "where": _first_seen(ranks),
        "limit": str(limit_s) if limit_s else "",
        "reason": _reason(
            several=several, op=op, numel=numel, phase=hits[0].phase, who=who, sharded=sharded
        ),
        "remedy": _remedy(
            several=several, op=op, numel=numel, phase=hits[0].phase, sharded=sharded
        ),
    }  # fmt: skip


def _first_seen(ranks: str) -> str:
    """Where it was seen; nothing where no line names its rank."""
    what = "ranks" if "," in ranks else "rank"
    return f"{what} {ranks}" if ranks else ""


def _reason(*, several: bool, op: str, numel: str, phase: str, who: str, sharded: bool) -> str:
    """The likeliest way to this time-out."""
    if phase.startswith("saving"):
        return _UNSHARED_SAVE if sharded and "GATHER" in op else _LONG_SAVE
    if several:
        return (
            f"ranks are at different collectives ({who} is furthest behind): they took "
            "different branches, or one of them had stopped"
        )
    if numel and int(numel) <= _SMALL:
        return (
            "ranks waited at a barrier or flag: one rank was busy (tokenising, saving, "
            "loading) or had ended"
        )
    if "GATHER" in op and not sharded:
        return (
            "a rank did not join: it was evaluating, saving, or out of batches while the others "
            "went on; or, under ZeRO-3 or FSDP, it skipped a module"
        )
    if "GATHER" in op:
        return (
            "under ZeRO-3 each module's forward is a collective: a rank skipped a module (idle "
            "expert, missing modality, branch on data)"
        )
    return "a rank never arrived: look for the one that is not in the list"


def _remedy(*, several: bool, op: str, numel: str, phase: str, sharded: bool) -> str:
    """The patch for that way."""
    kit = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000\nTORCH_NCCL_DUMP_ON_TIMEOUT=1"
    if phase.startswith("saving") and sharded and "GATHER" in op:
        return (
            "accelerator.save_state(path)    # on every rank, not below `if is_main_process`; "
            "load_state, save_model and state_dict as well\n" + kit
        )
    if phase.startswith("saving") or (numel and int(numel) <= _SMALL):
        return (
            "deepspeed.init_distributed(timeout=timedelta(hours=2))   # longer than the save or "
            "the preprocessing\n" + kit
        )
    if several or "GATHER" in op:
        way = (
            "deepspeed.utils.set_z3_leaf_modules(model, [MoeBlock])   # each MoE block as one "
            "unit\n# and let no rank skip a module: run idle ones on a dummy input\n"
            if sharded
            else "accelerator.wait_for_everyone()   # or dist.barrier(), around what one rank does "
            "alone: evaluation, saving\n# as many batches on every rank (drop_last=True); under "
            "ZeRO all ranks evaluate and save\n"
        )
        return way + kit
    return kit + "\n$ py-spy dump --pid PID   # on the rank that is missing"


def interface(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The network interface that a line names, or that the environment was set to before it."""
    named = next((h.values.get("name") for h in hits if h.values.get("name")), "")
    before = re.search(
        r"(?:NCCL|GLOO)_SOCKET_IFNAME(?: set by environment to |=| set to )(\S{1,40})",
        hits[0].before,
    )
    found = named or (before.group(1) if before else "")
    return {"name": found}
