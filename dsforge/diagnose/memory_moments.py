"""Where in a training step memory ran out, by how much, and what reduces it at that moment."""

from __future__ import annotations

import re

from dsforge.diagnose.rule import MatchedLine
from dsforge.diagnose.traceback_frames import last_traceback, names_frame

_SIZE = r"(\d+(?:\.\d+)?) ?([KMG]i?B|bytes)"
_FACTOR = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6,
           "gb": 10**9}  # fmt: skip
_FIGURES = {
    "tried": rf"Tried to allocate {_SIZE}",
    "total": rf"(?:has a total capaci?ty of |; ){_SIZE}(?: total capacity)?",
    "free": rf"(?:of which {_SIZE} is free|; {_SIZE} free)",
    "allocated": rf"(?:allocated memory {_SIZE} is allocated|; {_SIZE} already allocated)",
    "unused": rf"and {_SIZE} is reserved by PyTorch but unallocated",
    "reserved": rf"{_SIZE} reserved in total by PyTorch",
    "cached": rf"; {_SIZE} cached\)",  # beside what is allocated, up to torch 1.3
    "in_use": rf"(?:this process|Process \d+) has {_SIZE} memory in use",
    "own": rf"this process has {_SIZE} memory in use",
}
_REST = 600  # characters of a message after its first line
_SPLIT = 0.1  # of the device: more than that reserved but unallocated is fragmentation
_FOREIGN = 0.15  # of the device: more than that in nobody's account here belongs to other programs
_CONTEXT = 700 * 2**20  # bytes that CUDA and torch's kernels take beside the allocator
_WHOSE = (
    "$ nvidia-smi   # other processes hold a part of the card: end what is left of old runs, take "
    "another GPU (CUDA_VISIBLE_DEVICES), or start one rank for each GPU\n"
)

_RECOMPUTE = "+ gradient_checkpointing: true    # train.yaml"
_MICRO = (
    '- "train_micro_batch_size_per_gpu": N\n+ "train_micro_batch_size_per_gpu": N/2\n'
    '+ "gradient_accumulation_steps": twice as many'
)
_STAGE = '- "stage": 2\n+ "stage": 3    # or offload_optimizer: {"device": "cpu"}'
_OFFLOAD = '+ "offload_optimizer": {"device": "cpu", "pin_memory": true}'
_BUCKETS = (
    '+ "stage3_max_live_parameters": 100000000\n+ "stage3_prefetch_bucket_size": 10000000\n'
    '+ "reduce_bucket_size": 50000000'
)

# (term of the ledger, words of frames, what it is doing, what helps); the lowest frame wins.
MOMENTS = (
    (
        "logits",
        ("cross_entropy", "loss_function", "lm_head", "logits.float", "nll_loss"),
        "at the loss (logits and their fp32 copy)",
        _MICRO,
    ),
    (
        "buffers",
        (
            "fetch_sub_module",
            "partition_parameters.py",
            "all_gather_coalesced",
            "reduce_ipg",
            "average_tensor",
            "allreduce_bucket",
        ),
        "in ZeRO's buckets and gathered parameters",
        _BUCKETS,
    ),
    (
        "optimizer_state",
        (
            "initialize_optimizer_states",
            "_optimizer_step",
            "optimizer.step",
            "exp_avg",
            "fused_adam.py",
            "_create_fp32_partitions",
            "_setup_for_real_optimizer",
            "clone().float",
        ),
        "in the optimizer (fp32 master weights and moments)",
        _OFFLOAD,
    ),
    (
        "gradients",
        ("_engine_run_backward", "in backward", "run_backward", ".backward("),
        "in backward (gradients and recomputed activations)",
        _MICRO,
    ),
    (
        "weights",
        (
            "_configure_distributed_model",
            "self.module.to(",
            "param_applied = fn(",
            "load_state_dict",
            "in from_pretrained",
            "_load_pretrained_model",
            "_materialize_data",
            "lazy_init.py",
            "in model_provider",
        ),
        "while the weights went to the device",
        _STAGE,
    ),
    (
        "activations",
        ("in forward", "attention", "mlp", "_call_impl"),
        "in forward (activations)",
        _RECOMPUTE + "\n" + _MICRO,
    ),
)


def moment(before: str, phase: str) -> tuple[str, str]:
    """What the step was doing, and what reduces it."""
    term = term_of(before)
    for name, _, doing, remedy in MOMENTS:
        if name == term:
            return doing, remedy
    return (f"while {phase}" if phase else "", _STAGE if phase == "loading the model" else _MICRO)


def term_of(before: str) -> str:
    """The term of the ledger that grows at the frames before an error; empty where unknown.

    Only the last traceback counts, and in it the most telling frame: the loss, a bucket or the
    optimizer says more than the forward that leads to it.
    """
    frames = last_traceback(before).lower()
    for name, words, _, _ in MOMENTS:
        if any(word in frames for word in words):
            return name
    return ""


HOST_REMEDIES = {
    "loading the model": "# one copy of the model per rank is loaded: use zero.Init, or "
    "low_cpu_mem_usage=True",
    "saving a checkpoint": '- "stage3_gather_16bit_weights_on_model_save": true    # the whole '
    "model in one process\n$ python zero_to_fp32.py CHECKPOINT OUT   # after the run",
}
_OFFLOADING = re.compile(
    r"(?<!no)(?<!no[_ -])(?<!no-cpu-)offload(?!\w{0,20}['\"]?[ :=]{1,3}['\"]?(?:none|null|false))|"
    r"cpu_?adam|\bnvme\b",
    re.IGNORECASE,
)
FEWER_COPIES = (
    "# fewer processes with a copy of their own: data workers, tokenising, models loaded per rank\n"
    "dataloader_num_workers=2"
)
LESS_OFFLOAD = (
    '- "offload_param": {"device": "cpu"}    # the largest first\n'
    '- "pin_memory": true\n+ "pin_memory": false\n'
    "# an optimizer on the CPU takes 12 to 16 bytes of the node's RAM for each trained parameter: "
    "a larger memory limit, more GPUs without offload, offload to NVMe, or LoRA"
)


def figures(text: str) -> dict[str, int]:
    """The bytes that torch's out-of-memory message names, by name."""
    found = {name: re.search(pattern, text) for name, pattern in _FIGURES.items()}
    return {name: _bytes(match) for name, match in found.items() if match}


def _bytes(match: re.Match[str]) -> int:
    number, unit = (group for group in match.groups() if group)
    return round(float(number) * _FACTOR[unit.lower()])


def device_memory(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """Moment, shortfall and the remedy for that moment."""
    hit = hits[0]
    known = figures(_message(hit))
    when, remedy = moment(hit.before, hit.phase)
    size = f"{known['tried'] / 2**30:.2f} GiB" if "tried" in known else "memory"
    over = _shortfall(known)
    ranks = sorted({h.rank for h in hits if h.rank is not None})
    if foreign := _foreign(known, alone=len(ranks) <= 1):
        over = f"{over}, and other processes hold about {foreign / 2**30:.1f} GiB".lstrip(", ")
        remedy = _WHOSE + remedy
    reserved = known.get("reserved", 0) - known.get("allocated", 0)
    unused = known.get("unused", known.get("cached", reserved))
    if known.get("total") and unused > _SPLIT * known["total"]:
        remedy = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + remedy
    who = f"rank {ranks[0]}" if ranks else "a rank"
    return {"size": size, "over": over, "moment": when, "remedy": remedy, "who": who}


def _message(hit: MatchedLine) -> str:
    """The message of a hit; in a short text, with what a terminal has put into the next lines."""
    text = hit.text.strip()
    for raw in hit.after[:_REST].split("\n"):
        line = raw.strip()
        if text.endswith((".", ")")) or not line or names_frame(line):
            break
        text = f"{text} {line}"
    return text


def _shortfall(known: dict[str, int]) -> str:
    """How much was missing, where the message says enough."""
    if not {"tried", "free"} <= known.keys():
        return ""
    if known["tried"] > known.get("total", known["tried"]):
        return f"more than the whole device has, {known['total'] / 2**30:.1f} GiB"
    missing = (known["tried"] - known["free"]) / 2**30
    total = f" of {known['total'] / 2**30:.1f} GiB" if "total" in known else ""
    return f"{missing:.2f} GiB more than was free{total}" if missing > 0 else ""


def _foreign(known: dict[str, int], *, alone: bool) -> int:
    """Bytes of the device that other processes hold, where it is a large part; else 0.

    Where several ranks report, and the message does not say what each holds, they may be these.
    """
    own = {"own", "reserved", *(["allocated"] if alone else [])}
    if not {"total", "free"} <= known.keys() or not known.keys() & own:
        return 0
    cached = known.get("unused", known.get("cached", 0))
    pool = max(known.get("reserved", 0), known.get("allocated", 0) + cached)
    held = max(known.get("own", 0), pool + _CONTEXT)  # drivers may say 0, or nothing, of `own`
    rest = known["total"] - known["free"] - held
    return rest if rest > _FOREIGN * known["total"] else 0


def host_memory(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The phase in which host memory ran out, and what makes that phase smaller."""
    phase = next((hit.phase for hit in hits if hit.phase), "")
    offloads = any(
        hit.values.get("offload") or _OFFLOADING.search(f"{hit.before}\n{hit.text}") for hit in hits
    )
    remedy = HOST_REMEDIES.get(phase, LESS_OFFLOAD if offloads else FEWER_COPIES)
    return {"phase": phase, "remedy": remedy}
