"""The tools of `dsforge mcp`: one for each question, answered with the text of the command.

Each tool also returns the document that the command prints with `--json`. A mistake in an argument
is an error of the tool with the message of the command line; the server goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field

from dsforge import __version__
from dsforge.api import checking, planning, pricing, sizing
from dsforge.api.inputs import load_request
from dsforge.error_report import error_report
from dsforge.errors import DsforgeError
from dsforge.masking import masked_document, printable
from dsforge.outside import is_allowed
from dsforge.plan import Request
from dsforge.reading.refusals import refusal

READS_ONLY = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
INSTRUCTIONS = """\
Plan and check large-model training with DeepSpeed and Megatron-LM. Use `plan` to choose a strategy
for a model on a cluster, `estimate` for the memory and step time of a given strategy, `find` for
the largest or fewest that fits, `explain` for the formula behind a figure, `lint` before a launch,
`import_config` for files of other trainers and `diagnose` after a failure. Figures are predictions
with 80 % intervals: quote the interval.
Name every setting that is known; defaults are listed in the answer. Resources hold the catalog of
models, accelerators and links and the schemas of `cluster`, `workload` and `strategy`."""
SCHEMAS = ("cluster", "workload", "strategy")
P = ParamSpec("P")


class Job(BaseModel):
    """A training job. What is not given is chosen, and named in the answer."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(
        default=None,
        description="Catalog name (llama-3.1-8b), hub id, size (7b), or the path of a config.json.",
    )
    gpu: str | None = Field(default=None, description="Accelerator of the catalog: h100-80gb.")
    gpus_per_node: int | None = Field(default=None, description="Accelerators of one node.")
    nodes: int | None = Field(default=None, description="Nodes of the cluster.")
    cluster: str | dict[str, Any] | None = Field(
        default=None,
        description="More keys of a cluster file, such as inter_node, nics_per_node and "
        "host_memory_gib (resource dsforge://schema/cluster), or the path of one.",
    )
    workload: dict[str, Any] | None = Field(
        default=None,
        description="Keys of a workload file: sequence_length, global_batch_size, tokens, method "
        "(full, lora, qlora), precision, optimizer (resource dsforge://schema/workload).",
    )
    strategy: dict[str, Any] | None = Field(
        default=None,
        description="What is fixed: zero_stage, micro_batch_size, tensor_parallel_size, "
        "offload_optimizer, recompute (resource dsforge://schema/strategy).",
    )


Question = Literal["micro-batch", "seq-len", "gpus", "model"]
Objective = Literal["fastest", "cheapest", "fewest-gpus"]
Paths = Annotated[list[str], Field(description="Files or folders below the root folder.")]
Figure = Annotated[str, Field(description="Name of a figure: device_memory, step_likely, mfu.")]
ZeroConfig = Annotated[str | None, Field(description="Path of a ds_config.json whose keys hold.")]


def server() -> MCPServer:
    """The server with all its tools and resources."""
    made = MCPServer("dsforge", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    for tool in (plan, estimate, find, explain, lint, import_config, diagnose):
        about = cleandoc(tool.__doc__ or "")
        made.tool(description=about, annotations=READS_ONLY, structured_output=False)(tool)
    for kind in ("model", "gpu", "link"):
        made.resource(
            f"dsforge://catalog/{kind}",
            mime_type="application/json",
            description=f"Every {kind} of the catalog, with sources.",
        )(_catalog(kind))
    for part in SCHEMAS:
        made.resource(
            f"dsforge://schema/{part}",
            mime_type="application/json",
            description=f"JSON schema of `{part}` in a job.",
        )(_schema(part))
    return made


def _answering(
    function: Callable[P, tuple[Iterable[str], dict[str, Any]]],
) -> Callable[P, CallToolResult]:
    """A tool that answers with lines of text and a document; neither quotes a secret."""

    @wraps(function)
    def tool(*args: P.args, **kwargs: P.kwargs) -> CallToolResult:
        try:
            lines, document = function(*args, **kwargs)
        except DsforgeError as error:
            raise ToolError(error_report(error).strip()) from None
        text = "\n".join(map(printable, lines))
        return CallToolResult(
            content=[TextContent(type="text", text=text)],
            structured_content=masked_document(document),
        )

    tool.__annotations__["return"] = CallToolResult
    return tool


@_answering
def plan(
    job: Job,
    *,
    objective: Objective | None = None,
    deadline_days: float | None = None,
    budget: float | None = None,
    top: int = 3,
    flips: bool = False,
) -> tuple[list[str], dict[str, Any]]:
    """Rank all training strategies for a model on a cluster, with reasons and alternatives.

    `flips` also searches for the changes after which another kind of plan would be chosen.
    """
    from dsforge.cli.plan import flip_lines, screen_lines

    found = planning.plan(
        _request(job),
        objective=objective,
        deadline_days=deadline_days,
        budget=budget,
        top=top,
        flips=flips,
    )
    document = found.document.model_dump(mode="json")
    return [*screen_lines(found, None), *flip_lines(found)], document


@_answering
def estimate(job: Job, ds_config: ZeroConfig = None) -> tuple[list[str], dict[str, Any]]:
    """Predict memory and step time of one strategy, and what would make it fit if it does not."""
    from dsforge.cli.estimate import screen_lines
    from dsforge.cli.show import numbered

    found = pricing.estimate(_request(job, ds_config))
    lines = screen_lines(found.plan, numbered(found.remedies))
    return lines, found.document.model_dump(mode="json")


@_answering
def find(question: Question, job: Job) -> tuple[list[str], dict[str, Any]]:
    """Find the largest micro-batch, seq-len or model that fits, or the fewest gpus."""
    from dsforge.cli.estimate import answer_lines

    model = None if job.model is None else _named(job.model)
    found = sizing.find(question, model, _cluster(job), _workload(job), strategy=job.strategy)
    return answer_lines(found, verbose=False), found.document.model_dump(mode="json")


@_answering
def explain(
    figure: Figure, job: Job, ds_config: ZeroConfig = None
) -> tuple[Iterable[str], dict[str, Any]]:
    """Show how one figure of a job is computed: formula, inputs and sources."""
    from dsforge.cli.explain import explanation_lines

    made = pricing.estimate(_request(job, ds_config)).plan
    found = pricing.explain(made, figure)
    return explanation_lines(found), found.model_dump(mode="json")


@_answering
def lint(
    paths: Paths, model: str | None = None, cluster: str | None = None
) -> tuple[list[str], dict[str, Any]]:
    """Check ds_configs, hostfiles, environment files and launch arguments before a launch."""
    from dsforge.findings.writers import WRITERS, counted, summary
    from dsforge.lint.check import BY_ID

    found = checking.lint(
        [_inside(path) for path in paths],
        model=None if model is None else _named(model),
        cluster=None if cluster is None else _inside(cluster),
    )
    text = WRITERS["text"](found.findings, BY_ID).rstrip()
    last = f"{summary(found.findings)} in {counted(found.files, 'file')}"
    return [*found.notes, text, last], found.document.model_dump(mode="json")


@_answering
def import_config(
    paths: Paths, model: str | None = None, gpu: str | None = None
) -> tuple[list[str], dict[str, Any]]:
    """Explain configs and scripts of other trainers: setup, findings, price, a better plan.

    Nothing of them is run. With `model` and `gpu` the setup is priced.
    """
    from dsforge.api.importing import import_config as imported
    from dsforge.cli.importing import lines_of

    found = imported(
        [_inside(path) for path in paths],
        model=None if model is None else _named(model),
        cluster=None if gpu is None else {"gpu": gpu},
    )
    return lines_of(found, verbose=False), found.document.model_dump(mode="json")


@_answering
def diagnose(
    paths: Paths | None = None,
    text: Annotated[str | None, Field(description="A log or traceback, instead of paths.")] = None,
    plan: Annotated[str | None, Field(description="Path of the run's plan.json.")] = None,
) -> tuple[list[str], dict[str, Any]]:
    """Find the cause of a failed run in its logs, with evidence and a fix."""
    from dsforge.diagnose.report import described

    found = checking.diagnose(
        [_inside(path) for path in paths or ()],
        text=text,
        plan=None if plan is None else _inside(plan),
    )
    lines = described(found.causes) or ["no sign of a failure was found"]
    return lines, found.document.model_dump(mode="json")


def _request(job: Job, ds_config: str | None = None) -> Request:
    """The request that a job describes. Raises SpecError."""
    config = None if ds_config is None else _inside(ds_config)
    return load_request(
        None if job.model is None else _named(job.model),
        _cluster(job),
        _workload(job),
        strategy=job.strategy,
        ds_config=config,
    )


def _cluster(job: Job) -> Path | dict[str, Any] | None:
    """The cluster of a job: the path of a file, or its keys. Raises SpecError."""
    flat = {
        name: value
        for name in ("gpu", "gpus_per_node", "nodes")
        if (value := getattr(job, name)) is not None
    }
    if isinstance(job.cluster, str):
        if flat:
            message = f"`{next(iter(flat))}` cannot be given beside the path of a cluster file"
            raise refusal("inputs-clash", "", message, "give `cluster` as a mapping")
        return _inside(job.cluster)
    return {**(job.cluster or {}), **flat} or None


def _workload(job: Job) -> dict[str, Any] | None:
    """The workload of a job, whose data is below the root folder. Raises SpecError."""
    data = (job.workload or {}).get("data")
    if isinstance(data, Mapping):
        for name in ("train", "validation"):
            if isinstance(data.get(name), str):
                _inside(data[name])
    return job.workload


def _named(model: str) -> str:
    """The name or path of a model; a path is below the root folder. Raises SpecError."""
    path = Path(model)
    if model.startswith("~") or path.is_absolute() or ".." in path.parts:
        _inside(model)
    return model


def _inside(text: str) -> Path:
    """A path below the root folder. Raises SpecError for every other, whether it exists or not."""
    if "\x00" in text or not is_allowed(Path(text).expanduser()):
        message = f"`{text[:200]}` is outside the folder that this server may read"
        raise refusal("path-outside", "", message, f"name a path below {Path.cwd()}")
    return Path(text).expanduser()


def _catalog(kind: str) -> Callable[[], str]:
    """A function that returns the rows of a kind as JSON."""

    def rows() -> str:
        from dsforge import catalog

        return json.dumps(catalog.rows(kind, ""), indent=1)  # type: ignore[arg-type]  # a kind

    rows.__name__ = f"catalog_{kind}"
    return rows


def _schema(part: str) -> Callable[[], str]:
    """A function that returns the JSON schema of a part of a job."""

    def schema() -> str:
        from dsforge.reading.files import ClusterFile, WorkloadFile
        from dsforge.strategy import Constraints

        models: dict[str, type[BaseModel]] = {
            "cluster": ClusterFile,
            "workload": WorkloadFile,
            "strategy": Constraints,
        }
        return json.dumps(models[part].model_json_schema(), indent=1)

    schema.__name__ = f"schema_{part}"
    return schema
