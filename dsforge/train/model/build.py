"""The model of a run: loaded or random, with adapters, compiled; and whether it suits the job.

Weights go straight into their ZeRO-3 partitions where transformers can do that (folders and hub
ids), so no rank ever holds the whole model. GGUF files and random weights are built whole in host
memory first: the one is dequantised as a whole, the other must not depend on the ZeRO stage. So are
quantised models (`qlora.py`).

torch.compile takes the decoder layers, not the model: the output layer, which gives the loss, and
DeepSpeed's hooks stay outside, and compiling takes as long for 80 layers as for 2. Each new shape
is compiled again, for up to a minute: batches are padded to the sequence length.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dsforge.constraints import Case, ModelShape
from dsforge.constraints.inputs import encoder_decoder
from dsforge.constraints.preference import preference_mode, preference_packing
from dsforge.errors import DsforgeError, Problem, SpecError, first_line
from dsforge.job import TrainJob
from dsforge.train.data.packing import check_takes_positions
from dsforge.train.engines.registry import adapter_of
from dsforge.train.model.adapters import with_adapters
from dsforge.train.model.checkpointing import (
    checkpoint_layers,
    checkpointing_problems,
    tile_mlps,
)
from dsforge.train.model.qlora import loading_options, quantises, shard
from dsforge.train.model.source import (
    ModelSource,
    attends,
    auto_class,
    class_of,
    has_two_sides,
    model_source,
    read_configuration,
)
from dsforge.train.model.trained_state import keep_trained_state_only
from dsforge.train.parallel.engine_config import EngineConfig


def check_source(job: TrainJob, folder: Path, config: EngineConfig) -> bool:
    """Whether the model has an encoder and a decoder; its configuration alone is read.

    Raises DsforgeError where it does not suit the job.
    """
    source = model_source(job.model, folder)
    adapter = adapter_of(job)
    found = adapter.job_problems(job, config, source.gguf_file is not None)
    found += preference_problems(job, config) + checkpointing_problems(job)
    if found:
        raise SpecError(tuple(found))
    split = config.mode.layout.model_ranks > 1
    two_sides = False
    if source.gguf_file is None or job.packing or split:
        configuration = read_configuration(source, job)
        two_sides = has_two_sides(configuration)
        if two_sides:
            found = sides_problems(job, config, configuration.model_type)
            if found:
                raise SpecError(tuple(found))
        if job.packing:
            check_takes_positions(class_of(configuration))
        problems = adapter.model_problems(job, config, configuration)
        if problems:
            raise SpecError(tuple(problems))
    if source.name.endswith(".json") and not job.random_weights:
        hint = "set `random_weights: true`, or give a folder with weights"
        raise DsforgeError(f"`model` (={job.model}) is a config without weights", hint)
    return two_sides


def sides_problems(job: TrainJob, config: EngineConfig, kind: str) -> list[Problem]:
    """What an encoder-decoder model of a kind does not go with; empty where it can be trained."""
    layout = config.mode.layout
    case = Case(
        packing=job.packing,
        compiled=job.compile,
        preference=None if job.preference is None else job.preference.kind,
        adapters=job.lora is not None,
        trainer=None if job.torch is None else "fsdp",
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        context_parallel_size=layout.context_parallel_size,
        shape=ModelShape(model_type=kind, two_halves=True),
    )
    found = encoder_decoder(case)
    return [] if found is None else [found]


def preference_problems(job: TrainJob, config: EngineConfig) -> list[Problem]:
    """Why a job cannot train on preferences; empty where it can or does not ask for it."""
    if job.preference is None:
        return []
    layout = config.mode.layout
    case = Case(
        preference=job.preference.kind,
        packing=job.packing,
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        context_parallel_size=layout.context_parallel_size,
    )
    problems = [preference_mode(case), preference_packing(case)]
    if job.data.shape != "auto":
        message = f"`data.shape` (={job.data.shape}) cannot be combined with `preference`"
        problems.append(Problem("preference-shape", message, "leave it out"))
    if job.preference.reference == "adapters_off" and job.lora is None:
        message = "`preference.reference` (=adapters_off) requires `lora`"
        problems.append(Problem("preference-reference", message, "use precomputed"))
    return [problem for problem in problems if problem is not None]


def build_model(job: TrainJob, folder: Path, config: EngineConfig) -> Any:
    """The causal language model of a job in its training precision, adapters included."""
    import torch

    source = model_source(job.model, folder)
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    options: dict[str, Any] = {
        "dtype": kinds["fp32" if config.weights_in_fp32 else config.precision],
        "attn_implementation": job.attention,
    }
    if source.gguf_file is None and not attends(read_configuration(source, job)):
        del options["attn_implementation"]
    if job.lora is not None and quantises(job):
        sharded = config.shards_parameters
        options |= loading_options(job.lora, options["dtype"], sharded=sharded)
    torch.manual_seed(job.seed)
    model = _weights(job, source, config, options)
    model.config.use_cache = False
    packed_shards = quantises(job) and config.shards_parameters
    if job.gradient_checkpointing:
        checkpoint_layers(model, packed_shards=packed_shards, in_ram=job.offload_activations)
    if job.tiled_mlp:
        tile_mlps(model, shards=config.shards_parameters)
    if job.lora is None:
        return model
    torch.manual_seed(
        job.seed + 1
    )  # some models draw numbers while they are built, ZeRO-3's others
    model = with_adapters(model, job.lora)
    if not job.random_weights:  # no file has those
        keep_trained_state_only(model, source)
    for settings in model.peft_config.values():
        settings.base_model_name_or_path = source.base  # peft takes the folder of a GGUF file
    if packed_shards:
        shard(model, config.settings)
    return model


def _weights(
    job: TrainJob, source: ModelSource, config: EngineConfig, options: dict[str, Any]
) -> Any:
    """The model with random or stored weights."""
    import torch
    from transformers import AutoModelForCausalLM

    kind = AutoModelForCausalLM
    if source.gguf_file is None:
        kind = auto_class(read_configuration(source, job))
    if not adapter_of(job).loads_weights(config):
        with torch.device("meta"):
            return kind.from_config(read_configuration(source, job), **options)
    if job.random_weights:
        return kind.from_config(read_configuration(source, job), **options)
    whole = source.gguf_file is not None or quantises(job)
    with nullcontext() if whole else adapter_of(job).loading(config):
        try:
            model = kind.from_pretrained(source.name, **source.options, **options)
        except (OSError, ValueError) as error:
            hint = "give a folder, a GGUF file, or a hub id that is cached or reachable"
            message = f"cannot load `model` (={job.model}): {first_line(error)}"
            raise DsforgeError(message, hint) from error
    return _as_plain(model) if source.gguf_file else model


def _as_plain(model: Any) -> Any:
    """A model from a GGUF file without its quantization marker: the weights are dequantised."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def compile_layers(model: Any) -> None:
    """Compile the decoder layers of a model in place, each at its first call."""
    from torch.nn import ModuleList

    depth = model.config.get_text_config().num_hidden_layers
    lists = (module for module in model.modules() if isinstance(module, ModuleList))
    layers = next((found for found in lists if len(found) == depth), ())
    for layer in layers:
        layer.compile()
