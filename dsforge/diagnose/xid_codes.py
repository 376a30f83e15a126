"""What the NVIDIA driver means by the number of an Xid, and what to do first.

Source: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

from dsforge.diagnose.rule import MatchedLine

_RESET = "$ sudo nvidia-smi --gpu-reset -i <gpu>   # with no process on it; else restart the node"
_DIAGNOSE = (
    "$ dcgmi diag -r 3   # it fails: replace the card; it passes: look at power, cooling and slot"
)
_DRIVER = "$ nvidia-smi --query-gpu=driver_version --format=csv   # a newer release of that branch"
_PROGRAM = (
    "$ compute-sanitizer python <script>   # names the kernel that reads or writes where it may not"
)
_EARLIER = ""  # another error came first: the kernel's log says which, before anything is tried
_MEANING: dict[int, tuple[str, str]] = {
    8: ("the GPU stopped working on a program's commands", _DRIVER),
    11: ("a program's command buffer was corrupted", _DRIVER),
    13: ("a kernel did something that is not allowed, or read outside of its memory", _PROGRAM),
    31: ("a kernel read or wrote an address that is not mapped", _PROGRAM),
    32: ("a command buffer was corrupted on its way over PCIe: driver, riser or slot", _DIAGNOSE),
    38: ("the driver's firmware failed", _DRIVER),
    43: ("a program's channel was reset after an error of its own", _EARLIER),
    44: ("the GPU failed while it switched between programs", _DRIVER),
    45: ("the driver cleaned up after an earlier error, or the program was killed", _EARLIER),
    46: ("the GPU stopped working", _RESET),
    48: ("a double-bit error of the GPU's memory, which cannot be corrected", _RESET),
    54: ("the card's auxiliary power is not connected", _DIAGNOSE),
    56: ("the display engine failed", _DRIVER),
    57: ("the interface to the GPU's memory failed", _DIAGNOSE),
    58: ("the interface to the GPU's memory is unstable", _DIAGNOSE),
    63: ("a page or row of the GPU's memory was retired, from the next reset on", _RESET),
    64: ("a page or row of the GPU's memory could not be retired", _DIAGNOSE),
    66: ("an access of the driver that is not allowed", _DRIVER),
    68: ("the video decoder failed", _DRIVER),
    69: ("the graphics engine got a wrong command", _DRIVER),
    78: ("a virtual GPU did not start", _DRIVER),
    79: ("the GPU has fallen off the bus: power, heat, riser or slot", _DIAGNOSE),
    80: ("data was corrupted on its way to the GPU", _DIAGNOSE),
    92: ("many single-bit errors of the GPU's memory", _DIAGNOSE),
    94: ("an error of the GPU's memory that ended only the programs that used it", _RESET),
    95: ("an error of the GPU's memory that may have spoiled all programs on it", _RESET),
    109: (
        "switching between programs took too long: the driver, its firmware or the card hung",
        _DRIVER,
    ),
    110: ("a security fault of the GPU", _RESET),
    121: ("the link between CPU and GPU (C2C) failed", _RESET),
    136: ("the link between GPUs was not trained", _RESET),
    140: ("an error of the GPU's memory that cannot be corrected", _RESET),
    143: ("the GPU did not start", _RESET),
    **dict.fromkeys(range(144, 151), ("a link between GPUs (NVLink) failed", _RESET)),
    154: ("the driver asks for a reset, a restart or a drain, as the line says", _RESET),
    156: ("a part of the GPU was retired", _RESET),
    157: ("a part of the GPU could not be retired", _DIAGNOSE),
    158: ("a time limit inside of the GPU was passed for good", _RESET),
}


def xid_meaning(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The meaning of the first Xid of a rule's lines, and the command to begin with."""
    code = next((hit.values["xid"] for hit in hits if hit.values.get("xid")), "")
    meaning, first = _MEANING.get(int(code), ("", "")) if code.isdigit() else ("", "")
    return {"xid": code, "meaning": meaning, "first": first}
