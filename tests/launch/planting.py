"""How a fault is planted on the test hosts: the scene it finds, and what must be said of it.

Files of the run are spoilt in a copy of the run folder. What belongs to one host is spoilt in the
mount namespace of its sshd, so that the other host and this machine never see it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import hosts
import tiny_job
import yaml

from dsforge import process

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
CLUSTER = {
    "gpus_per_node": 1,
    "gpu": "cpu",
    "inter_node": "1gbe",
    "interface": hosts.INTERFACE,
    "ssh_port": hosts.SSH_PORT,
    "host_memory_gib": 8,
    "cpu_cores": 1,
}
WORKLOAD = {"sequence_length": 96, "global_batch_size": 8, "precision": "fp32"}


def healthy_run(folder: Path, addresses: tuple[str, ...]) -> Path:
    """A run folder of `dsforge gen` for these hosts, with a folder for built ops of its own."""
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(MODEL))
    rows = [json.dumps(row) + "\n" for row in tiny_job.pairs(64)]
    (folder / "data.jsonl").write_text("".join(rows))
    listed = [{"address": address, "slots": 1} for address in addresses]
    (folder / "cluster.yaml").write_text(json.dumps({**CLUSTER, "hosts": listed}))
    (folder / "workload.yaml").write_text(json.dumps(WORKLOAD))
    flags = {
        "--model": folder / "model",
        "--cluster": folder / "cluster.yaml",
        "--data": folder / "data.jsonl",
        "--workload": folder / "workload.yaml",
        "--zero-stage": 2,
        "--out": folder / "run",
    }
    words = [str(word) for pair in flags.items() for word in pair]
    process.run(("dsforge", "gen", *words), timeout_s=60).check("dsforge gen")
    with (folder / "run/.deepspeed_env").open("a") as lines:
        lines.write(f"TORCH_EXTENSIONS_DIR={folder / 'ops'}\n")
    (folder / "ops").mkdir()
    return folder / "run"


@dataclass(frozen=True)
class Scene:
    """Two healthy hosts, a healthy run folder of this fault's own, and a place for its things."""

    hosts: hosts.Hosts
    run: Path
    scratch: Path

    @property
    def second(self) -> hosts.Host:
        """The host on which most faults are planted."""
        return self.hosts.hosts[1]

    @property
    def ssh(self) -> Path:
        """The folder of keys and settings of ssh."""
        return self.hosts.bin.parent

    @property
    def config(self) -> Path:
        """The ds_config that train.yaml names."""
        return self.run / yaml.safe_load((self.run / "train.yaml").read_text())["deepspeed_config"]

    @property
    def packages(self) -> Path:
        """The folder of installed packages."""
        return Path(str(metadata.distribution("deepspeed").locate_file("")))

    def inside(self, *command: str, index: int = 1) -> None:
        """Run a command in the mount namespace of a host."""
        pid = str(self.hosts.services[index])
        process.run(("nsenter", "-t", pid, "-m", *command), timeout_s=20).check(" ".join(command))

    @contextmanager
    def mounted(self, what: str, where: Path, *options: str, index: int = 1) -> Iterator[None]:
        """Inside, something is mounted over a path of a host."""
        self.inside("mount", *options, what, str(where), index=index)
        try:
            yield
        finally:
            self.inside("umount", "-l", str(where), index=index)

    def hidden(self, where: Path) -> AbstractContextManager[None]:
        """Inside, a folder of the second host is empty."""
        return self.mounted("none", where, "-t", "tmpfs", "-o", "size=1m")

    def replaced(self, where: Path, by: Path) -> AbstractContextManager[None]:
        """Inside, a file of the second host is another one."""
        return self.mounted(str(by), where.resolve(), "--bind")

    def edit(self, name: str, old: str, new: str) -> None:
        """Change one text in a file of the run."""
        path = self.run / name
        text = path.read_text()
        assert old in text, f"{old} is not in {name}"
        path.write_text(text.replace(old, new))

    def ip(self, *words: str, index: int = 1) -> None:
        """Run `ip` on a host."""
        hosts._ip("-n", self.hosts.hosts[index].namespace, *words)


Environment = dict[str, str]
Plant = Callable[[Scene], AbstractContextManager[Environment | None]]


@dataclass(frozen=True)
class Fault:
    """A fault, the rule that must find it on these hosts, and what its fix must say.

    `also` are rules that rightly find a consequence of it.
    """

    name: str
    rule: str
    where: tuple[int, ...]
    fix: str
    plant: Plant
    also: tuple[str, ...] = ()
    evidence: str = ""


@dataclass(frozen=True)
class Count:
    """What came of one planted fault."""

    fault: str
    is_found: bool
    false_alarms: tuple[str, ...]


FAULTS: list[Fault] = []
COUNTS: list[Count] = []  # of the faults that this run has planted


def counted() -> str:
    """The figures of this run."""
    found = sum(count.is_found for count in COUNTS)
    alarms = sum(len(count.false_alarms) for count in COUNTS)
    return f"faults found / planted: {found} / {len(COUNTS)}, false alarms: {alarms}"


def fault(
    rule: str, where: tuple[int, ...], fix: str, *, also: tuple[str, ...] = (), evidence: str = ""
) -> Callable[[Callable[[Scene], Iterator[Environment | None]]], None]:
    """The decorator that makes a fault of the function that plants it."""

    def made(plant: Callable[[Scene], Iterator[Environment | None]]) -> None:
        name = plant.__name__.replace("_", "-")
        FAULTS.append(Fault(name, rule, where, fix, contextmanager(plant), also, evidence))

    return made
