"""Where a model comes from: what `model` in train.yaml names, its config and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsforge import catalog
from dsforge.errors import DsforgeError, first_line
from dsforge.job import TrainJob


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from: `name` for transformers, and a GGUF file or catalog row."""

    name: str
    gguf_file: str | None = None
    in_catalog: bool = False

    @property
    def base(self) -> str:
        """What `model_source` finds this source by again from any folder: an id or a whole path."""
        path = Path(self.name) / (self.gguf_file or "")
        return str(path.absolute()) if path.exists() else self.name

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
        raise DsforgeError(
            f"`model` (={name}) has no config.json", "give the folder that contains it"
        )
    if name.startswith((".", "/", "~")) or name.endswith((".gguf", ".json")):
        hint = "paths are relative to the folder of train.yaml"
        raise DsforgeError(f"`model` (={name}): {path} does not exist", hint)
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
        hint = "set `tokenizer:`, or put tokenizer.json into the folder of config.json"
        raise DsforgeError(f"no tokenizer for {name}: {first_line(error)}", hint) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def read_configuration(source: ModelSource, job: TrainJob) -> Any:
    """The transformers configuration. Raises DsforgeError."""
    from transformers import AutoConfig

    try:
        if source.in_catalog and job.random_weights:
            return AutoConfig.for_model(**_catalog_config(job.model))
        return AutoConfig.from_pretrained(source.name, **source.options)
    except (OSError, ValueError, KeyError) as error:
        hint = "give a folder, a GGUF file, a config.json, or a hub id that is cached or reachable"
        message = f"cannot read `model` (={job.model}): {first_line(error)}"
        raise DsforgeError(message, hint) from error


def attends(configuration: Any) -> bool:
    """Whether a model has attention: Mamba has none, and takes no kernel for it."""
    return hasattr(configuration.get_text_config(), "num_attention_heads")


def has_two_sides(configuration: Any) -> bool:
    """Whether a model has an encoder and a decoder."""
    return bool(getattr(configuration, "is_encoder_decoder", False))


def auto_class(configuration: Any) -> Any:
    """The class of transformers that builds or loads the language model of a configuration."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    return AutoModelForSeq2SeqLM if has_two_sides(configuration) else AutoModelForCausalLM


def class_of(configuration: Any) -> Any:
    """The class of the causal language model of a configuration. Raises DsforgeError."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(configuration)]
    except KeyError as error:
        message = f"transformers has no causal language model of type {configuration.model_type}"
        raise DsforgeError(message, "use another `model`") from error


def _catalog_config(name: str) -> dict[str, Any]:
    """The config.json of a catalog row."""
    from dsforge.huggingface import config_from_model

    return config_from_model(catalog.model(name))


def model_shapes(model: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of a model folder or config.json, tied ones once.

    The model is built without memory for its weights. Raises DsforgeError where it cannot be.
    """
    import torch
    from transformers import AutoConfig

    source = model_source(model, Path.cwd())
    try:
        config = AutoConfig.from_pretrained(source.name, **source.options)
        with torch.device("meta"):
            network = auto_class(config).from_config(config)
    except (OSError, ValueError, KeyError) as error:
        first = first_line(error)
        raise DsforgeError(f"no model can be built from {model}: {first}") from error
    return {name: tuple(p.shape) for name, p in network.named_parameters()}
