"""`dsforge mcp`, asked by the official client over stdio: answers, refusals, and nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult, TextContent

import dsforge

JOB = {"model": "llama-2-7b", "gpu": "a100-80gb", "gpus_per_node": 8, "nodes": 2}
TOOLS = {"plan", "estimate", "find", "explain", "lint", "import_config", "diagnose"}
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
# Events of CPython's audit table that a server which only reads never causes.
ACTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.remove")
ACTS += ("os.rename", "os.mkdir", "socket.connect", "shutil.rmtree")
AUDITED = f"""
import os, sys
def hook(event, args):
    acts = event in {ACTS!r}
    if event == "open" and isinstance(args[0], str):
        acts = args[2] & (os.O_WRONLY | os.O_RDWR)
    if acts:
        sys.stderr.write(f"ACTED {{event}} {{args}}\\n")
from dsforge.cli import mcp, mcp_tools
from dsforge.cli.main import main
sys.addaudithook(hook)
os.system("true")  # is noticed, as the test sees
main(sys.argv[1:])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A root with a bad config and a link that leads out, beside a secret."""
    (tmp_path / "secret.json").write_text('{"zero_optimization": {"stage": 3}}')
    root = tmp_path / "root"
    root.mkdir()
    (root / "ds_config.json").write_text('{"zero_optimization": {"stage": 5}}')
    (root / "link.json").symlink_to(tmp_path / "secret.json")
    (root / "train.yaml").write_text('model: gpt2\ndeepspeed_config: "../secret.json"\n')
    (root / "cluster.yaml").write_text("gpu: h100-80gb\ngpus_per_node: 4\n")
    return root


@asynccontextmanager
async def connected(root: Path, log: Path | None = None) -> AsyncIterator[Client]:
    """The official client, connected to a server of its own process."""
    code = AUDITED if log else "from dsforge.cli.main import main; import sys; main(sys.argv[1:])"
    arguments = ["-c", code, "mcp", "--root", str(root)]
    command, arguments = (
        (sys.executable, arguments)
        if log is None
        else ("sh", ["-c", f'exec "$@" 2>{log}', "sh", sys.executable, *arguments])
    )
    async with Client(StdioServerParameters(command=command, args=arguments)) as client:
        yield client


def asked(root: Path, *calls: tuple[str, dict[str, Any]], log: Path | None = None) -> list[Any]:
    """What the server answers to these calls, one after the other."""

    async def run() -> list[CallToolResult]:
        async with connected(root, log) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return anyio.run(run)


def text(result: CallToolResult) -> str:
    """The text of an answer."""
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


def with_client(root: Path, work: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
    """What `work` returns with a connected client."""

    async def run() -> Any:
        async with connected(root) as client:
            return await work(client)

    return anyio.run(run)


def test_tools_are_described_and_only_read(folder: Path) -> None:
    """Each tool has a description, a valid schema with descriptions, and read-only hints."""
    tools = with_client(folder, lambda client: client.list_tools()).tools

    assert {tool.name for tool in tools} == TOOLS
    for tool in tools:
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        assert tool.description
        assert tool.annotations.read_only_hint is True
        assert tool.annotations.destructive_hint is False


def test_answers_are_those_of_the_python_api(folder: Path) -> None:
    """Text for reading, and the document of `--json`, which the public functions return."""
    cluster = {"gpu": "a100-80gb", "gpus_per_node": 8, "nodes": 2}
    plan, estimate, find = asked(
        folder,
        ("plan", {"job": JOB, "top": 2}),
        ("estimate", {"job": {**JOB, "strategy": {"zero_stage": 3}}}),
        ("find", {"question": "micro-batch", "job": JOB}),
    )

    best = dsforge.plan("llama-2-7b", cluster, top=2)
    assert plan.structured_content["plans"] == best.document.model_dump(mode="json")["plans"]
    assert best.best.strategy.label() in text(plan)
    made = dsforge.estimate("llama-2-7b", cluster, strategy={"zero_stage": 3})
    assert estimate.structured_content == made.document.model_dump(mode="json")
    answer = dsforge.find("micro-batch", "llama-2-7b", cluster).answer
    assert find.structured_content["answer"]["value"] == answer.value


def test_files_and_logs_are_checked(folder: Path) -> None:
    """Lint of the root finds the bad stage; a log has its cause; a figure has its formula."""
    lint, diagnose, explain = asked(
        folder,
        ("lint", {"paths": ["ds_config.json"]}),
        ("diagnose", {"text": OOM}),
        ("explain", {"figure": "mfu", "job": {"model": "7b", "cluster": "cluster.yaml"}}),
    )

    assert "[value-choice]" in text(lint)
    assert diagnose.structured_content["causes"][0]["rule"] == "cuda-out-of-memory"
    assert explain.structured_content["figures"][-1]["name"] == "mfu"


@pytest.mark.parametrize(
    "call",
    [
        ("lint", {"paths": ["/etc/hosts"]}),
        ("lint", {"paths": ["../secret.json"]}),
        ("lint", {"paths": ["sub/../../secret.json"]}),
        ("lint", {"paths": ["link.json"]}),
        ("lint", {"paths": ["~"]}),
        ("import_config", {"paths": ["../secret.json"]}),
        ("import_config", {"paths": ["link.json"]}),
        ("lint", {"paths": ["a\x00b"]}),
        ("lint", {"paths": ["ds_config.json"], "cluster": "/etc/hosts"}),
        ("lint", {"paths": ["ds_config.json"], "model": "../secret.json"}),
        ("diagnose", {"paths": ["/var/log"]}),
        ("diagnose", {"text": OOM, "plan": "../secret.json"}),
        ("estimate", {"job": {**JOB, "model": "../secret.json"}}),
        ("estimate", {"job": {**JOB, "model": "link.json"}}),
        ("estimate", {"job": JOB, "ds_config": "link.json"}),
        ("estimate", {"job": {"model": "7b", "cluster": "/etc/hosts"}}),
        ("plan", {"job": {**JOB, "workload": {"data": {"train": "/etc/hosts"}, "epochs": 1}}}),
    ],
    ids=lambda call: f"{call[0]}-{json.dumps(call[1])[:60]}",
)
def test_paths_outside_the_root_are_refused(folder: Path, call: tuple[str, Any]) -> None:
    """However a path leads out of the root: an error that quotes nothing of the file."""
    (found,) = asked(folder, call)

    assert "outside the folder" in text(found)
    assert "zero_optimization" not in text(found)


def test_a_path_in_a_file_does_not_lead_out(folder: Path) -> None:
    """The ds_config that a train.yaml names is not read where it is outside of the root."""
    (found,) = asked(folder, ("lint", {"paths": ["train.yaml"]}))

    assert "stage" not in text(found)


def test_mistakes_are_errors_of_the_tool(folder: Path) -> None:
    """Wrong values and names are answered with the message of the command line; it goes on."""
    wrong, unknown, fine = asked(
        folder,
        ("estimate", {"job": {**JOB, "strategy": {"zero_stage": 7}}}),
        ("plan", {"job": {"modle": "7b"}}),
        ("estimate", {"job": JOB}),
    )

    assert wrong.is_error
    assert "`strategy.zero_stage` (=7)" in text(wrong)
    assert unknown.is_error
    assert "modle" in text(unknown)
    assert not fine.is_error


def test_nothing_is_executed_or_written(folder: Path, tmp_path: Path) -> None:
    """No process, no connection, no file opened for writing: the interpreter's audit events."""
    log = tmp_path / "audit.log"
    before = sorted(path.name for path in folder.iterdir())
    found = asked(
        folder,
        ("plan", {"job": JOB}),
        ("plan", {"job": {**JOB, "model": "nobody/knows-this-model"}}),
        ("estimate", {"job": JOB}),
        ("find", {"question": "seq-len", "job": JOB}),
        ("explain", {"figure": "mfu", "job": JOB}),
        ("lint", {"paths": ["."]}),
        ("diagnose", {"text": OOM}),
        log=log,
    )

    assert [result.is_error for result in found].count(True) == 1
    noticed = [line for line in log.read_text().splitlines() if line.startswith("ACTED")]
    assert noticed == ["ACTED os.system (b'true',)"]
    assert sorted(path.name for path in folder.iterdir()) == before


def test_resources_hold_the_catalog_and_the_schemas(folder: Path) -> None:
    """Every resource that is listed can be read, as JSON."""

    async def read(client: Client) -> dict[str, Any]:
        listed = (await client.list_resources()).resources
        found = {}
        for resource in listed:
            contents = (await client.read_resource(str(resource.uri))).contents[0]
            found[str(resource.uri)] = json.loads(contents.text)  # type: ignore[union-attr]
        return found

    found = with_client(folder, read)
    assert {row["name"] for row in found["dsforge://catalog/gpu"]} >= {"h100-80gb", "a100-80gb"}
    jsonschema.Draft202012Validator.check_schema(found["dsforge://schema/cluster"])
    assert "zero_stage" in found["dsforge://schema/strategy"]["properties"]
