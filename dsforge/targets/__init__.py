"""Targets: programs beside dsforge that a plan is written for. `gen --for NAME` asks for one.

A new target is one module with a `TARGET`, its templates in `templates/for/NAME/`, its entry in
`TARGETS`, and a case in `tests/targets`.
"""

from __future__ import annotations

from collections.abc import Iterable

from dsforge.artifacts import Artifact
from dsforge.plan import Plan
from dsforge.render.engine import render_text, template_environment
from dsforge.targets import (
    accelerate,
    accelerate_fsdp,
    axolotl,
    colossalai,
    compose,
    deepspeed,
    device_map,
    gpt_neox,
    horovod,
    kubernetes,
    lightning,
    llama_factory,
    megatron_bridge,
    megatron_deepspeed,
    mpi,
    ms_swift,
    ray,
    sagemaker,
    skypilot,
    slurm,
    tensorflow,
    torchrun,
    torchtitan,
    torchtune,
    transformers,
    trl,
)
from dsforge.targets.target import FOLDER, Target, TargetFile
from dsforge.training_setup import setup_of

TARGETS: tuple[Target, ...] = (
    accelerate.TARGET,
    transformers.TARGET,
    accelerate_fsdp.FSDP2,
    accelerate_fsdp.FSDP1,
    trl.TARGET,
    axolotl.TARGET,
    llama_factory.TARGET,
    ms_swift.TARGET,
    torchtitan.TARGET,
    torchtune.TARGET,
    lightning.TARGET,
    megatron_deepspeed.TARGET,
    gpt_neox.TARGET,
    megatron_bridge.TARGET,
    colossalai.TARGET,
    device_map.TARGET,
    tensorflow.TARGET,
    deepspeed.NO_SSH,
    deepspeed.SLURM,
    mpi.OPENMPI,
    mpi.MPICH,
    mpi.INTEL,
    torchrun.TARGET,
    slurm.TARGET,
    kubernetes.KUBERNETES,
    kubernetes.TRAINER,
    kubernetes.PYTORCH,
    kubernetes.MPI,
    compose.TARGET,
    skypilot.TARGET,
    ray.TARGET,
    sagemaker.TARGET,
    horovod.TARGET,
)
BY_NAME: dict[str, Target] = {target.name: target for target in TARGETS}

__all__ = ["BY_NAME", "TARGETS", "Target", "files_for", "lost_in", "names_in"]


def files_for(plan: Plan, names: Iterable[str]) -> tuple[Artifact, ...]:
    """The files of some targets, for the run folder of a plan, by our templates."""
    return tuple(
        _artifact(name, file) for name in dict.fromkeys(names) for file in BY_NAME[name].files(plan)
    )


def _artifact(name: str, file: TargetFile) -> Artifact:
    path = f"{FOLDER}/{name}/{file.name}"
    template = f"{FOLDER}/{name}/{file.template or file.name}.j2"
    text = render_text(template_environment(), template, file.context)
    return Artifact(path, text, executable=file.executable)


def lost_in(plan: Plan, name: str) -> tuple[str, ...]:
    """What of a plan a target cannot express; empty: everything is there."""
    target = BY_NAME[name]
    return (*target.lost(setup_of(plan)), *target.unsaid.sentences)


def names_in(paths: Iterable[str]) -> tuple[str, ...]:
    """The targets whose files are among the paths of a run folder."""
    parts = [path.split("/") for path in paths]
    found = {part[1] for part in parts if part[0] == FOLDER and len(part) > 1}
    return tuple(name for name in BY_NAME if name in found)
