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

    name: Word = Field(description="Name of the network interface.")
    addresses: tuple[Word, ...] = Field(
        max_length=MANY, description="IPv4 addresses of the interface."
    )
    mtu: Count = Field(description="Largest packet of the interface, bytes.")
    mac: Word = Field(description="Hardware (MAC) address of the interface.")
    is_default: bool = Field(description="True: the default route uses it.")


class RdmaPort(BaseModel):
    """A port of an RDMA adapter."""

    model_config = FROZEN

    name: Word = Field(description="Adapter and port, such as mlx5_0:1.")
    is_active: bool = Field(description="True: the link of the port is up.")
    is_ethernet: bool = Field(description="True: RoCE instead of InfiniBand.")
    gbit_per_s: Real = Field(description="Link rate of the port, Gbit/s.")


class Card(BaseModel):
    """A GPU as `nvidia-smi` describes it."""

    model_config = FROZEN

    name: Name = Field(description="Product name of the GPU.")
    memory_bytes: Count = Field(description="Total memory of the GPU, bytes.")
    driver: Word = Field(description="Version of the NVIDIA driver.")
    ecc_errors: Count = Field(description="Uncorrected memory errors since the driver was loaded.")
    throttle: Count = Field(description="Throttle reasons, as bits of nvmlClocksEventReasons.")


class Package(BaseModel):
    """An installed package of the launcher's interpreter."""

    model_config = FROZEN

    version: Word = Field(description="Installed version of the package.")
    origin: Path = Field(description="Path that the package is imported from.")
    namesake: Word = Field(default="", description="Version of another project's package.")


class Interpreter(BaseModel):
    """The interpreter that the launcher calls on a host."""

    model_config = FROZEN

    path: Path = Field(description="Absolute path of the Python interpreter.")
    exists: bool = Field(description="True: the host has this file.")
    error: Text = Field(description="Error message, if its packages could not be listed.")
    version: Word = Field(default="", description="Version of Python; empty: unknown.")
    packages: dict[Word, Package] = Field(
        default={}, max_length=MANY, description="Installed packages of the job, by name."
    )
    nccl: Word = Field(default="", description="Version of the NCCL wheel; empty: none.")
    cuda: Word = Field(
        default="", description="CUDA release that torch was built for; empty: CPU build."
    )
    tag: Word = Field(default="", description="Tag of compiled extensions, such as py311_cu121.")
    headers: Path = Field(default="", description="Folder of the Python headers.")


class RunFolder(BaseModel):
    """The run folder as a host has it."""

    model_config = FROZEN

    exists: bool = Field(description="True: the host has this folder.")
    is_writable: bool = Field(description="True: the user may write files there.")
    free_bytes: Count | None = Field(description="Free space on its disk, bytes; none: unknown.")
    files: dict[Name, Name] = Field(
        max_length=MANY, description="Checksums of the file's content; empty: missing."
    )


class Tools(BaseModel):
    """What can build a C++ op on a host."""

    model_config = FROZEN

    compiler: Path = Field(description="Path of the C++ compiler; empty: none.")
    compiler_works: bool = Field(description="True: it compiles and links a test program.")
    ninja: Path = Field(description="On PATH of a remote shell.")
    ninja_beside: Path = Field(description="In the folder of the interpreter.")
    nvcc: Path = Field(description="Path of the CUDA compiler; empty: none.")
    nvcc_release: Word = Field(description="CUDA release of nvcc, such as 12.4.")
    has_python_headers: bool = Field(description="True: Python.h is installed.")
    has_libaio: bool = Field(description="True: libaio and its header are installed.")


class Lock(BaseModel):
    """A lock file that a build made."""

    model_config = FROZEN

    op: Word = Field(description="Name of the op that was built.")
    path: Path = Field(description="Path of the lock file.")
    age_s: Real = Field(description="Age of the lock file, seconds.")
    is_held: bool = Field(description="True: a running process holds it.")


class Builds(BaseModel):
    """C++ ops that torch has built for this user."""

    model_config = FROZEN

    root: Path = Field(description="Folder of the built ops (TORCH_EXTENSIONS_DIR).")
    ops: tuple[Name, ...] = Field(max_length=MANY, description="Names of the ops that are built.")
    locks: tuple[Lock, ...] = Field(
        max_length=MANY, description="Lock files of running or killed builds."
    )
    free_bytes: Count | None = Field(description="Free space on its disk, bytes; none: unknown.")


class OffloadFolder(BaseModel):
    """The folder for NVMe offload on a host."""

    model_config = FROZEN

    path: Path = Field(description="Absolute path of the folder.")
    exists: bool = Field(description="True: the host has this folder.")
    free_bytes: Count | None = Field(description="Free space on its disk, bytes; none: unknown.")
    error: Text = Field(description="Why a block cannot be written with O_DIRECT.")


class HostFacts(BaseModel):
    """One host of the job."""

    model_config = FROZEN

    host_name: Word = Field(description="Host name as the kernel reports it.")
    name_address: Word = Field(description="Address that its own name resolves to; empty: none.")
    addresses: tuple[Word, ...] = Field(
        max_length=MANY, description="Addresses in the order of `hostname -I`."
    )
    interfaces: tuple[Interface, ...] = Field(
        max_length=MANY, description="Network interfaces that are up."
    )
    infiniband: tuple[RdmaPort, ...] = Field(
        max_length=MANY, description="Ports of the RDMA adapters."
    )
    gpus: tuple[Card, ...] = Field(max_length=MANY, description="GPUs in the order of nvidia-smi.")
    gpu_note: Text = Field(description="Why no GPU was found; empty: unknown or found.")
    cpu_cores: Count = Field(description="CPU cores that the user may use.")
    memory_bytes: Count = Field(description="RAM, or the cgroup's limit where that is lower.")
    shm_free_bytes: Count | None = Field(
        description="Free space of /dev/shm, bytes; none: unknown."
    )
    tmp_free_bytes: Count | None = Field(
        description="Free space of the temporary folder, bytes; none: unknown."
    )
    memlock_bytes: Limit = Field(
        description="Limit of locked memory in a remote shell, bytes; none: unlimited."
    )
    open_files: Limit = Field(description="Limit of open files per process; none: unlimited.")
    interpreter: Interpreter = Field(description="Python that the launcher starts there.")
    folder: RunFolder = Field(description="Run folder on this host.")
    environment: dict[Name, Text] = Field(
        max_length=MANY, description="Relevant environment variables of a remote shell, by name."
    )
    tools: Tools = Field(description="Compilers and libraries that build ops.")
    builds: Builds = Field(description="Ops that are built or being built.")
    nvme: OffloadFolder | None = Field(
        description="Folder for NVMe offload; none: the plan has none."
    )

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

    error: Text = Field(description="Error of the bind call; empty: it listens.")
    holder: Text = Field(description="Program that uses the port; empty: not visible.")


class Call(BaseModel):
    """What came of one host calling another on the port of the job."""

    model_config = FROZEN

    peer: Word = Field(description="Address of the host that is called.")
    error: Text = Field(description="Error of the connection; empty: it succeeded.")
    interface: Word = Field(default="", description="Interface of the route to the peer.")
    source: Word = Field(default="", description="Own address of the connection.")
    mtu: Count = Field(default=0, description="Largest packet of that interface, bytes.")
    mtu_passes: bool | None = Field(
        default=None, description="Whether packets of that size arrive; none: unknown."
    )


class Stream(BaseModel):
    """One TCP stream from a host to another, as the receiver counted it."""

    model_config = FROZEN

    peer: Word = Field(description="Address of the sending host.")
    error: Text = Field(description="Error of the stream; empty: it ended normally.")
    bytes: Count = Field(default=0, description="Payload that arrived, in bytes.")
    seconds: Real = Field(default=0.0, description="Duration of the stream, in seconds.")

    @property
    def bytes_per_s(self) -> float:
        """The rate; zero where nothing arrived."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0
