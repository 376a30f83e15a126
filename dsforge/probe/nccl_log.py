"""NCCL's own words about the way it takes, with NCCL_DEBUG=INFO. Pure.

NCCL never fails because a fast network is missing: it falls back to sockets, and says so in one
line that nobody reads. The text comes from many programs at once and may be anything: each line is
cut, matched with patterns that cannot backtrack, and only names of a bounded number are kept.

Forms read in NCCL 2.18 to 2.27 (net_ib.cc, net_socket.cc, init.cc, transport/net.cc).
"""

from __future__ import annotations

import re

from dsforge.specs import Transport

CUT = 2_000  # characters of a line
MOST_NAMES = 16

_NETWORK = re.compile(r"NCCL INFO (?:Using network |Assigned NET plugin )([A-Za-z][\w-]{0,40})")
_VIA = re.compile(
    r"NCCL INFO Channel [^\n]{0,120} via (P2P|SHM|NET/[\w-]{1,40})(/\d+(?:\(\d+\))?/GDRDMA)?"
)
_DEVICES = re.compile(r"\[\d{1,3}\]([\w.-]{1,40}):")


class NcclWords:
    """What NCCL has said so far about its network."""

    def __init__(self) -> None:
        self.networks: set[str] = set()
        self.devices: set[str] = set()
        self.gpu_direct: bool | None = None  # none: no channel between nodes was named

    def hear(self, line: str) -> None:
        """Take in one line of output."""
        if "NCCL INFO" not in line:
            return
        line = line[:CUT]
        if found := _NETWORK.search(line):
            self._keep(self.networks, found[1])
        elif "NCCL INFO NET/" in line and " Using [" in line:
            if len(self.devices) == MOST_NAMES:
                return
            for name in _DEVICES.findall(line)[:MOST_NAMES]:
                self._keep(self.devices, name)
        elif (found := _VIA.search(line)) and found[1].startswith("NET/"):
            self._keep(self.networks, found[1].removeprefix("NET/"))
            self.gpu_direct = bool(self.gpu_direct) or found[2] is not None

    @property
    def transport(self) -> Transport | None:
        """What carries bytes between nodes; sockets where any rank uses them, none where unsaid."""
        if not self.networks:
            return None
        return "sockets" if "Socket" in self.networks else "rdma"

    @staticmethod
    def _keep(names: set[str], name: str) -> None:
        if len(names) < MOST_NAMES:
            names.add(name)
