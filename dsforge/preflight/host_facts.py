"""Facts of a host as they are received; anything unexpected in them is refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from dsforge.specs import FROZEN

Name = Annotated[str, StringConstraints(max_length=300)]
# What may end up in a command that a person is told to type.
Word = Annotated[str, StringConstraints(max_length=300, pattern=r"^[A-Za-z0-9_.:%+@-]*$")]
Real = Annotated[float, Field(allow_inf_nan=False, ge=-1e12, le=1e12)]
Text = Annotated[str, StringConstraints(max_length=500)]
Path = Annotated[str, StringConstraints(max_length=4096)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Limit = Annotated[int, Field(ge=-1, le=1 << 62)]  # -1: there is none
MANY = 256


class Interface(BaseModel):
    """A network interface that is up, with its IPv4 addresses."""

    model_config = FROZEN

    name: Word
    addresses: tuple[Word, ...] = Field(max_length=MANY)
    mtu: Count
    mac: Word
    is_default: bool


class RdmaPort(BaseModel):
    """A port of an RDMA adapter."""

    model_config = FROZEN

    name: Word
    is_active: bool
    is_ethernet: bool = Field(description="RoCE instead of InfiniBand.")
    gbit_per_s: Real


class Card(BaseModel):
    """A GPU as `nvidia-smi` describes it."""

    model_config = FROZEN

    name: Name
    memory_bytes: Count
    driver: Word
    ecc_errors: Count = Field(description="Uncorrected, since the driver was loaded.")
    throttle: Count = Field(description="Bits of nvmlClocksEventReasons.")


class Package(BaseModel):
    """An installed package of the launcher's interpreter."""

    model_config = FROZEN

    version: Word
    origin: Path
    namesake: Word = Field(default="", description="Version of another project's package.")


class Interpreter(BaseModel):
    """The interpreter that the launcher calls on a host."""

    model_config = FROZEN

    path: Path
    exists: bool
    error: Text = Field(description="Error message, if its packages could not be listed.")
    version: Word = ""
    packages: dict[Word, Package] = Field(default={}, max_length=MANY)
    nccl: Word = ""
    cuda: Word = Field(
        default="", description="CUDA release that torch was built for; empty: CPU build."
    )
    tag: Word = ""
    headers: Path = ""


class RunFolder(BaseModel):
    """The run folder as a host has it."""

    model_config = FROZEN

    exists: bool
    is_writable: bool
    free_bytes: Count | None
    files: dict[Name, Name] = Field(
        max_length=MANY, description="Checksums of the file's content; empty: missing."
    )


class Tools(BaseModel):
    """What can build a C++ op on a host."""

    model_config = FROZEN

    compiler: Path
    compiler_works: bool
    ninja: Path = Field(description="On PATH of a remote shell.")
    ninja_beside: Path = Field(description="In the folder of the interpreter.")
    nvcc: Path
    nvcc_release: Word
    has_python_headers: bool
    has_libaio: bool


class Lock(BaseModel):
    """A lock file that a build made."""

    model_config = FROZEN

    op: Word
    path: Path
    age_s: Real
    is_held: bool


class Builds(BaseModel):
    """C++ ops that torch has built for this user."""

    model_config = FROZEN

    root: Path
    ops: tuple[Name, ...] = Field(max_length=MANY)
    locks: tuple[Lock, ...] = Field(max_length=MANY)
    free_bytes: Count | None


class OffloadFolder(BaseModel):
    """The folder for NVMe offload on a host."""

    model_config = FROZEN

    path: Path
    exists: bool
    free_bytes: Count | None
    error: Text = Field(description="Why a block cannot be written with O_DIRECT.")


class HostFacts(BaseModel):
    """One host of the job."""

    model_config = FROZEN

    host_name: Word
    name_address: Word = Field(description="Address that its own name resolves to; empty: none.")
    addresses: tuple[Word, ...] = Field(
        max_length=MANY, description="Addresses in the order of `hostname -I`."
    )
    interfaces: tuple[Interface, ...] = Field(max_length=MANY)
    infiniband: tuple[RdmaPort, ...] = Field(max_length=MANY)
    gpus: tuple[Card, ...] = Field(max_length=MANY)
    gpu_note: Text
    cpu_cores: Count
    memory_bytes: Count = Field(description="RAM, or the cgroup's limit where that is lower.")
    shm_free_bytes: Count | None
    tmp_free_bytes: Count | None
    memlock_bytes: Limit
    open_files: Limit
    interpreter: Interpreter
    folder: RunFolder
    environment: dict[Name, Text] = Field(max_length=MANY)
    tools: Tools
    builds: Builds
    nvme: OffloadFolder | None

    def interface(self, name: str) -> Interface | None:
        """The interface of that name."""
        return next((i for i in self.interfaces if i.name == name), None)

    @property
    def own_addresses(self) -> frozenset[str]:
        """Every address of the host."""
        return frozenset(self.addresses).union(*(i.addresses for i in self.interfaces))

    @property
    def has_rdma(self) -> bool:
        """Whether a port of an RDMA adapter is active."""
        return any(port.is_active for port in self.infiniband)


class Listening(BaseModel):
    """Whether a host could listen on the port of the job."""

    model_config = FROZEN

    error: Text
    holder: Text = Field(description="Program that uses the port; empty: not visible.")


class Call(BaseModel):
    """What came of one host calling another on the port of the job."""

    model_config = FROZEN

    peer: Word
    error: Text
    interface: Word = Field(default="", description="Interface of the route to the peer.")
    source: Word = ""
    mtu: Count = 0
    mtu_passes: bool | None = Field(default=None, description="None: unknown.")


class Stream(BaseModel):
    """One TCP stream from a host to another, as the receiver counted it."""

    model_config = FROZEN

    peer: Word
    error: Text
    bytes: Count = 0
    seconds: Real = 0.0

    @property
    def bytes_per_s(self) -> float:
        """The rate; zero where nothing arrived."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0
