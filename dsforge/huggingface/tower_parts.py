"""What vision towers consist of, and CLIP's and SigLIP's tower: counted by their sizes."""

from __future__ import annotations

from typing import NamedTuple

from dsforge.huggingface.values import ConfigValues

CHANNELS = 3
VIDEO_FRAMES = 2  # `temporal_patch_size`


class Counted(NamedTuple):
    """A tower in numbers."""

    layers: int
    hidden_size: int
    parameters: int
    projector_parameters: int
    patches_per_token: int


def linear(inputs: int, outputs: int) -> int:
    """Weight and bias."""
    return inputs * outputs + outputs


def encoder_layer(width: int, inner: int) -> int:
    """Four projections, an MLP and two layer norms, all with biases (CLIP, SigLIP, Qwen2-VL)."""
    return 4 * linear(width, width) + linear(width, inner) + linear(inner, width) + 4 * width


def vit(values: ConfigValues) -> Counted:
    """CLIP's or SigLIP's tower."""
    siglip = values.raw(("model_type",), "clip_vision_model") == "siglip_vision_model"
    width = values.whole("hidden_size", 768)
    inner, layers = values.whole("intermediate_size", 3072), values.whole("num_hidden_layers", 12)
    patch, image = values.whole("patch_size", 16), values.whole("image_size", 224)
    patches = (image // patch) ** 2
    pixels = values.whole("num_channels", CHANNELS) * patch * patch * width
    if siglip:
        found = pixels + width + patches * width + 2 * width
        if values.boolean("vision_use_head", default=True):
            pool = width + encoder_layer(width, inner) - 2 * width  # one norm less, a probe more
            found += pool
    else:
        found = pixels + width + (patches + 1) * width + 4 * width
    return Counted(layers, width, found + layers * encoder_layer(width, inner), 0, 1)
