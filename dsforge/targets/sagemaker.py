"""SageMaker: the input of `aws sagemaker create-training-job`, and what each container runs."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.errors import RenderError
from dsforge.plan import Plan
from dsforge.targets.node_script import NodeContext, job_name
from dsforge.targets.target import Target, TargetFile
from dsforge.training_setup import TrainingSetup

# Accelerators of one machine -> instance type (AWS, "Amazon EC2 accelerated computing instances").
INSTANCES = {
    ("a100-40gb", 8): "ml.p4d.24xlarge",
    ("a100-80gb", 8): "ml.p4de.24xlarge",
    ("a10g-24gb", 1): "ml.g5.xlarge",
    ("a10g-24gb", 4): "ml.g5.12xlarge",
    ("a10g-24gb", 8): "ml.g5.48xlarge",
    ("b200-180gb", 8): "ml.p6-b200.48xlarge",
    ("h100-80gb", 8): "ml.p5.48xlarge",
    ("h200-141gb", 8): "ml.p5en.48xlarge",
    ("l4-24gb", 1): "ml.g6.xlarge",
    ("l4-24gb", 4): "ml.g6.12xlarge",
    ("l4-24gb", 8): "ml.g6.48xlarge",
    ("l40s-48gb", 1): "ml.g6e.xlarge",
    ("l40s-48gb", 4): "ml.g6e.12xlarge",
    ("l40s-48gb", 8): "ml.g6e.48xlarge",
    ("v100-16gb", 8): "ml.p3.16xlarge",
    ("v100-32gb", 8): "ml.p3dn.24xlarge",
}
LONGEST_S = 432_000  # 5 days: the default limit of a training job (AWS, service quotas)
VOLUME_GIB = 500  # checkpoints go to S3; this holds the model, the data and one checkpoint


class SageMakerContext(NamedTuple):
    """Fields of for/sagemaker/training_job.json.j2."""

    name: str
    instance: str
    nodes: int
    volume_gib: int
    longest_s: int


def files(plan: Plan) -> tuple[TargetFile, ...]:
    """The job and the script of its containers. Raises RenderError without such an instance."""
    cluster = plan.cluster
    wanted = (cluster.gpu.name, cluster.gpus_per_node)
    if wanted not in INSTANCES:
        known = ", ".join(f"{count} x {card}" for card, count in INSTANCES)
        message = f"SageMaker has no instance with {cluster.gpus_per_node} x {cluster.gpu.name}"
        raise RenderError(message, f"plan for machines with one of {known}")
    on_disk = -(-int(plan.choice.memory.checkpoint_bytes) // 2**30)
    context = SageMakerContext(
        name=job_name(plan),
        instance=INSTANCES[wanted],
        nodes=cluster.nodes,
        volume_gib=VOLUME_GIB + 2 * on_disk,
        longest_s=LONGEST_S,
    )
    return (
        TargetFile("training_job.json", context),
        TargetFile("node.sh", NodeContext(), executable=True),
    )


def lost(_: TrainingSetup) -> tuple[str, ...]:
    """The hosts: SageMaker starts machines of its own."""
    return ("the hosts of the hostfile: SageMaker starts instances of its own",)


TARGET = Target(
    name="sagemaker",
    label="Amazon SageMaker",
    kind="launcher",
    summary="input of `aws sagemaker create-training-job`",
    files=files,
    lost=lost,
    starts="any engine",
    source="botocore data/sagemaker/2017-07-24, CreateTrainingJobRequest",
    proof="parsed by its own code",
    proved_by="tests/targets/test_target_schemas.py: botocore's check of the request; "
    "tests/launch/test_targets_nodes.py starts node.sh with the files of two hosts",
)
