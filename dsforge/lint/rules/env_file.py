"""Rules: `.deepspeed_env`, which looks like a shell file and is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from dsforge.findings import Edit, Hit
from dsforge.lint.case import Case, rule, shown
from dsforge.lint.reading.document import Row
from dsforge.masking import is_secret

READER = "DeepSpeed launcher/runner.py, main (.deepspeed_env)"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLAIN = re.compile(r"[\w@%+=:,./-]*")  # what the launcher does not put into quotes
OF_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE")
OF_CARDS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
SLOW = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
}
TRAVELS = ("NCCL", "PYTHON", "MLFLOW", "UCX", "MV2")
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
INFINIBAND = ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TIMEOUT", "NCCL_NET_GDR_LEVEL")


class Variable(NamedTuple):
    """One line `NAME=VALUE`, split as the launcher splits it."""

    name: str
    value: str
    row: Row


def variables(case: Case) -> Iterator[Variable]:
    """The variables of the file."""
    for row in case.document.rows:
        name, equals, value = row.text.rstrip("\r").partition("=")
        if equals and not name.lstrip().startswith("#"):
            yield Variable(name, value, row)


def whole_line(case: Case, row: Row) -> tuple[Edit, ...]:
    """The edit that removes a line with its line break."""
    return (Edit(row.start, min(row.end + 1, len(case.document.text)), ""),)


@rule(
    "env-line",
    "error",
    "env",
    fixable=True,
    why="Every line is split at `=`: a blank line, a comment or a word alone ends the launcher "
    "with a ValueError.",
    evidence=READER + "; deepspeedai/DeepSpeed#4992",
)
def env_line(case: Case) -> Iterator[Hit]:
    """A line that is not `NAME=VALUE`."""
    rows = list(case.document.rows)
    for number, row in enumerate(rows, start=1):
        text = row.text.strip()
        if number == len(rows) and not row.text:
            continue  # what follows the last line break
        comment = text.startswith("#")
        if comment or "=" not in text:
            what = "a comment" if comment else "a blank line" if not text else f"`{shown(text)}`"
            edits = whole_line(case, row) if comment or not text else ()
            yield Hit((), f"{what} ends the launcher", "remove it", edits, row.start)


@rule(
    "env-export",
    "error",
    "env",
    fixable=True,
    why="It is no shell script: the variable that is set is called `export NAME`.",
    evidence=READER,
)
def env_export(case: Case) -> Iterator[Hit]:
    """`export` in front of a variable."""
    for variable in variables(case):
        if variable.name.lstrip().startswith("export "):
            length = len(variable.row.text) - len(variable.row.text.lstrip()) + len("export ")
            edits = (Edit(variable.row.start, variable.row.start + length, ""),)
            yield Hit(
                (), "`export` becomes part of the name", "remove it", edits, variable.row.start
            )


@rule(
    "env-name",
    "error",
    "env",
    why="What stands before `=` is exported as it is; blanks and other characters make `export` "
    "fail on every host.",
    evidence="DeepSpeed launcher/multinode_runner.py, add_export",
)
def env_name(case: Case) -> Iterator[Hit]:
    """A name that the shell does not take."""
    for variable in variables(case):
        name = variable.name.lstrip().removeprefix("export ")
        if not NAME.fullmatch(name):
            message = f"`{shown(name)}` is not a name"
            yield Hit((), message, "letters, digits and `_`", offset=variable.row.start)


@rule(
    "env-value",
    "error",
    "env",
    why="A value with other characters is put into double quotes for the remote shell: quotes of "
    "its own double up, `$` and backquotes are expanded on the other host, if at all.",
    evidence="DeepSpeed launcher/multinode_runner.py, add_export (quoting); " + READER,
)
def env_value(case: Case) -> Iterator[Hit]:
    """A value that the remote shell reads differently."""
    for variable in variables(case):
        value = variable.value
        if not PLAIN.fullmatch(value.strip()) or value != value.strip():
            quoted = value[:1] in "\"'" and value[:1] == value[-1:] and len(value) > 1
            message = f"the value of `{shown(variable.name)}` does not survive the launcher"
            fix = "write it without quotes" if quoted else "only letters, digits and _@%+=:,./-"
            yield Hit((), message, fix, offset=variable.row.start)


@rule(
    "env-line-end",
    "error",
    "env",
    fixable=True,
    why="The carriage return stays in the value and travels to every host.",
    evidence=READER,
)
def env_line_end(case: Case) -> Iterator[Hit]:
    """Line ends of Windows."""
    at = case.document.text.find("\r")
    if at >= 0:
        found = re.finditer("\r", case.document.text)
        edits = tuple(Edit(match.start(), match.end(), "") for match in found)
        yield Hit((), "carriage returns become part of the values", "save with LF", edits, at)


@rule(
    "env-twice",
    "warning",
    "env",
    why="The last one wins, for a reader who sees the first.",
    evidence=READER,
)
def env_twice(case: Case) -> Iterator[Hit]:
    """A variable that is set twice."""
    seen: set[str] = set()
    for variable in variables(case):
        if variable.name in seen:
            message = f"`{shown(variable.name)}` is set twice"
            yield Hit((), message, "keep one", offset=variable.row.start)
        seen.add(variable.name)


@rule(
    "env-secret",
    "error",
    "env",
    why="The launcher puts every value on the command line of ssh, where each user of each host "
    "can read it.",
    evidence="DeepSpeed launcher/multinode_runner.py, PDSHRunner.get_cmd",
)
def env_secret(case: Case) -> Iterator[Hit]:
    """A secret among the variables."""
    for variable in variables(case):
        if is_secret(variable.name.strip()):
            message = f"`{shown(variable.name)}` looks like a secret"
            yield Hit((), message, "export it on each host instead", offset=variable.row.start)


@rule(
    "env-rank",
    "error",
    "env",
    why="The launcher sets these for each rank; the same value on all nodes makes ranks collide.",
    evidence="DeepSpeed launcher/launch.py, main",
)
def env_rank(case: Case) -> Iterator[Hit]:
    """A variable that belongs to the launcher."""
    for variable in variables(case):
        if variable.name in OF_LAUNCHER:
            message = f"`{variable.name}` is set by the launcher for each rank"
            yield Hit((), message, "remove it", whole_line(case, variable.row), variable.row.start)


@rule(
    "env-cards",
    "warning",
    "env",
    why="The same list goes to every node and works against slots, `--include` and `--exclude`.",
    evidence="DeepSpeed launcher/runner.py, main (VISIBLE_DEVICES)",
)
def env_cards(case: Case) -> Iterator[Hit]:
    """A list of cards for all nodes."""
    for variable in variables(case):
        if variable.name in OF_CARDS:
            message = f"`{variable.name}` is the same on every node"
            yield Hit((), message, "use slots in the hostfile", offset=variable.row.start)


@rule(
    "env-slow",
    "warning",
    "env",
    why="Made for debugging: transfers inside a node go through the host, or every kernel is "
    "waited for.",
    evidence="hiyouga/LlamaFactory#3499 (17 s to 20 min with P2P disabled)",
)
def env_slow(case: Case) -> Iterator[Hit]:
    """A setting that slows every step."""
    for variable in variables(case):
        if SLOW.get(variable.name) == variable.value:
            message = f"`{variable.name}={variable.value}` slows every step"
            yield Hit((), message, "remove it after debugging", offset=variable.row.start)


@rule(
    "env-interface",
    "error",
    "env",
    why="The name must exist on every node and lead to the others; NCCL stops where it does not.",
    evidence="huggingface/accelerate#1317, determined-ai/determined#4297",
)
def env_interface(case: Case) -> Iterator[Hit]:
    """An interface that is not the one of the cluster, or none that leads anywhere."""
    for variable in variables(case):
        name = variable.value.lstrip("=^")
        if variable.name not in INTERFACES or variable.value.startswith("^"):
            continue
        own = case.cluster.interface if case.cluster else None
        if name == "lo" or name.startswith(("docker", "veth", "br-", "virbr", "cni", "flannel")):
            message = f"`{variable.name}` (={shown(name)}) does not lead to other hosts"
            yield Hit((), message, "name the network's interface", offset=variable.row.start)
        elif own and name and own not in name.split(","):
            message = f"`{variable.name}` (={shown(name)}) is not {own}, that of the cluster"
            yield Hit((), message, f"use {own}", offset=variable.row.start)


@rule(
    "env-infiniband-off",
    "error",
    "env",
    why="The cluster has InfiniBand, and this variable makes NCCL use sockets instead: a tenth of "
    "the bandwidth.",
    evidence="modelscope/ms-swift#1825 (12 nodes no faster than 6)",
)
def env_infiniband_off(case: Case) -> Iterator[Hit]:
    """InfiniBand disabled on a cluster that has it."""
    kind = case.cluster.inter_node.kind if case.cluster else ""
    for variable in variables(case):
        off = variable.name == "NCCL_IB_DISABLE" and variable.value.strip() not in ("", "0")
        if off and kind == "infiniband":
            message = "`NCCL_IB_DISABLE` switches off the InfiniBand of the cluster"
            yield Hit((), message, "remove it", whole_line(case, variable.row), variable.row.start)


@rule(
    "env-infiniband-absent",
    "warning",
    "env",
    why="On plain Ethernet these variables make NCCL look for adapters that are not there.",
    evidence="haotian-liu/LLaVA#362, mosaicml/llm-foundry#336",
)
def env_infiniband_absent(case: Case) -> Iterator[Hit]:
    """InfiniBand variables on an Ethernet cluster."""
    kind = case.cluster.inter_node.kind if case.cluster else ""
    for variable in variables(case):
        if variable.name in INFINIBAND and kind == "ethernet":
            message = f"`{variable.name}` is for InfiniBand; the cluster has Ethernet"
            yield Hit((), message, "remove it, unless it is RoCE", offset=variable.row.start)


@rule(
    "env-travels",
    "info",
    "env",
    why="Variables with these beginnings of the launching shell are exported to all hosts anyway; "
    "the line wins over the shell, which surprises whoever sets it there.",
    evidence="DeepSpeed launcher/runner.py, EXPORT_ENVS",
)
def env_travels(case: Case) -> Iterator[Hit]:
    """A debug variable that would travel by itself."""
    for variable in variables(case):
        if variable.name.startswith(TRAVELS) and variable.name.endswith("DEBUG"):
            message = f"`{variable.name}` stays on for every run from this folder"
            yield Hit((), message, "set it in the shell", offset=variable.row.start)
