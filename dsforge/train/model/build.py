"""The model and its tokenizer, from whatever `model` in train.yaml names.

Weights go straight into their ZeRO-3 partitions where transformers can do that (folders and hub
ids), so no rank ever holds the whole model. GGUF files and random weights are built whole in host
memory first: the one is dequantised as a whole, the other must not depend on the ZeRO stage.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsforge import catalog
from dsforge.errors import DsforgeError, SpecError, first_line
from dsforge.job import TrainJob
from dsforge.specs import LoraSpec
from dsforge.train.data.packing import check_takes_positions
from dsforge.train.model.compiling import check_compile
from dsforge.train.model.qlora import (
    asks_for_4_bits,
    is_in_4_bits,
    keep_trained_state_only,
    loading_options,
    quantisation_problems,
)
from dsforge.train.parallel.engine_config import EngineConfig
from dsforge.train.parallel.modes import check_model


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from: `name` for transformers, and a GGUF file or catalog row."""

    name: str
    gguf_file: str | None = None
    in_catalog: bool = False

    @property
    def options(self) -> dict[str, str]:
        """What `from_pretrained` needs beside the name."""
        return {"gguf_file": self.gguf_file} if self.gguf_file else {}


def model_source(name: str, folder: Path) -> ModelSource:
    """The source that a name means, seen from `folder`. Raises DsforgeError for missing files."""
    path = folder / Path(name).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return ModelSource(str(path.parent), gguf_file=path.name)
    if path.is_file() and path.suffix == ".json":
        return ModelSource(str(path))
    if path.is_dir():
        if (path / "config.json").is_file():
            return ModelSource(str(path))
        raise DsforgeError(f"`model` (={name}) has no config.json", "name the folder that has one")
    if name.startswith((".", "/", "~")) or name.endswith((".gguf", ".json")):
        hint = "paths are relative to the folder of train.yaml"
        raise DsforgeError(f"`model` (={name}): there is no {path}", hint)
    named = catalog.named_model(name)
    if named is None:
        return ModelSource(name)
    return ModelSource(named.hub_id or name, in_catalog=named.own_row)


def load_tokenizer(job: TrainJob, folder: Path) -> Any:
    """The tokenizer of the model, with a padding token. Raises DsforgeError."""
    from transformers import AutoTokenizer

    source = model_source(job.tokenizer or job.model, folder)
    name = str(Path(source.name).parent) if source.name.endswith(".json") else source.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **source.options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        hint = "name one with `tokenizer:`, or place tokenizer.json beside config.json"
        raise DsforgeError(f"no tokenizer for {name}: {first_line(error)}", hint) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_source(job: TrainJob, folder: Path, config: EngineConfig) -> None:
    """Read the configuration only. Raises DsforgeError where it does not do for the job."""
    source = model_source(job.model, folder)
    quantising = quantisation_problems(job, config, gguf=source.gguf_file is not None)
    if quantising:
        raise SpecError(tuple(quantising))
    split = config.mode.layout.model_ranks > 1
    if source.gguf_file is None or job.packing or split:
        configuration = _configuration(source, job)
        if job.packing:
            check_takes_positions(_class_of(configuration))
        problems = check_model(
            config.mode,
            configuration,
            adapters=job.lora is not None,
            attention=job.attention,
            packing=job.packing,
        )
        problems += check_compile(job, config)
        if problems:
            raise SpecError(tuple(problems))
    if source.name.endswith(".json") and not job.random_weights:
        hint = "set `random_weights: true`, or name a folder with weights"
        raise DsforgeError(f"`model` (={job.model}) is a bare config without weights", hint)


def build_model(job: TrainJob, folder: Path, config: EngineConfig) -> Any:
    """The causal language model of a job in its training precision, adapters included."""
    import torch

    source = model_source(job.model, folder)
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    options: dict[str, Any] = {
        "dtype": kinds[config.precision],
        "attn_implementation": job.attention,
    }
    if asks_for_4_bits(job):
        options |= loading_options(options["dtype"])
    torch.manual_seed(job.seed)
    model = _weights(job, source, config, options)
    model.config.use_cache = False
    if job.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model if job.lora is None else with_adapters(model, job.lora)


def _weights(
    job: TrainJob, source: ModelSource, config: EngineConfig, options: dict[str, Any]
) -> Any:
    """The model with random or stored weights."""
    from transformers import AutoModelForCausalLM

    if job.random_weights:
        return AutoModelForCausalLM.from_config(_configuration(source, job), **options)
    with _partitioned_loading(config, source):
        try:
            model = AutoModelForCausalLM.from_pretrained(source.name, **source.options, **options)
        except (OSError, ValueError) as error:
            hint = "name a folder, a GGUF file, or a hub id that is cached or reachable"
            message = f"cannot load `model` (={job.model}): {first_line(error)}"
            raise DsforgeError(message, hint) from error
    return _as_plain(model) if source.gguf_file else model


def _as_plain(model: Any) -> Any:
    """A model from a GGUF file without the mark that says it is quantised: its weights are not."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def _partitioned_loading(config: EngineConfig, source: ModelSource) -> AbstractContextManager[Any]:
    """The context in which transformers loads weights into ZeRO-3 partitions."""
    if not config.shards_parameters or source.gguf_file:
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


def _configuration(source: ModelSource, job: TrainJob) -> Any:
    """The transformers configuration. Raises DsforgeError."""
    from transformers import AutoConfig

    try:
        if source.in_catalog and job.random_weights:
            return AutoConfig.for_model(**_catalog_config(job.model))
        return AutoConfig.from_pretrained(source.name, **source.options)
    except (OSError, ValueError, KeyError) as error:
        hint = "name a folder, a GGUF file, a config.json, or a hub id that is cached or reachable"
        message = f"cannot read `model` (={job.model}): {first_line(error)}"
        raise DsforgeError(message, hint) from error


def _class_of(configuration: Any) -> Any:
    """The class of the causal language model of a configuration. Raises DsforgeError."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(configuration)]
    except KeyError as error:
        message = f"transformers has no causal language model of type {configuration.model_type}"
        raise DsforgeError(message, "name another `model`") from error


def _catalog_config(name: str) -> dict[str, Any]:
    """The config.json of a catalog row."""
    from dsforge.huggingface import config_from_model

    return config_from_model(catalog.model(name))


def with_adapters(model: Any, lora: LoraSpec) -> Any:
    """The model with low-rank adapters on every matrix of attention and MLP; the rest frozen."""
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, adapters)
    if is_in_4_bits(model):
        keep_trained_state_only(adapted)
    return adapted
