"""More of what is fuzzed: files that people write or share, and texts that are shown."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from dsforge.artifacts.anchored import Anchored
from dsforge.artifacts.artifact import COMMIT, MANIFEST, REMOVALS, Artifact, is_generated
from dsforge.artifacts.pending import _checked
from dsforge.confine import Limits
from dsforge.errors import DsforgeError, SpecError
from dsforge.job import TrainJob
from dsforge.masking import masked
from dsforge.plan import Request
from dsforge.reading.cluster import cluster_of
from dsforge.reading.ds_config import read_ds_config, settings_of, settings_within
from dsforge.reading.files import SpecFile
from dsforge.reading.model import _with_place, parsed_config, read_model
from dsforge.reading.problems import validated
from dsforge.reading.source import parse_source
from dsforge.reading.stored import read_plan
from dsforge.reading.workload import workload_file, workload_of
from dsforge.render import strangers
from dsforge.train.checkpoints.note import NOTE, read_note
from dsforge.train.data.rows import BadRows, read_rows

LONGEST_MESSAGE = 2_000
SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWx0123"
CLUSTER = "gpu: a100-80gb\nnodes: 2\n"
FOLDER = tempfile.TemporaryDirectory(prefix="dsforge-fuzz-")  # to the very end
TEMPLATE, MARK = "page.j2", b"\xff\xfe"
strangers.LIMITS = Limits(seconds=2, memory_bytes=256 << 20, answer_bytes=1 << 20)
apart = False  # whether a process of its own is what dsforge is to start now


class Prepared:
    """A file that is open before anything is watched; its content is that of each input."""

    def __init__(self, *parts: str) -> None:
        self.path = Path(FOLDER.name, *parts)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)

    def holds(self, data: bytes) -> Path:
        """The path, after the file was given that content."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)
        return self.path


ROWS, PLAN, NOTED = Prepared("data.jsonl"), Prepared("plan.json"), Prepared("note", NOTE)
PAGE, CONFIG = Prepared("templates", TEMPLATE), Prepared("ds_config.json")
OLD, NEW = Prepared("run", MANIFEST), Prepared("run", COMMIT, MANIFEST)
REMOVED = Prepared("run", COMMIT, REMOVALS)
RUN = os.open(Path(FOLDER.name, "run"), os.O_RDONLY | os.O_DIRECTORY)


def text_of(data: bytes) -> str:
    """The text that stands for any bytes."""
    return data.decode("utf-8", "replace")


def refused(work: Callable[[], Any]) -> Any:
    """What work makes; none where it is refused, in few words."""
    try:
        return work()
    except DsforgeError as error:
        problems = error.problems if isinstance(error, SpecError) else ()
        for text in (error.message, *map(str, problems)):
            assert len(text) < LONGEST_MESSAGE, text[:200]
    return None


def workload(data: bytes) -> None:
    """A workload file: refused, or a workload for a model and a cluster."""
    model, _ = read_model("llama-2-7b")
    cluster, _ = cluster_of(parse_source(CLUSTER, "cluster.yaml"))
    source = refused(lambda: parse_source(text_of(data), "workload.yaml"))
    file = refused(lambda: workload_file(source)) if source else None
    if file:
        refused(lambda: workload_of(file, model, cluster))


def spec(data: bytes) -> None:
    """A spec file."""
    refused(lambda: validated(SpecFile, parse_source(text_of(data), "spec.yaml")))


def priced_ds_config(data: bytes) -> None:
    """A ds_config that is to be priced: refused, or settings of a request."""
    file = refused(lambda: read_ds_config(CONFIG.holds(data)))
    if file:
        settings_of(file)
        refused(lambda: settings_within(file, _request()))


@cache
def _request() -> Request:
    model, _ = read_model("llama-2-7b")
    cluster, _ = cluster_of(parse_source(CLUSTER, "cluster.yaml"))
    work, _ = workload_of(workload_file(parse_source("{}", "workload.yaml")), model, cluster)
    return Request(model=model, cluster=cluster, workload=work)


def train_yaml(data: bytes) -> None:
    """A train.yaml."""
    refused(lambda: validated(TrainJob, parse_source(text_of(data), "train.yaml")))


def model_config(data: bytes) -> None:
    """A config.json: refused, or a model that has parameters."""
    found = refused(
        lambda: _with_place(parsed_config(text_of(data), "config.json"), "m", "config.json")
    )
    if found:
        assert found[0].layers > 0
        assert found[0].hidden_size > 0


def plan_json(data: bytes) -> None:
    """A plan.json: refused, or a plan that is the same again after it was written."""
    plan = refused(lambda: read_plan(PLAN.holds(data)))
    if plan:
        assert plan.model_validate_json(plan.to_json()) == plan


def note(data: bytes) -> None:
    """The note of a checkpoint."""
    refused(lambda: read_note(NOTED.holds(data).parent))


def rows(data: bytes) -> None:
    """Training data: every good row can be written as UTF-8, every bad one is named."""
    bad: list[BadRows] = []
    found = refused(lambda: read_rows(ROWS.holds(data), "auto", bad.append))
    for problem in (problem for each in bad for problem in each.first):
        assert len(str(problem)) < LONGEST_MESSAGE
    for row in found or ():
        (row.text + "".join(m["role"] + m["content"] for m in row.messages)).encode()


def manifest(data: bytes) -> None:
    """A manifest, that of a pending commit and its removals: what is done is ours to do."""
    old, new, removed, *_ = (*data.split(MARK), b"", b"")
    OLD.holds(old), NEW.holds(new), REMOVED.holds(removed)
    folder = Anchored(Path(FOLDER.name, "run"), RUN)
    with folder.inner(COMMIT) as commit:
        assert commit is not None
        step = refused(lambda: _checked(folder, commit, force=True))
    for path in (*step.removals, *step.moves) if step else ():
        assert path == MANIFEST or is_generated(path), path


def masked_text(data: bytes) -> None:
    """Any text around a secret: the secret is gone, masking twice is masking once."""
    text = text_of(data)
    half = len(text) // 2
    shown = masked(f"{text[:half]}\nHF_TOKEN={SECRET}\n{text[half:]}")
    assert SECRET not in shown
    assert len(shown) < 3 * len(text) + 200
    assert masked(shown) == shown


def template(data: bytes) -> None:
    """A template of a stranger: text, or one message, within its time, memory and sandbox."""
    global apart  # noqa: PLW0603 (a hook cannot be removed)
    PAGE.holds(data)
    apart = True
    try:
        refused(lambda: strangers.rendered_apart(PAGE.path.parent, _page))
    finally:
        apart = False


def _page(environment: Any) -> tuple[Artifact, ...]:
    text = environment.get_template(TEMPLATE).render(name="a", hosts=("b", "c"), count=3)
    return (Artifact("page.txt", text),)


INPUT_TARGETS: dict[str, Callable[[bytes], None]] = {
    "workload": workload,
    "spec": spec,
    "priced_ds_config": priced_ds_config,
    "train_yaml": train_yaml,
    "model_config": model_config,
    "plan_json": plan_json,
    "note": note,
    "rows": rows,
    "manifest": manifest,
    "masked": masked_text,
    "template": template,
}
