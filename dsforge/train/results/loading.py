"""How trained weights are loaded: code for transformers and peft, a command for vLLM.

The code runs as it stands in the folder of the weights, and the tests run it.
"""

from __future__ import annotations

import json
import shlex

from dsforge.checkpoints.export import Kind
from dsforge.specs import BITSANDBYTES_4_BIT, LoraSpec

# Values of `--max-lora-rank` (vllm/config/lora.py, MaxLoRARanks).
SERVED_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
NAME = "tuned"  # what requests call an adapter

MODEL = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForCausalLM.from_pretrained(".", dtype="auto")"""

ADAPTER = """\
{imports}

tokenizer = AutoTokenizer.from_pretrained(".")
{named}
base = AutoModelForCausalLM.from_pretrained({options})
model = PeftModel.from_pretrained(base, ".")"""

LOCAL = 'name = PeftConfig.from_pretrained(".").base_model_name_or_path  # your copy of the base'


def loading_code(
    kind: Kind, lora: LoraSpec | None, base: str | None, *, gguf: bool, two_sides: bool = False
) -> str:
    """Python that loads weights in the working folder; `base` is the hub id of their base.

    Without one, adapters name the folder or file that they were trained on. `two_sides`: of a model
    with an encoder and a decoder.
    """
    if kind == "model":
        return MODEL.replace("CausalLM", "Seq2SeqLM") if two_sides else MODEL
    imports = [f"from peft import {'PeftConfig, ' if base is None else ''}PeftModel"]
    classes = ["AutoModelForCausalLM", "AutoTokenizer"]
    named = LOCAL if base is None else f"name = {json.dumps(base)}"
    options = 'name, dtype="auto"'
    if gguf:
        imports.insert(0, "from pathlib import Path\n")
        named += "\nfile = Path(name)"
        options = "file.parent, gguf_file=file.name"
    if lora is not None and lora.frozen_format is not None:
        classes.append("BitsAndBytesConfig")
        named += f"\npacked = {_packed(lora)}  # as in training"
        options += ", quantization_config=packed"
    imports.append(f"from transformers import {', '.join(classes)}")
    return ADAPTER.format(imports="\n".join(imports), named=named, options=options)


def _packed(lora: LoraSpec) -> str:
    """The settings of bitsandbytes for the frozen matrices."""
    if lora.frozen_format not in BITSANDBYTES_4_BIT:
        return "BitsAndBytesConfig(load_in_8bit=True)"
    double = f", bnb_4bit_use_double_quant={lora.double_quant}"
    return (
        f'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="{lora.frozen_format}"{double})'
    )


def serving_command(kind: Kind, lora: LoraSpec | None, base: str | None, *, gguf: bool) -> str:
    """The command of vLLM that serves the working folder; empty where it cannot be served so."""
    if kind == "model":
        return "vllm serve ."
    if lora is None or gguf or lora.modules_to_save or lora.rank > SERVED_RANKS[-1]:
        return ""
    rank = next(rank for rank in SERVED_RANKS if rank >= lora.rank)
    name = shlex.quote(base) if base else "BASE_MODEL"
    packed = " --quantization bitsandbytes" if lora.frozen_format else ""
    return f"vllm serve {name}{packed} --enable-lora --lora-modules {NAME}=. --max-lora-rank {rank}"


def serving_note(kind: Kind, lora: LoraSpec | None, *, gguf: bool) -> str:
    """What stands in the way of a server; empty where nothing is known to."""
    if kind == "model" or lora is None:
        return ""
    if lora.modules_to_save:
        return (
            "vLLM does not load adapters with modules that were trained in full: serve a merged "
            "model (`model.merge_and_unload()` of peft)."
        )
    if gguf:
        return (
            "vLLM loads adapters onto original weights and not onto a GGUF file: serve the merged "
            "model (`model.merge_and_unload()` of peft)."
        )
    return ""
