"""Collectives that hang or fail: time-outs, interfaces, slow paths, lost peers."""

from __future__ import annotations

import re

from dsforge.diagnose.rule import Hit, Rule

_WORK = (
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), "
    r"OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+))?[^\n)]{0,80}?"
    r"(?:Timeout\(ms\)=(?P<limit>\d+))?\)"
)
_SMALL = 16  # elements: a barrier or a flag, not data
_SHOWN = 4  # ranks named in a message


def _timeout(hits: tuple[Hit, ...]) -> dict[str, str]:
    """Who waited where; and what the pattern of waiting says."""
    works: dict[int, tuple[int, str, str]] = {}
    for hit in hits:
        if hit.rank is not None and hit.rank not in works:
            works[hit.rank] = (int(hit.values["seq"]), hit.values["op"], hit.values["numel"])
    first = hits[0].values
    waiting = works or {-1: (int(first["seq"]), first["op"], first["numel"])}
    behind = min(waiting, key=lambda rank: waiting[rank][0])
    seq, op, numel = waiting[behind]
    limit_s = int(first["limit"] or 0) // 1000
    several = len({work[:2] for work in waiting.values()}) > 1
    who = f"rank {behind}" if behind >= 0 else "a rank"
    ranks = ", ".join(str(rank) for rank in sorted(works)[:_SHOWN])
    return {
        "who": who, "seq": str(seq), "op": op, "where": _first_seen(ranks),
        "limit": f" within {limit_s} s" if limit_s else "",
        "reason": _reason(several=several, op=op, numel=numel, phase=hits[0].phase, who=who),
        "remedy": _remedy(several=several, op=op, numel=numel, phase=hits[0].phase),
    }  # fmt: skip


def _first_seen(ranks: str) -> str:
    """Where it was seen; nothing where no line names its rank."""
    what = "ranks" if "," in ranks else "rank"
    return f", first seen on {what} {ranks}" if ranks else ""


def _reason(*, several: bool, op: str, numel: str, phase: str, who: str) -> str:
    """The likeliest way to this time-out."""
    if phase.startswith("saving"):
        return "one rank was still saving while the others waited"
    if several:
        return (
            f"ranks are at different collectives ({who} is furthest behind): they took "
            "different branches, or one of them had stopped"
        )
    if numel and int(numel) <= _SMALL:
        return (
            "a barrier or flag was waited for: one rank was busy elsewhere (tokenising, saving, "
            "loading) or gone"
        )
    if "GATHER" in op:
        return (
            "under ZeRO-3 each module's forward is a collective: a rank skipped a module (idle "
            "expert, missing modality, branch on data)"
        )
    return "a rank never arrived: look for the one that is not in the list"


def _remedy(*, several: bool, op: str, numel: str, phase: str) -> str:
    """The patch for that way."""
    kit = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000\nTORCH_NCCL_DUMP_ON_TIMEOUT=1"
    if phase.startswith("saving") or (numel and int(numel) <= _SMALL):
        return (
            "deepspeed.init_distributed(timeout=timedelta(hours=2))   # longer than the save or "
            "the preprocessing\n" + kit
        )
    if several or "GATHER" in op:
        return (
            "deepspeed.utils.set_z3_leaf_modules(model, [MoeBlock])   # each MoE block as one "
            "unit\n# and let no rank skip a module: run idle ones on a dummy input\n" + kit
        )
    return kit + "\n$ py-spy dump --pid PID   # on the rank that is missing"


def _interface(hits: tuple[Hit, ...]) -> dict[str, str]:
    named = next((h.values.get("name") for h in hits if h.values.get("name")), "")
    before = re.search(
        r"(?:NCCL|GLOO)_SOCKET_IFNAME(?: set by environment to |=| set to )(\S{1,40})",
        hits[0].before,
    )
    found = named or (before.group(1) if before else "")
    return {"name": f" `{found}`" if found else ""}


RULES = (
    Rule(
        "nccl-timeout",
        ("watchdog caught collective operation timeout",),
        _WORK,
        "a collective did not finish{limit}: {op}, sequence {seq}{where}; {reason}",
        "NCCL ends all ranks when one does not arrive; the rank that is missing or behind is the "
        "one to look at",
        "{remedy}",
        "torch ProcessGroupNCCL.cpp; deepspeedai/DeepSpeed#5066, #7170, #7533",
        kind="stall",
        read=_timeout,
        explains=("gloo-timeout", "nccl-heartbeat"),
    ),
    Rule(
        "nccl-heartbeat",
        ("heartbeat monitor", "heartbeatmonitor"),
        r"(?:Heartbeat monitor timed out|HeartbeatMonitor[^\n]{0,60}timed out)",
        "NCCL's watchdog itself was stuck: a CUDA or NCCL call on this rank never returned",
        "a network fault or a driver call that hangs; the process is ended from outside",
        "NCCL_DEBUG=INFO\nTORCH_NCCL_DUMP_ON_TIMEOUT=1\n$ nvidia-smi -q | grep -i xid",
        "torch ProcessGroupNCCL.cpp",
        kind="stall",
        confidence=0.7,
    ),
    Rule(
        "gloo-timeout",
        ("timed out waiting", "monitoredbarrier", "application timeout caused pair closure"),
        r"Timed out waiting (?P<ms>\d+)ms for (?:recv|send) operation|"
        r"Rank (?P<missing>\d+) failed to pass monitoredBarrier in (?P<limit>\d+) ms|"
        r"timed out in monitoredBarrier|Application timeout caused pair closure",
        "a rank did not reach a collective in time{who}",
        "it is stuck, busy elsewhere (saving, tokenising) or took another branch; the ranks that "
        "time out are those that waited",
        "$ py-spy dump --pid PID   # on the rank that does not complain\n"
        "deepspeed.init_distributed(timeout=timedelta(hours=2))   # where it is only slow",
        "gloo transport/tcp/unbound_buffer.cc; torch ProcessGroupGloo.cpp",
        kind="stall",
        confidence=0.85,
        read=lambda hits: {
            "who": next((f": rank {h.values['missing']}" for h in hits if h.values["missing"]), "")
        },
    ),
    Rule(
        "wrong-interface",
        (
            "socket interface found",
            "unable to find interface",
            "unable to find address for",
            "neither af_inet",
            "bootstrap : no",
            "unable to resolve hostname to a (local) address",
            "makedeviceforinterface",
        ),
        r"no socket interface found|Unable to find (?:interface|address for):? *(?P<name>[\w.-]*)|"
        r"neither AF_INET|Bootstrap : no [^\n]{0,40}interface|"
        r"to resolve hostname to a \(local\) address|"
        r"makeDeviceForInterface\(\): [^\n]{0,40}",
        "the network interface{name} named for this job does not exist on this node",
        "interfaces are called differently from node to node, and containers rename them",
        "$ ip -br addr   # on every node\n"
        "NCCL_SOCKET_IFNAME=<its name, or ^lo,docker>\nGLOO_SOCKET_IFNAME=<its name>",
        "NCCL src/misc/socket.cc, NVIDIA/nccl#1837; gloo transport/tcp/device.cc",
        confidence=0.95,
        read=_interface,
        explains=("nccl-error", "peer-lost"),
    ),
    Rule(
        "nccl-duplicate-gpu",
        ("duplicate gpu detected",),
        r"Duplicate GPU detected ?: rank (?P<one>\d+) and rank (?P<other>\d+)[^\n]{0,40}device "
        r"(?P<device>\w+)",
        "ranks {one} and {other} use the same GPU ({device})",
        "each rank must take its own device before the first collective",
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))   # first line of the script\n"
        "$ deepspeed --num_gpus <GPUs of the node> ...",
        "NCCL src/init.cc",
        confidence=0.95,
        explains=("nccl-error", "peer-lost"),
    ),
    Rule(
        "nccl-version",
        ("mismatched nccl version", "nccl version mismatch", "mismatched versions"),
        r"Mismatched NCCL version|NCCL version mismatch|mismatched versions? of NCCL",
        "nodes run different NCCL versions",
        "all ranks of a job must load the same NCCL, as of torch's wheel or the image",
        '$ python -c "import torch; print(torch.cuda.nccl.version())"   # on every node\n'
        "$ unset LD_PRELOAD; # and remove a second libnccl from LD_LIBRARY_PATH",
        "NCCL src/bootstrap.cc",
        explains=("nccl-error", "peer-lost"),
    ),
    Rule(
        "infiniband-error",
        ("net/ib :", "ibv_poll_cq", "got completion"),
        r"NET/IB ?: Got (?:completion|async (?:fatal )?event)[^\n]{0,80}?"
        r"(?:status=(?P<status>\d+)|port error|error)|ibv_poll_cq[^\n]{0,60}failed",
        "InfiniBand failed under load (completion status {status})",
        "status 12 is a peer that does not answer: cable, port, subnet manager, wrong GID index or "
        "MTU on RoCE",
        "$ ibstat; ibv_devinfo -v | grep -e state -e mtu   # on both nodes\n"
        "NCCL_IB_GID_INDEX=3\nNCCL_IB_TIMEOUT=22\nNCCL_IB_HCA=<the port that is Active>",
        "NCCL src/transport/net_ib.cc; NVIDIA/nccl#1814",
        explains=("nccl-timeout", "nccl-error", "peer-lost"),
    ),
    Rule(
        "no-route",
        ("no route to host", "network is unreachable"),
        r"(?:NCCL WARN|socket|gloo|connect)[^\n]{0,160}(?:No route to host|Network is unreachable)",
        "a node's address cannot be reached from another node",
        "the address belongs to another network (docker bridge, NAT) or a firewall drops it",
        "$ ip route get <address>   # on the node that complains\n"
        "NCCL_SOCKET_IFNAME=<the interface all nodes share>\n"
        "$ deepspeed --master_addr <its address> ...",
        "NCCL src/misc/socket.cc; deepspeedai/DeepSpeed#5136",
        explains=("nccl-timeout", "nccl-error", "peer-lost", "clients-missing"),
    ),
    Rule(
        "nccl-socket-fallback",
        ("via net/socket", "nccl_ib_disable set by environment to 1"),
        r"NCCL_IB_DISABLE set by environment to 1|via NET/Socket",
        "NCCL goes over TCP sockets between nodes, not InfiniBand",
        "NET/IB found no device, or was switched off; ZeRO-3 over such a link is many times slower",
        "- NCCL_IB_DISABLE=1\nNCCL_IB_HCA=mlx5\n$ ibv_devices   # none in a container: pass "
        "--device=/dev/infiniband\n# no InfiniBand: ZeRO-1 or 2 across nodes, "
        "NCCL_SOCKET_NTHREADS=4",
        "NCCL src/transport/net_socket.cc; hiyouga/LlamaFactory#5014",
        kind="hint",
        confidence=0.6,
        silent=True,
    ),
    Rule(
        "peer-access",
        ("peer access", "peer mapping resources"),
        r"peer access is not supported between these two devices|"
        r"peer mapping resources exhausted|Cuda failure[^\n]{0,20}peer access",
        "GPUs of this node cannot reach each other's memory",
        "consumer cards, virtual machines and IOMMU settings forbid peer-to-peer",
        "NCCL_P2P_DISABLE=1",
        "CUDA error 217; NCCL src/transport/p2p.cc",
        explains=("nccl-error",),
    ),
    Rule(
        "nccl-error",
        (
            "ncclunhandledcudaerror",
            "ncclsystemerror",
            "ncclinternalerror",
            "nccl error in",
            "unhandled system error",
            "unhandled cuda error",
        ),
        r"ncclUnhandledCudaError|ncclSystemError|ncclInternalError|unhandled (?:system|cuda) error",
        "NCCL failed to set up or run a collective; it says why only when asked",
        "system errors are sockets and shared memory, unhandled CUDA errors the driver or the "
        "device",
        "NCCL_DEBUG=INFO\nNCCL_DEBUG_SUBSYS=INIT,NET\n$ df -h /dev/shm; nvidia-smi topo -m",
        "torch NCCLUtils.hpp",
        confidence=0.6,
        explains=("peer-lost",),
    ),
    Rule(
        "peer-lost",
        (
            "connection closed by peer",
            "connection reset by peer",
            "ncclremoteerror",
            "remote process exited",
            "broken pipe",
            "connection was likely closed",
            "was aborted",
            "failed to recv, got 0 bytes",
        ),
        r"Connection closed by peer|Connection reset by peer|ncclRemoteError|"
        r"remote process exit\w+|[:\]] Broken pipe|Connection was likely closed|"
        r"NCCL communicator was aborted|failed to recv, got 0 bytes",
        "a rank lost its peer: another process ended first, and why is in its own output",
        "the process that ended without a word was killed, or logs elsewhere",
        "$ grep -l Traceback <logs of all ranks>\n$ dmesg -T | grep -i -e oom -e xid   # on every "
        "node",
        "gloo transport/tcp/pair.cc; torch NCCLUtils.hpp",
        kind="echo",
        confidence=0.5,
    ),
)
