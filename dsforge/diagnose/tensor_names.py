"""What the name of a tensor that a converter does not know says about the saved model."""

from __future__ import annotations

import re
from typing import NamedTuple

from dsforge.diagnose.rule import MatchedLine

_SAVED_AGAIN = (
    '$ python -c "import transformers as t; '
    "t.{model}.from_pretrained(MODEL).save_pretrained('again')\"   # {look}"
)


class _Reading(NamedTuple):
    """What a name says, and what to do first."""

    name: str
    says: str
    do: str


_READINGS = (
    _Reading(
        name=r"\.(?:SCB|weight_format)$|\.(?:\w*absmax|\w*quant_map|quant_state[\w.]*)$",
        says=(
            "the weights are still quantised by bitsandbytes, as where an adapter was merged into "
            "a model in 4 or 8 bits"
        ),
        do=(
            "base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.bfloat16)"
            "    # no load_in_4bit; then merge the adapter into it, and save"
        ),
    ),
    _Reading(
        name=r"\.(?:qweight|qzeros|scales|g_idx|weight_packed|weight_scale(?:_inv)?|input_scale)$",
        says="the weights are quantised (GPTQ, AWQ, FP8 or the like)",
        do="# convert the repository of the model in 16 bits, and quantise with llama-quantize",
    ),
    _Reading(
        name=r"lora_[AB]|base_model\.model|modules_to_save|original_module|base_layer",
        says="an adapter was saved beside or inside the model, and not merged",
        do=(
            "model.merge_and_unload().save_pretrained(MERGED)    # and convert that; "
            "convert_lora_to_gguf.py makes a file of the adapter alone"
        ),
    ),
    _Reading(
        name=r"^(?:_orig_mod|module|_forward_module|_fsdp_wrapped_module)\.",
        says="the names begin with those of a wrapper (torch.compile, DDP, FSDP)",
        do="accelerator.unwrap_model(model).save_pretrained(FOLDER)    # the model inside",
    ),
    _Reading(
        name=r"^(?:embed_tokens|layers|norm|wte|h)\.",
        says=(
            "the names lack `model.`, as where it was loaded and saved without its head "
            "(AutoModel in place of AutoModelForCausalLM)"
        ),
        do=_SAVED_AGAIN.format(model="AutoModelForCausalLM", look="its warnings: no new weights?"),
    ),
    _Reading(
        name=r"\.(?:beta|gamma)$",
        says="the names are those of old checkpoints (LayerNorm.beta for bias, gamma for weight)",
        do=_SAVED_AGAIN.format(model="AutoModel", look="with present names; add the tokenizer"),
    ),
    _Reading(
        name=r"vision|visual|image|mm_projector|multi_modal|audio",
        says="it belongs to the part for images or sound, which goes into a file of its own",
        do="$ python convert_hf_to_gguf.py MODEL --mmproj   # and once without, for the text",
    ),
    _Reading(
        name=r"",
        says="its release (or the copy that another tool brought) is older than the model",
        do="$ pip install -r llama.cpp/requirements.txt   # newer; then convert again",
    ),
)


def converter_tensor(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """Why llama.cpp's converter knows no tensor of that name."""
    name = hits[0].values["tensor"]
    reading = next(one for one in _READINGS if re.search(one.name, name))
    return {"reading": reading.says, "remedy": reading.do}
