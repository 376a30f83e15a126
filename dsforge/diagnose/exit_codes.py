"""What a launcher's last lines say: which rank on which host ended, with which code or signal."""

from __future__ import annotations

import re

from dsforge.diagnose.rule import MatchedLine

# POSIX signal numbers of Linux on x86-64 and arm64: signal(7).
SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    15: "SIGTERM",
}
SHELL_OFFSET = 128  # a shell and Docker report signal N as exit code 128 + N
_HOST = re.compile(r"^\s{0,8}host\s{1,8}: (\S{1,80})", re.MULTILINE)
_RANK = re.compile(r"^\s{0,8}rank\s{1,8}: (\d{1,6})", re.MULTILINE)
_TABLE_LINES = 6  # of torchrun's table, before the exit code


def exit_report(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """Who ended, and how; from torchrun's table where there is one."""
    table = "\n".join(hits[0].before.rstrip().split("\n")[-_TABLE_LINES:])
    ranks, hosts = _RANK.findall(table), _HOST.findall(table)
    rank = ranks[-1] if ranks else str(hits[0].rank) if hits[0].rank is not None else ""
    who = f"rank {rank}" if rank else "a rank"
    code = next((hit.values["code"] for hit in hits if hit.values.get("code")), "")
    return {"who": f"{who} on {hosts[-1]}" if hosts else who, "how": _described_code(code)}


def _described_code(code: str) -> str:
    """An exit code in words."""
    if not code:
        return "exit code other than 0"
    number = int(code)
    signal = -number if number < 0 else number - SHELL_OFFSET
    if signal in SIGNALS:
        return f"signal {signal} ({SIGNALS[signal]})"
    return f"exit code {number}"
