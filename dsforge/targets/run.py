"""What the files of every trainer say: the plan in the words of TrainingSetup, and its run.

A file of settings is a tuple of options; its template decides where they stand and what is said
around them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from dsforge.constraints import Case, broken
from dsforge.job import TrainJob
from dsforge.plan import Plan, is_tuned
from dsforge.render.bundles import bundles
from dsforge.render.deepspeed import (
    ADAM_BETAS,
    ADAM_EPSILON,
    zero_context,
    zero_template,
)
from dsforge.render.engine import render_text, template_environment
from dsforge.render.job import train_job, weights
from dsforge.render.launch import Script, script_context
from dsforge.specs import AdapterTarget, LoraSpec, Workload
from dsforge.strategy import Strategy
from dsforge.targets.target import FOLDER, TargetFile
from dsforge.training_setup import TrainingSetup, setup_of

UP = "../../"  # from the folder of a target to the run folder
# Of a ds_config: what a program that splits a model by itself says elsewhere.
LAYOUT_KEYS = ("tensor_parallel", "sequence_parallel_size", "pipeline")
# Modules of transformers' Llama and its kin, by what their matrices do.
MODULES: dict[AdapterTarget, str] = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "o_proj",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
}
SAVED = {"embedding": "embed_tokens", "head": "lm_head"}


class Option(NamedTuple):
    """A setting of a program, by its own name; its value as JSON has it."""

    key: str
    value: Any


class OptionsContext(NamedTuple):
    """Fields of a template that lists settings."""

    options: tuple[Option, ...]
    placeholder_data: bool = False
    placeholder_model: bool = False


class StartContext(NamedTuple):
    """Fields of run.sh.j2: what starts the ranks of one node."""

    script: Script
    needs_steps: bool = False
    continues: bool = False  # the plan starts from trained weights
    model: str = ""  # hub id or folder


class TextContext(NamedTuple):
    """Field of a template around a finished text."""

    text: str


class Run(NamedTuple):
    """A plan as writers for trainers see it."""

    plan: Plan
    setup: TrainingSetup
    job: TrainJob

    @property
    def workload(self) -> Workload:
        """What is trained."""
        return self.plan.workload

    @property
    def strategy(self) -> Strategy:
        """The decision."""
        return self.plan.strategy

    @property
    def lora(self) -> LoraSpec | None:
        """The adapters; none: all weights train."""
        return self.workload.lora if self.workload.method == "lora" else None

    @property
    def continues(self) -> bool:
        """Whether the plan starts from trained weights, as its learning rate does.

        A token budget without rows, epochs or adapters is training from scratch.
        """
        work = self.workload
        tuned = self.lora or work.data or work.epochs or is_tuned(self.plan.model)
        return not self.job.random_weights and (work.tokens is None or bool(tuned))

    @property
    def folder(self) -> str:
        """Folder of the files of the program, from the run folder."""
        return f"{FOLDER}/{self.strategy.runs_as.program}"

    @property
    def ranks(self) -> int:
        """Ranks of the run."""
        return self.plan.cluster.gpus

    @property
    def on_deepspeed(self) -> bool:
        """Whether DeepSpeed's engine trains."""
        return self.strategy.engine.has_zero_stages

    @property
    def data(self) -> str:
        """The file of the samples."""
        return self.job.data.train

    @property
    def data_format(self) -> str:
        """The format of that file, by the name that `datasets` has for it."""
        return "parquet" if self.data.endswith(".parquet") else "json"

    @property
    def places(self) -> tuple[bool, bool]:
        """Whether data, and model, are placeholders that a person must replace."""
        model = self.plan.model
        named = weights(model) or model.path or model.family
        return self.workload.data is None, not named

    def listed(self, options: Iterable[Option]) -> OptionsContext:
        """The context of a template that lists settings."""
        return OptionsContext(tuple(options), *self.places)

    @property
    def script(self) -> Script:
        """What a launch script knows of the cluster."""
        return script_context(self.plan.cluster, bundles(self.plan)[0]).script

    def started(self, *, needs_steps: bool = False) -> TargetFile:
        """`run.sh` of the target."""
        context = StartContext(self.script, needs_steps, self.continues, self.job.model)
        return TargetFile("run.sh", context, executable=True)


def run_of(plan: Plan) -> Run:
    """The plan as writers for trainers see it."""
    return Run(plan, setup_of(plan), train_job(plan, plan.strategy))


def from_target(path: str) -> str:
    """A path of the run folder, seen from the folder of a target."""
    return path if path.startswith(("/", "~")) else f"{UP}{path}"


def adapted_modules(lora: LoraSpec) -> tuple[str, ...]:
    """Modules of transformers that carry adapters."""
    return tuple(MODULES[target] for target in lora.targets)


def saved_modules(lora: LoraSpec) -> tuple[str, ...]:
    """Modules of transformers that train as a whole beside the adapters."""
    return tuple(SAVED[name] for name in lora.modules_to_save)


def adam_values() -> tuple[Option, ...]:
    """Adam's constants, as every ds_config of dsforge has them."""
    return (
        Option("adam_beta1", ADAM_BETAS[0]),
        Option("adam_beta2", ADAM_BETAS[1]),
        Option("adam_epsilon", ADAM_EPSILON),
    )


def ds_config(plan: Plan, *, optimizer: bool = True) -> str:
    """The ds_config of the choice; without its optimizer where the program brings one.

    Programs on transformers get no `train_batch_size`: DeepSpeed multiplies the other sizes, and
    would refuse it where weights are loaded before the ranks know each other (`zero.Init`).
    """
    made = template_environment()
    text = render_text(made, zero_template(plan.strategy), zero_context(plan, plan.choice))
    values = json.loads(text)
    dropped = ("train_batch_size",) if optimizer else ("optimizer", *LAYOUT_KEYS)
    if optimizer and plan.workload.optimizer_states is not None:
        dropped = (*dropped, "optimizer")
    for key in dropped:
        values.pop(key, None)
    if "optimizer" in dropped:
        values["zero_allow_untested_optimizer"] = True
    return json.dumps(values, indent=2) + "\n"


def beyond(program: str, setup: TrainingSetup) -> tuple[str, ...]:
    """What of a setup a program cannot express, with the nearest that it can."""
    case = Case(
        program=program,
        back_end="megatron" if setup.engine == "megatron" else "deepspeed",
        trainer=setup.engine,
        by_others=True,
        tensor_parallel_size=setup.tensor_parallel_size,
        pipeline_parallel_size=setup.pipeline_parallel_size,
        context_parallel_size=setup.context_parallel_size,
        expert_parallel_size=setup.expert_parallel_size,
        virtual_stages=setup.virtual_stages,
        zero_stage=setup.zero_stage,
        offload_optimizer=setup.offload_optimizer,
        offload_parameters=setup.offload_parameters,
        recompute=setup.recompute,
        offload_activations=setup.offload_activations,
        tiled_mlp=setup.tiled_mlp,
        precision=setup.precision,
        optimizer=setup.optimizer,
        adapters=setup.adapter != "none",
        base="nf4" if setup.adapter == "qlora" else None,
    )
    problems = [problem for problem in broken(case) if problem.rule.startswith("program-")]
    return tuple(f"{problem.message}: {problem.hint}" for problem in problems)
