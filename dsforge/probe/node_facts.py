"""Facts of one node, before anything is concluded from them."""

from __future__ import annotations

from pydantic import BaseModel, Field

from dsforge.specs import FROZEN


class GpuFact(BaseModel):
    """An NVIDIA GPU as its driver describes it."""

    model_config = FROZEN

    name: str
    memory_bytes: int = Field(description="All of it, also what others use now.")
    nvlinks: int = Field(default=0, description="NVLinks that are up.")
    pcie_generation: int | None = None
    cuda_cores: int | None = None
    clock_mhz: int | None = Field(default=None, description="Highest clock of the cores.")
    memory_bytes_per_s: float | None = Field(default=None, description="From bus width and clock.")
    has_bf16: bool = True


class DiskFact(BaseModel):
    """A mounted disk that the user may write to."""

    model_config = FROZEN

    mount: str
    device: str
    free_bytes: int
    read_bytes_per_s: float | None = Field(default=None, description="None: not measured.")
    write_bytes_per_s: float | None = None

    @property
    def is_nvme(self) -> bool:
        """Whether the kernel's name of the device says NVMe."""
        return self.device.startswith("/dev/nvme")


class InterfaceFact(BaseModel):
    """A network interface that is up."""

    model_config = FROZEN

    name: str
    address: str | None = Field(default=None, description="Its IPv4 address.")
    gbit_per_s: float | None = Field(default=None, description="None: the driver does not say.")
    is_default: bool = Field(default=False, description="The default route leaves through it.")
    is_physical: bool = Field(default=False, description="A device stands behind it.")


class InfinibandFact(BaseModel):
    """An active port of an RDMA adapter."""

    model_config = FROZEN

    name: str
    gbit_per_s: float
    is_ethernet: bool = Field(description="RoCE instead of InfiniBand.")


class Facts(BaseModel):
    """One node."""

    model_config = FROZEN

    host_name: str
    memory_bytes: int = Field(description="RAM, or the cgroup's limit where that is lower.")
    cpu_cores: int = Field(description="Cores that this process may use.")
    cpu_has_bf16: bool = Field(default=False, description="AMX or AVX-512 BF16.")
    cpu_flops: float = Field(description="fp32 matrix products, all cores together, FLOP/s.")
    cpu_bytes_per_s: float = Field(description="Copy in RAM, measured, bytes/s.")
    cpu_note: str = Field(
        default="", description="Why the products were rated instead of measured."
    )
    gpus: tuple[GpuFact, ...] = ()
    gpu_note: str = Field(default="", description="Why no GPU was found, where it is known.")
    disks: tuple[DiskFact, ...] = ()
    interfaces: tuple[InterfaceFact, ...] = ()
    infiniband: tuple[InfinibandFact, ...] = ()
