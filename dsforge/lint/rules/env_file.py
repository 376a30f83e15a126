"""Rules: `.deepspeed_env`, which looks like a shell script but is not one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsforge.findings import Edit, Hit
from dsforge.lint.checked_file import CheckedFile, rule, shown
from dsforge.lint.conditions import If
from dsforge.lint.reading.document import Line
from dsforge.lint.reading.variables import variables
from dsforge.lint.rows import Row, rules
from dsforge.masking import is_secret

READER = "DeepSpeed launcher/runner.py, main (.deepspeed_env)"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLAIN = re.compile(r'"[\w@%+=:,./-]*"', re.ASCII)  # what a shell reads as without the quotes
REFERENCE = re.compile(r"\$(?:(\w+)|\{([^{}]*)\})")  # to a variable
CHANGED = re.compile(r'["\\`]')  # what double quotes do not keep as it is
PATHS = ("_PATH", "_FILE", "_DIR", "_SOCK")  # ends of names of places, not of secrets
LOGIN = re.compile(r"://[^/@\s:]{1,99}:[^/@\s]{1,99}@")  # http://user:password@host
SWITCHES = ("", "0", "1", "true", "false", "yes", "no", "on", "off")  # no secret is one of these
OF_RANK = ("RANK", "LOCAL_RANK")
OF_JOB = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SHORT_LOGS = ("", '""', "WARN", "warn", "VERSION", "version")  # levels that say little
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def whole_line(file: CheckedFile, row: Line) -> tuple[Edit, ...]:
    """The edit that removes a line with its line break."""
    return (Edit(row.start, min(row.end + 1, len(file.document.text)), ""),)


@rule(
    "env-line",
    "error",
    "env",
    fixable=True,
    why="The launcher splits every line at `=`: a blank line, a comment or a single word "
    "stops it with a ValueError.",
    evidence=READER + "; deepspeedai/DeepSpeed#4992",
)
def env_line(file: CheckedFile) -> Iterator[Hit]:
    """A line that is not `NAME=VALUE`."""
    rows = list(file.document.lines)
    for number, row in enumerate(rows, start=1):
        text = row.text.strip()
        if number == len(rows) and not row.text:
            continue  # what follows the last line break
        comment = text.startswith("#")
        if comment or "=" not in text:
            what = "a comment" if comment else "a blank line" if not text else f"`{shown(text)}`"
            edits = whole_line(file, row) if comment or not text else ()
            yield Hit((), f"{what} stops the launcher", "remove it", edits, row.start)


@rule(
    "env-export",
    "error",
    "env",
    fixable=True,
    why="The file is not a shell script: the variable that is set would be called `export NAME`.",
    evidence=READER,
)
def env_export(file: CheckedFile) -> Iterator[Hit]:
    """`export` in front of a variable."""
    for variable in variables(file.document):
        if variable.name.lstrip().startswith("export "):
            length = len(variable.line.text) - len(variable.line.text.lstrip()) + len("export ")
            edits = (Edit(variable.line.start, variable.line.start + length, ""),)
            yield Hit(
                (), "`export` becomes part of the name", "remove it", edits, variable.line.start
            )


@rule(
    "env-name",
    "error",
    "env",
    why="The text before `=` is exported unchanged; blanks and other characters make "
    "`export` fail on every host.",
    evidence="DeepSpeed launcher/multinode_runner.py, add_export",
)
def env_name(file: CheckedFile) -> Iterator[Hit]:
    """A name that the shell does not accept."""
    for variable in variables(file.document):
        name = variable.name.lstrip().removeprefix("export ")
        if not NAME.fullmatch(name):
            message = f"`{shown(name)}` is not a valid variable name"
            yield Hit((), message, "use letters, digits and `_`", offset=variable.line.start)


def _without_own(name: str, value: str) -> str:
    """A value without its own variable, as in `PATH=$PATH:/x`, which each host is meant to fill."""
    return REFERENCE.sub(lambda found: "" if name in found.groups() else found[0], value)


@rule(
    "env-value",
    "error",
    "env",
    why="A value with other characters is put in double quotes for the remote shell: quotes in it "
    "end them, backslashes and backquotes are interpreted, `$` is expanded there and `~` is not.",
    evidence="DeepSpeed launcher/multinode_runner.py, add_export (quoting); " + READER,
)
def env_value(file: CheckedFile) -> Iterator[Hit]:
    """A value that the remote shell reads differently."""
    for variable in variables(file.document):
        value, start = variable.value, variable.line.start
        name = shown(variable.name)
        if PLAIN.fullmatch(value):
            continue  # the quotes end and begin again, around the same text
        if CHANGED.search(value):
            in_quotes = value[:1] == value[-1:] == '"' and len(value) > 1
            message = f"the value of `{name}` is changed by the launcher's quoting"
            fix = (
                "write it without quotes" if in_quotes else 'write it without `"`, `\\` and `` ` ``'
            )
            yield Hit((), message, fix, offset=start)
        elif "$" in _without_own(variable.name, value):
            message = f"`$` in the value of `{name}` is expanded on each host"
            yield Hit(
                (), message, "write the value, unless the expansion is intended", (), start, "info"
            )
        elif value.startswith("~"):
            message = f"`~` in the value of `{name}` is not expanded in quotes"
            yield Hit((), message, "write the full path", (), start, "warning")


@rule(
    "env-line-end",
    "error",
    "env",
    fixable=True,
    why="The carriage return becomes part of the value on every host.",
    evidence=READER,
)
def env_line_end(file: CheckedFile) -> Iterator[Hit]:
    """Windows line endings."""
    at = file.document.text.find("\r")
    if at >= 0:
        found = re.finditer("\r", file.document.text)
        edits = tuple(Edit(match.start(), match.end(), "") for match in found)
        yield Hit((), "carriage returns become part of the values", "save with LF", edits, at)


@rule(
    "env-twice",
    "warning",
    "env",
    why="The last one overrides the first, which readers of the file may miss.",
    evidence=READER,
)
def env_twice(file: CheckedFile) -> Iterator[Hit]:
    """A variable that is set twice."""
    seen: set[str] = set()
    twice: dict[str, int] = {}
    for variable in variables(file.document):
        if variable.name in seen:
            twice.setdefault(variable.name, variable.line.start)
        seen.add(variable.name)
    if len(twice) == 1:
        ((name, start),) = twice.items()
        yield Hit((), f"`{shown(name)}` is set twice", "keep one", offset=start)
    elif twice:
        message = f"{len(twice)} names are set twice: `accelerate launch` appends to this file"
        yield Hit((), message, "delete it before each launch", offset=min(twice.values()))


@rule(
    "env-secret",
    "error",
    "env",
    why="The launcher puts every value on the command line of ssh, where every user of "
    "each host can read it.",
    evidence="DeepSpeed launcher/multinode_runner.py, PDSHRunner.get_cmd",
)
def env_secret(file: CheckedFile) -> Iterator[Hit]:
    """A secret among the variables."""
    seen: set[str] = set()
    for variable in variables(file.document):
        name, value = variable.name.strip(), variable.value.strip()
        path = name.upper().endswith(PATHS) and value.startswith(("/", "~", "."))
        secret = is_secret(name) and not path and value.lower() not in SWITCHES
        login = LOGIN.search(value) is not None
        if (secret or login) and name not in seen:
            seen.add(name)
            what = "looks like a secret" if secret else "has a password in its address"
            yield Hit(
                (),
                f"`{shown(name)}` {what}",
                "export it on each host instead",
                offset=variable.line.start,
            )


@rule(
    "env-rank",
    "warning",
    "env",
    why="launch.py overwrites these for each rank, so the line does nothing; under an MPI launcher "
    "the same rank on all nodes makes ranks collide.",
    evidence="DeepSpeed launcher/launch.py, main; multinode_runner.py, OpenMPIRunner",
)
def env_rank(file: CheckedFile) -> Iterator[Hit]:
    """A variable that the launcher sets."""
    of_job: dict[str, int] = {}
    for variable in variables(file.document):
        if variable.name in OF_RANK:
            message = f"`{variable.name}` is set by the launcher for each rank"
            yield Hit((), message, "remove it", offset=variable.line.start)
        elif variable.name in OF_JOB:
            of_job.setdefault(variable.name, variable.line.start)
    if of_job:  # one line for all: accelerate writes them again at each launch
        names = " and ".join(f"`{name}`" for name in of_job)
        message = f"{names} {'is' if len(of_job) == 1 else 'are'} set by the launcher for each rank"
        yield Hit((), message, "remove it", offset=min(of_job.values()), severity="info")


@rule(
    "env-interface",
    "error",
    "env",
    why="The interface must exist on every node and lead to the others; NCCL stops otherwise.",
    evidence="huggingface/accelerate#1317, determined-ai/determined#4297",
)
def env_interface(file: CheckedFile) -> Iterator[Hit]:
    """An interface that does not lead to the other hosts."""
    for variable in variables(file.document):
        name = variable.value.lstrip("=^")
        if variable.name not in INTERFACES or variable.value.startswith("^"):
            continue
        own = file.cluster.interface if file.cluster else None
        if name == "lo" or name.startswith(("docker", "veth", "br-", "virbr", "cni", "flannel")):
            message = f"`{variable.name}` (={shown(name)}) does not lead to other hosts"
            yield Hit((), message, "name the network's interface", offset=variable.line.start)
        elif own and name and own not in name.split(","):
            message = (
                f"`{variable.name}` (={shown(name)}) is not {own}, the interface of the cluster"
            )
            yield Hit((), message, f"use {own}", offset=variable.line.start)


ROWS = rules(
    Row(
        "env-cards",
        "warning",
        If("CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES", "present"),
        "`{key}` is the same on every node",
        "use slots in the hostfile",
        title="A list of GPUs for all nodes.",
        why="The same list is applied on every node and conflicts with slots, `--include` and "
        "`--exclude`.",
        evidence="DeepSpeed launcher/runner.py, main (VISIBLE_DEVICES)",
        kinds=("env",),
    ),
    Row(
        "env-slow",
        "warning",
        If(
            "CUDA_LAUNCH_BLOCKING NCCL_P2P_DISABLE NCCL_SHM_DISABLE TORCH_DISTRIBUTED_DEBUG",
            "in",
            ("1", "detail"),
        ),
        "`{key}={value}` slows every step",
        "remove it after debugging",
        title="A setting that slows every step.",
        why="Meant for debugging: transfers inside a node go through the host, or the CPU "
        "waits for every kernel.",
        evidence="hiyouga/LlamaFactory#3499 (17 s to 20 min with P2P disabled)",
        kinds=("env",),
    ),
    Row(
        "env-infiniband-off",
        "error",
        If("NCCL_IB_DISABLE", "not in", ("", "0")),
        "`{key}` switches off the InfiniBand of the cluster",
        "remove it",
        title="InfiniBand disabled on a cluster that has it.",
        why="The cluster has InfiniBand, and this variable makes NCCL use sockets instead: a "
        "tenth of the bandwidth.",
        evidence="modelscope/ms-swift#1825 (12 nodes no faster than 6)",
        when=(If("@network", "is", "infiniband"),),
        kinds=("env",),
    ),
    Row(
        "env-infiniband-absent",
        "warning",
        If("NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_IB_TIMEOUT NCCL_NET_GDR_LEVEL", "present"),
        "`{key}` is for InfiniBand; the cluster has Ethernet",
        "remove it, unless it is RoCE",
        title="InfiniBand variables on an Ethernet cluster.",
        why="On plain Ethernet these variables make NCCL look for adapters that are not there.",
        evidence="haotian-liu/LLaVA#362, mosaicml/llm-foundry#336",
        when=(If("@network", "is", "ethernet"),),
        kinds=("env",),
    ),
    Row(
        "env-travels",
        "info",
        If("NCCL*DEBUG PYTHON*DEBUG MLFLOW*DEBUG UCX*DEBUG MV2*DEBUG", "not in", SHORT_LOGS),
        "`{key}` stays on for every run from this folder",
        "set it in the shell",
        title="A debug variable that is exported anyway.",
        why="Variables with these prefixes are exported from the launching shell to all hosts "
        "anyway; the line overrides the value of the shell.",
        evidence="DeepSpeed launcher/runner.py, EXPORT_ENVS",
        kinds=("env",),
    ),
)
