"""Kubernetes: a plain Job, Kubeflow's TrainJob and PyTorchJob, and MPIJob.

All but MPIJob need no ssh: each pod starts its ranks with `launch/torchrun.sh`, and finds the first
one by the name of a headless service, which operators make themselves.
"""

from __future__ import annotations

from typing import NamedTuple

from dsforge.plan import Plan
from dsforge.render.environment import environment_variables
from dsforge.specs import ClusterSpec
from dsforge.targets.node_script import (
    NodeContext,
    host_memory_gib,
    job_name,
    refuse_selected,
    shared_memory_gib,
)
from dsforge.targets.target import Target, TargetFile
from dsforge.training_setup import TrainingSetup

FOLDER = "/work/run"  # where the volume with the run folder is mounted
GRACE_S = 660  # after SIGTERM: the ranks have DSFORGE_GRACE_S, 600 s, and then a minute to end
RESTARTS = 3  # of the whole job by Kubernetes; each resumes from the newest checkpoint
# Resources of device plugins, by the library of the collectives.
DEVICES = {"NCCL": "nvidia.com/gpu", "RCCL": "amd.com/gpu", "HCCL": "habana.ai/gaudi"}
# The examples of k8snetworkplumbingwg/k8s-rdma-shared-dev-plugin and of aws/eks-charts.
RDMA, EFA = "rdma/rdma_shared_device_a", "vpc.amazonaws.com/efa"


class Pod(NamedTuple):
    """The pod of one node."""

    image: str
    folder: str
    grace_s: int
    device: str | None  # resource of the accelerators; none: CPU ranks
    device_count: str
    network: str | None  # resource of the RDMA adapters
    adapter_count: str
    memory: str  # as `120Gi`
    shared_memory: str


class KubernetesContext(NamedTuple):
    """Fields of the manifests."""

    name: str
    nodes: int
    multi_node: bool
    others: int  # nodes beside the first
    slots: int
    slots_text: str
    restarts: int
    pod: Pod
    mpirun: tuple[str, ...]  # command of a launcher pod
    start: tuple[str, ...]  # command of a rank


def _network(cluster: ClusterSpec) -> tuple[str | None, int]:
    """The resource of the adapters, and how many a pod asks for."""
    link = cluster.inter_node
    if cluster.nodes == 1:
        return None, 0
    if link.name.startswith("efa"):
        return EFA, cluster.nics_per_node
    return (RDMA, 1) if link.kind == "infiniband" else (None, 0)


def _context(plan: Plan) -> KubernetesContext:
    """What the manifests say. Raises RenderError where the job may use chosen devices only."""
    refuse_selected(plan, "Kubernetes")
    cluster = plan.cluster
    network, adapters = _network(cluster)
    pod = Pod(
        image="dsforge:latest",
        folder=FOLDER,
        grace_s=GRACE_S,
        device=DEVICES.get(cluster.gpu.collectives),
        device_count=str(cluster.gpus_per_node),
        network=network,
        adapter_count=str(adapters),
        memory=f"{host_memory_gib(plan)}Gi",
        shared_memory=f"{shared_memory_gib(plan)}Gi",
    )
    return KubernetesContext(
        name=job_name(plan),
        nodes=cluster.nodes,
        multi_node=cluster.nodes > 1,
        others=cluster.nodes - 1,
        slots=cluster.gpus_per_node,
        slots_text=str(cluster.gpus_per_node),
        restarts=RESTARTS,
        pod=pod,
        mpirun=_mpirun(plan),
        start=("python", "-u", "-m", "dsforge.train", "train.yaml"),
    )


def _mpirun(plan: Plan) -> tuple[str, ...]:
    """Mpirun on the worker pods, which get the environment of the run."""
    name, ranks = job_name(plan), plan.cluster.gpus
    exported = {"MASTER_ADDR": f"{name}-worker-0.{name}", "MASTER_PORT": "29500"}
    exported |= {variable.name: variable.value for variable in environment_variables(plan)}
    words = [word for pair in exported.items() for word in ("-x", "=".join(pair))]
    first = ("mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", str(ranks))
    return (*first, "--wdir", FOLDER, "-x", "PATH", *words)


def _job(plan: Plan) -> tuple[TargetFile, ...]:
    """A headless service and an indexed Job."""
    return (
        TargetFile("job.yaml", _context(plan)),
        TargetFile("node.sh", _context(plan), executable=True),
    )


def _with_operator(plan: Plan) -> tuple[TargetFile, ...]:
    """The job of an operator that sets torchrun's PET variables."""
    return (
        TargetFile("job.yaml", _context(plan)),
        TargetFile("node.sh", NodeContext(), executable=True),
    )


def _mpi(plan: Plan) -> tuple[TargetFile, ...]:
    """A launcher with mpirun, and workers with sshd."""
    return (TargetFile("job.yaml", _context(plan)),)


def _lost(_: TrainingSetup) -> tuple[str, ...]:
    """Nothing: the ranks are those of the plan."""
    return ()


KUBERNETES = Target(
    name="kubernetes",
    label="Kubernetes",
    kind="launcher",
    summary="headless Service and indexed Job, without an operator",
    files=_job,
    lost=_lost,
    starts="any engine",
    source="Kubernetes batch/v1 Job, completionMode Indexed",
    proof="parsed by its own code",
    proved_by="tests/targets/test_kubernetes.py: models of the Kubernetes client; "
    "tests/launch/test_targets_nodes.py starts node.sh with the variables of two pods",
)
PYTORCH = Target(
    name="pytorchjob",
    label="Kubeflow PyTorchJob",
    kind="launcher",
    summary="PyTorchJob of the training operator (v1)",
    files=_with_operator,
    lost=_lost,
    starts="any engine",
    source="kubeflow.org/v1 PyTorchJob; training-operator pkg/controller.v1/pytorch/envvar.go",
    proof="parsed by its own code",
    proved_by="tests/targets/test_kubernetes.py: models of kubeflow-training; "
    "tests/launch/test_targets_nodes.py starts node.sh with the variables of two pods",
)
TRAINER = Target(
    name="kubeflow-trainer",
    label="Kubeflow Trainer (v2)",
    kind="launcher",
    summary="TrainJob and its TrainingRuntime",
    files=_with_operator,
    lost=_lost,
    starts="any engine",
    source="trainer.kubeflow.org/v1alpha1; trainer pkg/runtime/framework/plugins/torch",
    proof="parsed by its own code",
    proved_by="tests/targets/test_kubernetes.py: models of kubeflow-trainer-api; "
    "tests/launch/test_targets_nodes.py starts node.sh with the variables of two pods",
)
MPI = Target(
    name="mpijob",
    label="MPIJob",
    kind="launcher",
    summary="MPIJob of the MPI operator (v2beta1) with Open MPI",
    files=_mpi,
    lost=_lost,
    starts="any engine",
    source="kubeflow.org/v2beta1 MPIJob",
    proof="published schema",
    proved_by="tests/targets/test_kubernetes.py: fields of the published definition, pods by the "
    "models of the Kubernetes client",
)
