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

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from dsforge.errors import DsforgeError, SpecError, first_line
from dsforge.job import TrainJob
from dsforge.train.data.packing import check_takes_positions
from dsforge.train.model.adapters import with_adapters
from dsforge.train.model.qlora import (
    checkpoint_layers,
    loading_options,
    quantisation_problems,
    quantises,
    shard,
)
from dsforge.train.model.source import ModelSource, class_of, model_source, read_configuration
from dsforge.train.parallel.engine_config import EngineConfig
from dsforge.train.parallel.low_bit_optimizer import optimizer_problems
from dsforge.train.parallel.modes import check_model


def check_source(job: TrainJob, folder: Path, config: EngineConfig) -> None:
    """Read the configuration only. Raises DsforgeError where it does not suit the job."""
    source = model_source(job.model, folder)
    quantising = quantisation_problems(job, config, gguf=source.gguf_file is not None)
    quantising += optimizer_problems(job.optimizer_states, config)
    if quantising:
        raise SpecError(tuple(quantising))
    split = config.mode.layout.model_ranks > 1
    if source.gguf_file is None or job.packing or split:
        configuration = read_configuration(source, job)
        if job.packing:
            check_takes_positions(class_of(configuration))
        problems = check_model(
            config.mode,
            configuration,
            adapters=job.lora is not None,
            attention=job.attention,
            packing=job.packing,
            compiled=job.compile,
            zero_stage=config.zero_stage,
        )
        if problems:
            raise SpecError(tuple(problems))
    if source.name.endswith(".json") and not job.random_weights:
        hint = "set `random_weights: true`, or give a folder with weights"
        raise DsforgeError(f"`model` (={job.model}) is a config without weights", hint)


def build_model(job: TrainJob, folder: Path, config: EngineConfig) -> Any:
    """The causal language model of a job in its training precision, adapters included."""
    import torch

    source = model_source(job.model, folder)
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    options: dict[str, Any] = {
        "dtype": kinds[config.precision],
        "attn_implementation": job.attention,
    }
    if job.lora is not None and quantises(job):
        sharded = config.shards_parameters
        options |= loading_options(job.lora, options["dtype"], sharded=sharded)
    torch.manual_seed(job.seed)
    model = _weights(job, source, config, options)
    model.config.use_cache = False
    packed_shards = quantises(job) and config.shards_parameters
    if job.gradient_checkpointing:
        checkpoint_layers(model, packed_shards=packed_shards)
    if job.lora is None:
        return model
    model = with_adapters(model, job.lora)
    for settings in model.peft_config.values():
        settings.base_model_name_or_path = source.base  # peft takes the folder of a GGUF file
    if packed_shards:
        shard(model, config.settings)
    return model


def _weights(
    job: TrainJob, source: ModelSource, config: EngineConfig, options: dict[str, Any]
) -> Any:
    """The model with random or stored weights."""
    from transformers import AutoModelForCausalLM

    if job.random_weights:
        return AutoModelForCausalLM.from_config(read_configuration(source, job), **options)
    whole = source.gguf_file is not None or quantises(job)
    with nullcontext() if whole else _partitioned_loading(config):
        try:
            model = AutoModelForCausalLM.from_pretrained(source.name, **source.options, **options)
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


def _partitioned_loading(config: EngineConfig) -> AbstractContextManager[Any]:
    """The context in which transformers loads weights into ZeRO-3 partitions."""
    if not config.shards_parameters:
        return nullcontext()
    from transformers.integrations import HfDeepSpeedConfig, unset_hf_deepspeed_config

    class Loading(AbstractContextManager[Any]):
        """transformers holds the config by a weak reference only."""

        def __enter__(self) -> Any:
            self.config = HfDeepSpeedConfig(config.settings)
            return self.config

        def __exit__(self, *_: object) -> None:
            unset_hf_deepspeed_config()

    return Loading()


def compile_layers(model: Any) -> None:
    """Compile the decoder layers of a model in place, each at its first call."""
    from torch.nn import ModuleList

    depth = model.config.get_text_config().num_hidden_layers
    lists = (module for module in model.modules() if isinstance(module, ModuleList))
    layers = next((found for found in lists if len(found) == depth), ())
    for layer in layers:
        layer.compile()
