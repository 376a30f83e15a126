"""DeepSpeed's own readers take what is generated: config classes, hostfile, environment."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plans
import pytest
from sampled import each

from dsforge.artifacts import write_all
from dsforge.plan import Plan
from dsforge.render import render
from dsforge.render.environment import environment_variables
from dsforge.specs import Host

pytest.importorskip("deepspeed")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
HOSTS = (Host(address="10.0.0.1", slots=4), Host(address="10.0.0.2", slots=4))
ON = plans.cluster(2, 4, hosts=HOSTS, interface="eth0", ssh_port=2222, ssh_user="me")
WORK = [
    {"precision": precision, "optimizer": optimizer}
    for precision in ("bf16", "fp16", "fp32")
    for optimizer in ("adamw", "sgd")
]


class Asked(dict[str, Any]):
    """A config that remembers which of its keys somebody looked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.seen: set[str] = set()

    def __contains__(self, key: object) -> bool:
        """Whether the key is there, noted."""
        self.seen.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        """The value, noted."""
        self.seen.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value or the default, noted."""
        self.seen.add(key)
        return super().get(key, default)

    def keys(self) -> Any:
        """Itself, so that `key in config.keys()` is noted as well."""
        return self

    def __iter__(self) -> Iterator[str]:
        """The keys."""
        return super().__iter__()

    def __copy__(self) -> Asked:
        """Itself: the copy that DeepSpeed makes is to be watched."""
        return self


def configs(plan: Plan) -> list[tuple[str, dict[str, Any]]]:
    """Path and content of each ds_config."""
    found = [a for a in render(plan) if a.path.startswith("deepspeed/")]
    found = [a for a in found if a.path.endswith(".json")]
    return [(a.path, json.loads(a.text)) for a in found]


def parsed(asked: Asked) -> Any:
    """The config as rank 0 of the whole cluster reads it."""
    from deepspeed.runtime.config import DeepSpeedConfig

    from dsforge.rehearse.fake_ranks import rank_of

    with rank_of(ON.gpus):
        return DeepSpeedConfig(asked)


@pytest.mark.parametrize("work", each(5, WORK, lambda work: "-".join(work.values())))
def test_config_classes_take_every_file(work: dict[str, Any]) -> None:
    """Blocks refuse unknown keys; a top-level key that nobody asks for is ignored in silence."""
    plan = plans.plan(on=ON, work=plans.workload(**work))
    for path, config in configs(plan):
        asked = Asked(config)
        read = parsed(asked)

        assert set(config) <= asked.seen, path
        assert read.train_batch_size == config["train_batch_size"]
        assert read.zero_optimization_stage == config["zero_optimization"]["stage"]


def test_no_deprecated_key() -> None:
    """DeepSpeed marks old keys in its schema; none of them is used."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    fields = DeepSpeedZeroConfig.model_fields
    old = {
        name for name, field in fields.items() if (field.json_schema_extra or {}).get("deprecated")
    }

    assert old
    for _, config in configs(plans.plan(on=ON)):
        assert not old & set(config["zero_optimization"])


def test_an_unknown_top_level_key_would_be_found() -> None:
    """The check above can fail: a misspelt block is asked for by nobody."""
    plan = plans.plan(on=ON)
    asked = Asked({**configs(plan)[0][1], "zero_optimisation": {"stage": 3}})
    parsed(asked)

    assert "zero_optimisation" not in asked.seen


@pytest.mark.parametrize("on", [ON, plans.cluster(3), plans.cluster(1)], ids=["own", "none", "one"])
def test_deepspeeds_hostfile_reader(on: Any) -> None:
    """Hosts and slots as planned."""
    from deepspeed.launcher.runner import _parse_hostfile

    text = next(a.text for a in render(plans.plan(on=on)) if a.path == "hostfile")
    pool = _parse_hostfile(text.splitlines(keepends=True))

    assert list(pool.values()) == [on.gpus_per_node] * on.nodes


def launched(plan: Plan, folder: Path) -> str:
    """What the real launcher, started by the generated script, hands to pdsh.

    ssh and pdsh are small programs here: one answers, the other prints what it was called with.
    """
    run, tools = folder / "run", folder / "bin"
    write_all(render(plan), run)
    tools.mkdir()
    (tools / "ssh").write_text("#!/bin/sh\nexit 0\n")
    (tools / "pdsh").write_text('#!/bin/sh\nprintf "[%s]\\n" "$@" "$PDSH_SSH_ARGS_APPEND"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    done = subprocess.run(
        [run / "launch/deepspeed.sh"],
        env={**os.environ, "PATH": path, "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_launcher_carries_everything(tmp_path: Path) -> None:
    """Variables, hosts, user, port, master and module."""
    plan = plans.plan(on=ON)
    said = launched(plan, tmp_path)

    for variable in environment_variables(plan):
        assert f"export {variable.name}={variable.value}; " in said
    for part in ("[10.0.0.1,10.0.0.2]", "[me]", "--master_addr=10.0.0.1", "-p 2222]"):
        assert part in said
    assert f"cd {tmp_path / 'run'}" in said
    assert "dsforge.train" in said


def test_the_launcher_starts_ranks_on_the_selected_devices(tmp_path: Path) -> None:
    """As it tells each host in `--world_info`."""
    hosts = (
        Host(address="10.0.0.1", slots=2, devices=(2, 3)),
        Host(address="10.0.0.2", slots=2, devices=(0, 5)),
    )
    said = launched(plans.plan(on=plans.cluster(2, 2, hosts=hosts)), tmp_path)
    word = re.search(r"--world_info=(\S+)", said)

    assert word is not None
    world = json.loads(base64.urlsafe_b64decode(word[1]))
    assert world == {"10.0.0.1": [2, 3], "10.0.0.2": [0, 5]}


def test_an_unreachable_host_stops_the_launch(tmp_path: Path) -> None:
    """The message names the host, and nothing starts."""
    run, tools = tmp_path / "run", tmp_path / "bin"
    write_all(render(plans.plan(on=ON)), run)
    tools.mkdir()
    refuse = 'case "$*" in *10.0.0.2*) echo "Connection refused" >&2; exit 255;; esac\n'
    (tools / "ssh").write_text(f"#!/bin/sh\n{refuse}")
    (tools / "pdsh").write_text("#!/bin/sh\necho STARTED\n")
    (tools / "deepspeed").write_text("#!/bin/sh\necho STARTED\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)

    done = subprocess.run(
        [run / "launch/deepspeed.sh"],
        env={"PATH": f"{tools}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "host 10.0.0.2 does not respond over ssh: Connection refused" in done.stderr
    assert "10.0.0.1 " not in done.stderr
    assert "STARTED" not in done.stdout
