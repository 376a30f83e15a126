"""How a fault is planted on the test hosts: the scene it finds, and what must be said of it.

Files of the run are spoilt in a copy of the run folder. What belongs to one host is spoilt in the
mount namespace of its sshd, so that the other host and this machine never see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import hosts
import yaml

from dsforge import process


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


FAULTS: list[Fault] = []


def fault(
    rule: str, where: tuple[int, ...], fix: str, *, also: tuple[str, ...] = (), evidence: str = ""
) -> Callable[[Callable[[Scene], Iterator[Environment | None]]], None]:
    """The decorator that makes a fault of the function that plants it."""

    def made(plant: Callable[[Scene], Iterator[Environment | None]]) -> None:
        name = plant.__name__.replace("_", "-")
        FAULTS.append(Fault(name, rule, where, fix, contextmanager(plant), also, evidence))

    return made
