"""Messages between `dsforge probe` and the ranks that it starts.

Only the command line reaches every rank of every launcher, and only standard output comes back. So
the question is one argument without a character that a shell could mean, and each answer is one
line with a mark, which also shows how far the ranks are. Lines are untrusted: other programs write
into the same stream, and a line that is not an answer to the last letter is none.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dsforge.specs import FROZEN, Collective, Precision

MARK = "dsforge-probe "
MAX_LINE = 1 << 16
Scope = Literal["intra_node", "inter_node"]

HEARD: ConfigDict = {**FROZEN, "allow_inf_nan": False}
_MARKED = re.compile(re.escape(MARK) + r"(\{.*\})")


class Product(BaseModel):
    """A matrix product of the plan: (rows, inputs) times (inputs, outputs)."""

    model_config = FROZEN

    rows: int = Field(ge=1, le=1 << 24, description="Rows of the first matrix (tokens).")
    inputs: int = Field(
        ge=1, le=1 << 24, description="Columns of the first matrix, rows of the second."
    )
    outputs: int = Field(ge=1, le=1 << 24, description="Columns of the second matrix.")


class Question(BaseModel):
    """What the ranks are to measure."""

    model_config = FROZEN

    payload_bytes: dict[Collective, int] = Field(
        description="Largest payload of each collective, bytes."
    )
    element_bytes: Literal[2, 4] = Field(description="Bytes of a reduced element: bf16 or fp32.")
    precisions: tuple[Precision, ...] = Field(
        description="Precisions of the measured matrix products."
    )
    products: tuple[Product, ...] = Field(
        description="Sizes of the plan, measured in addition to a square product."
    )
    disk: str | None = Field(default=None, description="Folder on every node to measure.")
    budget_s: float = Field(gt=0, le=600, description="Time after which no new measurement starts.")

    def word(self) -> str:
        """The question as one argument of letters, digits, `-`, `_` and `=`."""
        return urlsafe_b64encode(self.model_dump_json().encode()).decode()

    @classmethod
    def of_word(cls, word: str) -> Question:
        """The question in an argument."""
        return cls.model_validate_json(urlsafe_b64decode(word))


class World(BaseModel):
    """Who measures: the job as its ranks see it, and the weakest of the nodes."""

    model_config = HEARD

    kind: Literal["world"] = Field(default="world", description="Type of this message.")
    ranks: int = Field(ge=1, description="Number of ranks of the job.")
    nodes: int = Field(ge=1, description="Number of nodes of the job.")
    device: str = Field(max_length=100, description="`cpu`, or the name of the accelerator.")
    back_end: str = Field(
        max_length=40, description="Back end of torch.distributed: gloo, nccl ..."
    )
    versions: dict[str, str] = Field(
        description="Versions of torch and deepspeed on the first rank."
    )
    memory_bytes: int = Field(ge=1, description="RAM of the node with the least, bytes.")
    cpu_cores: int = Field(ge=1, description="CPU cores of the node with the fewest.")
    interfaces: tuple[str, ...] = Field(
        max_length=16, description="Names of the interfaces of the route to the first node."
    )
    rdma_ports: int = Field(ge=0, description="Active RDMA ports of the node with the fewest.")
    most_rdma_ports: int = Field(ge=0, description="Active RDMA ports of the node with the most.")


class Timed(BaseModel):
    """One collective at one payload: seconds on the slowest rank."""

    model_config = HEARD

    kind: Literal["timed"] = Field(default="timed", description="Type of this message.")
    scope: Scope = Field(description="Group of ranks: inside a node, or across nodes.")
    collective: Collective = Field(description="Collective operation that was measured.")
    nodes: int = Field(ge=1, description="Nodes of the measured group.")
    ranks: int = Field(ge=2, description="Ranks of the measured group.")
    payload_bytes: int = Field(ge=1, description="Size of the message, bytes.")
    seconds: float = Field(gt=0, description="Time on the slowest rank, in seconds.")

    @property
    def bus_bytes(self) -> float:
        """Bytes that a ring sends over each link (nccl-tests, PERFORMANCE.md)."""
        passes = 2 if self.collective == "all_reduce" else 1
        return passes * self.payload_bytes * (self.ranks - 1) / self.ranks


class Rate(BaseModel):
    """A rate of the slowest rank or node, and which one that was."""

    model_config = HEARD

    kind: Literal["rate"] = Field(default="rate", description="Type of this message.")
    what: Literal[
        "product", "memory", "to_device", "to_host", "adam", "disk_read", "disk_write"
    ] = Field(description="What was measured: matrix products, copies, CPU Adam or disk.")
    precision: Precision | None = Field(
        default=None, description="Precision of matrix products; none: not applicable."
    )
    per_s: float = Field(gt=0, description="FLOP/s, bytes/s or parameters/s.")
    best_per_s: float = Field(gt=0, description="Rate of the fastest rank, per second.")
    slowest: str = Field(max_length=100, description="Host and number of the slowest rank.")
    how: str = Field(
        default="",
        max_length=100,
        description="Implementation that was measured, such as DeepSpeedCPUAdam.",
    )


class Skipped(BaseModel):
    """Something that could not be measured, and why."""

    model_config = HEARD

    kind: Literal["skipped"] = Field(default="skipped", description="Type of this message.")
    what: str = Field(max_length=100, description="Name of the measurement.")
    why: str = Field(max_length=400, description="Reason why it was not measured.")


class Ended(BaseModel):
    """The last line of a whole run."""

    model_config = HEARD

    kind: Literal["ended"] = Field(default="ended", description="Type of this message.")
    seconds: float = Field(ge=0, description="Time since the ranks started, in seconds.")


Answer = World | Timed | Rate | Skipped | Ended
_ANSWERS: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="kind")])


def answer_line(answer: Answer) -> str:
    """The line that carries an answer."""
    return MARK + answer.model_dump_json() + "\n"


def read_answer(line: str) -> Answer | None:
    """The answer in a line of output, whatever a launcher wrote before it; none in any other."""
    if MARK not in line or len(line) > MAX_LINE:
        return None
    found = _MARKED.search(line)
    try:
        return _ANSWERS.validate_json(found[1]) if found else None
    except ValidationError:
        return None
