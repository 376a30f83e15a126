"""Equal nodes: what a cluster file says, completed, with a reason for every value chosen here.

A plan needs a link, RAM and cores even where nobody wrote them down. The defaults are what such
machines have at least, so that a plan made on them still fits on better ones.
"""

from __future__ import annotations

from dsforge import catalog
from dsforge.plan import Reason
from dsforge.reading.card import carded
from dsforge.reading.domain import Machines, joined
from dsforge.reading.files import ClusterFile, GpuFile, LinkFile
from dsforge.reading.refusals import refusal
from dsforge.reading.source import Source
from dsforge.specs import ClusterSpec, GpuSpec, Host, LinkSpec, NvmeSpec, SlurmSpec, usual_disk
from dsforge.units import GBPS, GIB, TFLOP, gib

FABRIC_GPUS_PER_NODE = 8
FABRIC_INTER_NODE, PLAIN_INTER_NODE = "100gbe", "10gbe"
CORES_PER_GPU = 8
LEAST_HOST_BYTES = 64 * GIB
HOST_BYTES_PER_GPU_BYTE = 2  # DGX A100 has 1.6 or 3.2, DGX H100 3.2

Reading = tuple[ClusterSpec, tuple[Reason, ...]]


def gpu_spec(file: GpuFile) -> GpuSpec:
    """A card of the user's own in base units."""
    return GpuSpec(
        name=file.name,
        memory_bytes=max(1, round(file.memory_gib * GIB)),
        memory_bytes_per_s=file.memory_bandwidth_gb_s * GBPS,
        peak_flops={precision: rate * TFLOP for precision, rate in file.peak_tflops.items()},
        matmul_efficiency=file.matmul_efficiency,
        host_link_bytes_per_s=file.host_link_gb_s * GBPS,
        power_w=file.power_w,
        source="cluster file",
    )


def link_spec(file: LinkFile) -> LinkSpec:
    """A link of the user's own in base units."""
    return LinkSpec(
        name=file.name,
        kind=file.kind,
        bytes_per_s=file.bandwidth_gb_s * GBPS,
        latency_s=file.latency_us / 1e6,
        efficiency=file.efficiency,
        source="cluster file",
    )


class Draft:
    """A cluster that is being completed; each choice leaves a reason."""

    def __init__(self, file: ClusterFile, source: Source) -> None:
        self.file = file
        self.source = source
        self.reasons: list[Reason] = []

    def cluster(self, hosts: tuple[Host, ...]) -> Reading:
        """The finished cluster and the reasons. Raises SpecError."""
        file, gpu = self.file, self._gpu()
        intra_node = self._link(file.intra_node) or self._usual_intra_node(gpu)
        nodes = self._nodes(hosts)
        used = hosts[:nodes]
        per_node = self._gpus_per_node(nodes, used, gpu, intra_node)
        inter_node = self._link(file.inter_node) or self._usual_inter_node(nodes, intra_node)
        shape = Machines(gpu, intra_node, nodes, per_node)
        domain = joined(file.nvlink_domain_size, self.source, shape)
        self.reasons += domain.reasons
        cluster = ClusterSpec(
            name=file.name,
            nodes=nodes,
            gpus_per_node=per_node,
            gpu=gpu,
            intra_node=intra_node,
            inter_node=inter_node,
            nics_per_node=file.nics_per_node or self._usual_nics(nodes, per_node, inter_node),
            nvlink_domain_nodes=domain.nodes,
            host_memory_bytes=self._host_memory_bytes(gpu, per_node),
            cpu_cores=file.cpu_cores or self._cpu_cores(per_node),
            hosts=tuple(host.narrowed(per_node) for host in used),
            interface=file.interface,
            ssh_user=file.ssh_user,
            ssh_port=file.ssh_port,
            slurm=self._slurm(),
            nvme=self._nvme(intra_node),
            gpu_hour_price=file.gpu_hour_price,
        )
        found, said = carded(cluster, file.measured)
        return found, (*self.reasons, *said)

    def _choose(self, rule: str, message: str) -> None:
        self.reasons.append(Reason(rule=rule, message=message))

    def _gpu(self) -> GpuSpec:
        """The card. Raises SpecError where none is named."""
        if self.file.gpu is None:
            hint = "`gpu:` in the cluster file or `--gpu`; `dsforge catalog gpus` lists them, "
            hint += "`dsforge detect --out cluster.yaml` describes this machine"
            raise refusal("gpu-missing", self.source.name, "`gpu` is missing", hint)
        if isinstance(self.file.gpu, GpuFile):
            return gpu_spec(self.file.gpu)
        return catalog.gpu(self.file.gpu)

    def _link(self, link: str | LinkFile | None) -> LinkSpec | None:
        if isinstance(link, LinkFile):
            return link_spec(link)
        return None if link is None else catalog.link(link)

    def _usual_intra_node(self, gpu: GpuSpec) -> LinkSpec:
        link = catalog.default_intra_node(gpu)
        self._choose(
            "default-intra-node", f"`intra_node` is {link.name}, the default for {gpu.name}"
        )
        return link

    def _usual_inter_node(self, nodes: int, intra_node: LinkSpec) -> LinkSpec:
        """The least network that such nodes have."""
        name = FABRIC_INTER_NODE if intra_node.is_fabric else PLAIN_INTER_NODE
        if nodes > 1:
            message = f"`inter_node` is {name}, the minimum for such nodes; set yours"
            self._choose("default-inter-node", message)
        return catalog.link(name)

    def _usual_nics(self, nodes: int, per_node: int, link: LinkSpec) -> int:
        """One adapter: many a node of eight cards has as many, but none has fewer."""
        if nodes > 1 and per_node > 1:
            message = f"`nics_per_node` is 1: the {per_node} GPUs of a node share one {link.name}; "
            message += "`--nics-per-node` sets it"
            self._choose("default-nics", message)
        return 1

    def _nodes(self, hosts: tuple[Host, ...]) -> int:
        """Machines that the job uses. Raises SpecError where more are asked for than listed."""
        nodes = self.file.nodes
        if nodes is None:
            if not hosts:
                self._choose("default-nodes", "`nodes` is 1: neither a number nor hosts were given")
            return max(1, len(hosts))
        if hosts and nodes > len(hosts):
            place = self.source.place(("nodes",))
            message = (
                f"`nodes` (={nodes}) must not exceed the hosts that are listed (={len(hosts)})"
            )
            raise refusal("nodes-beyond-hosts", place, message, "list them, or use fewer nodes")
        if hosts and nodes < len(hosts):
            idle = ", ".join(host.address for host in hosts[nodes:][:4])
            some_hosts = f"{len(hosts) - nodes} of {len(hosts)} listed hosts"
            message = f"{some_hosts} will be idle ({idle})"
            self._choose("idle-hosts", message)
        return nodes

    def _gpus_per_node(
        self, nodes: int, hosts: tuple[Host, ...], gpu: GpuSpec, link: LinkSpec
    ) -> int:
        """Accelerators used on each node: what the weakest host has."""
        wanted = self.file.gpus_per_node
        if not hosts:
            return wanted or self._usual_gpus_per_node(nodes, gpu, link)
        weakest = min(hosts, key=lambda host: host.slots)
        if wanted is not None and wanted > weakest.slots:
            place = self.source.place(("gpus_per_node",))
            message = f"`gpus_per_node` (={wanted}) must not exceed the slots of {weakest.address}"
            message += f" (={weakest.slots})"
            raise refusal("gpus-beyond-slots", place, message, f"use {weakest.slots} or fewer")
        per_node = wanted or weakest.slots
        total = sum(host.slots for host in hosts)
        idle = total - per_node * nodes
        if idle:
            why = "as asked" if wanted else f"limited by {weakest.address}"
            message = f"{per_node} GPUs on each node, {why}: {idle} of {total} GPUs "
            message += f"({idle / total:.0%} of the compute) stay idle, because all nodes run "
            "the same number of ranks"
            self._choose("weakest-host", message)
        return per_node

    def _usual_gpus_per_node(self, nodes: int, gpu: GpuSpec, link: LinkSpec) -> int:
        many, rack = nodes > 1 and link.is_fabric, catalog.nvlink_domain(gpu)
        usual = rack.gpus_per_node if rack else FABRIC_GPUS_PER_NODE
        per_node = usual if many else 1
        message = f"`gpus_per_node` is {per_node}: neither a number nor hosts were given"
        self._choose("default-gpus-per-node", message)
        return per_node

    def _host_memory_bytes(self, gpu: GpuSpec, per_node: int) -> int:
        """RAM of one node: as given, or twice the memory of its GPUs, at least 64 GiB."""
        if self.file.host_memory_gib is not None:
            return max(1, round(self.file.host_memory_gib * GIB))
        value, why = per_node * gpu.memory_bytes, "the memory of its CPU ranks"
        shared_gib = catalog.shared_host_gib(gpu)
        if shared_gib is not None:
            value, why = (
                round(shared_gib * GIB),
                f"the part of the shared memory that {gpu.name} does not use",
            )
        elif not gpu.is_cpu:
            value = max(LEAST_HOST_BYTES, HOST_BYTES_PER_GPU_BYTE * value)
            why = "twice the memory of its GPUs and at least 64 GiB; `--host-memory` sets it"
        self._choose(
            "default-host-memory", f"each node is assumed to have {gib(value)} of RAM: {why}"
        )
        return value

    def _cpu_cores(self, per_node: int) -> int:
        cores = CORES_PER_GPU * per_node
        self._choose("default-cpu-cores", f"`cpu_cores` is {cores}, {CORES_PER_GPU} for each GPU")
        return cores

    def _nvme(self, intra_node: LinkSpec) -> NvmeSpec | None:
        disk, usual = self.file.nvme, usual_disk(intra_node)
        if disk is None:
            return None
        size = usual.size_bytes if disk.size_gib is None else max(1, round(disk.size_gib * GIB))
        read = disk.read_gb_s or usual.read_bytes_per_s / GBPS
        write = disk.write_gb_s or usual.write_bytes_per_s / GBPS
        if None in (disk.size_gib, disk.read_gb_s, disk.write_gb_s):
            message = f"the disk at {disk.path} is taken to have {gib(size)} free, to read "
            message += f"{read:g} GB/s and to write {write:g}; `nvme` in the cluster file sets "
            message += "these values"
            self._choose("default-nvme", message)
        return NvmeSpec(
            path=disk.path,
            size_bytes=size,
            read_bytes_per_s=read * GBPS,
            write_bytes_per_s=write * GBPS,
        )

    def _slurm(self) -> SlurmSpec | None:
        given = self.file.slurm
        return None if given is None else SlurmSpec(**given.model_dump())
