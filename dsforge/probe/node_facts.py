"""Facts of one node, before anything is concluded from them."""

from __future__ import annotations

from pydantic import BaseModel, Field

from dsforge.specs import FROZEN


class GpuFact(BaseModel):
    """An NVIDIA GPU as its driver describes it."""

    model_config = FROZEN

    name: str = Field(description="Product name of the GPU.")
    memory_bytes: int = Field(
        description="Total memory in bytes, including memory in use by other processes."
    )
    nvlinks: int = Field(default=0, description="Number of active NVLinks.")
    pcie_generation: int | None = Field(
        default=None, description="PCIe generation of the slot; none: unknown."
    )
    cuda_cores: int | None = Field(default=None, description="Number of CUDA cores; none: unknown.")
    clock_mhz: int | None = Field(default=None, description="Maximum clock of the cores, MHz.")
    memory_bytes_per_s: float | None = Field(
        default=None, description="Memory bandwidth, computed from bus width and clock."
    )
    has_bf16: bool = Field(default=True, description="True: the GPU computes in bf16.")


class DiskFact(BaseModel):
    """A mounted disk with write permission to."""

    model_config = FROZEN

    mount: str = Field(description="Path that the disk is mounted at.")
    device: str = Field(description="Device file of the disk.")
    free_bytes: int = Field(description="Free space for the user, bytes.")
    read_bytes_per_s: float | None = Field(
        default=None, description="Sequential read rate; none: not measured."
    )
    write_bytes_per_s: float | None = Field(
        default=None, description="Sequential write rate; none: not measured."
    )

    @property
    def is_nvme(self) -> bool:
        """Whether the kernel's name of the device says NVMe."""
        return self.device.startswith("/dev/nvme")


class InterfaceFact(BaseModel):
    """A network interface that is up."""

    model_config = FROZEN

    name: str = Field(description="Name of the network interface.")
    address: str | None = Field(
        default=None, description="IPv4 address of the interface; none: it has none."
    )
    gbit_per_s: float | None = Field(
        default=None, description="Link rate, Gbit/s; none: not reported by the driver."
    )
    is_default: bool = Field(default=False, description="True: the default route uses it.")
    is_physical: bool = Field(default=False, description="True: it is a physical device.")


class InfinibandFact(BaseModel):
    """An active port of an RDMA adapter."""

    model_config = FROZEN

    name: str = Field(description="Adapter and port, such as mlx5_0:1.")
    gbit_per_s: float = Field(description="Link rate of the port, Gbit/s.")
    is_ethernet: bool = Field(description="True: RoCE instead of InfiniBand.")


class Facts(BaseModel):
    """One node."""

    model_config = FROZEN

    host_name: str = Field(description="Host name as the kernel reports it.")
    memory_bytes: int = Field(description="RAM, or the cgroup's limit where that is lower.")
    cpu_cores: int = Field(description="Cores that this process may use.")
    cpu_has_bf16: bool = Field(default=False, description="True: the CPU has AMX or AVX-512 BF16.")
    cpu_flops: float = Field(
        description="fp32 matrix products, all cores together, measured, FLOP/s."
    )
    cpu_bytes_per_s: float = Field(description="Rate of a copy in RAM, measured, bytes/s.")
    cpu_note: str = Field(
        default="", description="Why the products were rated instead of measured."
    )
    gpus: tuple[GpuFact, ...] = Field(default=(), description="NVIDIA GPUs of the node.")
    gpu_note: str = Field(default="", description="Why no GPU was found, where it is known.")
    disks: tuple[DiskFact, ...] = Field(
        default=(), description="Mounted disks with write permission."
    )
    interfaces: tuple[InterfaceFact, ...] = Field(
        default=(), description="Network interfaces that are up."
    )
    infiniband: tuple[InfinibandFact, ...] = Field(
        default=(), description="Active ports of RDMA adapters."
    )
