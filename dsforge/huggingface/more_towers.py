"""Vision towers whose layers or projectors differ from those of CLIP, SigLIP and Qwen-VL.

Each is counted to the last parameter as transformers 5.23 builds it (`models/<model_type>/`).
"""

from __future__ import annotations

from dsforge.huggingface.tower_parts import (
    CHANNELS,
    VIDEO_FRAMES,
    Counted,
    encoder_layer,
    linear,
    vit,
)
from dsforge.huggingface.values import LARGEST_OTHER, ConfigValues

SIDES = 2  # height and width


def _side(values: ConfigValues, key: str, default: int) -> tuple[int, int]:
    """Height and width that a key states as one number or as two."""
    stated = values.raw((key,), None)
    if isinstance(stated, list):
        if len(stated) == SIDES and all(type(side) is int and side > 0 for side in stated):
            return min(stated[0], LARGEST_OTHER), min(stated[1], LARGEST_OTHER)
        values.problem(key, f"{key} (={str(stated)[:40]}) must be two whole numbers from 1 on")
        return default, default
    side = values.whole(key, default)
    return side, side


def _fixed(values: ConfigValues, key: str, modelled: object) -> None:
    """A problem where a key that changes the size is not as modelled."""
    stated = values.raw((key,), modelled)
    if stated is not None and stated != modelled:
        values.problem(
            key, f"{key} (={str(stated)[:40]}) must be {modelled}: others are not modelled"
        )


def internvl(values: ConfigValues, text: int) -> Counted:
    """A class token, scales of both residuals; neighbours are joined before two linear layers."""
    for key, modelled in (
        ("norm_type", "layer_norm"),
        ("use_mean_pooling", True),
        ("use_absolute_position_embeddings", True),
        ("use_mask_token", False),
        ("downsample_ratio", 0.5),
    ):
        _fixed(values, key, modelled)
    width, layers = values.whole("hidden_size", 1024), values.whole("num_hidden_layers", 24)
    inner = values.whole("intermediate_size", 4096)
    (high, wide), (tall, broad) = _side(values, "image_size", 448), _side(values, "patch_size", 14)
    patches = (high // tall) * (wide // broad)
    pixels = values.whole("num_channels", CHANNELS) * tall * broad * width
    found = width + (patches + 1) * width + pixels + width
    layer = encoder_layer(width, inner) + 2 * width  # with the scales
    layer -= 0 if values.boolean("attention_bias", default=False) else 3 * width
    layer += 2 * width if values.boolean("use_qk_norm", default=False) else 0
    joined = 4 * width
    projector = 2 * joined + linear(joined, text) + linear(text, text)
    return Counted(layers, width, found + layers * layer, projector, 4)


def idefics3(values: ConfigValues, text: int) -> Counted:
    """SigLIP's tower without its head; neighbours are joined by one matrix."""
    width, layers = values.whole("hidden_size", 1152), values.whole("num_hidden_layers", 12)
    inner, scale = values.whole("intermediate_size", 3072), values.whole("scale_factor", 2)
    patch, image = values.whole("patch_size", 32), values.whole("image_size", 224)
    pixels = values.whole("num_channels", CHANNELS) * patch * patch * width
    found = pixels + width + (image // patch) ** 2 * width + 2 * width
    found += layers * encoder_layer(width, inner)
    return Counted(layers, width, found, width * scale * scale * text, scale * scale)


def llava_onevision(values: ConfigValues, text: int) -> Counted:
    """Two linear layers, and a vector that ends a row of the image."""
    if not values.boolean("multimodal_projector_bias", default=True):
        values.problem("multimodal_projector_bias", "multimodal_projector_bias must be true")
    if isinstance(values.raw(("vision_feature_layer",), -1), list):
        values.problem("vision_feature_layer", "vision_feature_layer must be one layer")
    tower = vit(values)
    projector = linear(tower.hidden_size, text) + linear(text, text) + text
    return tower._replace(projector_parameters=projector)


def paligemma(values: ConfigValues, text: int) -> Counted:
    """One linear layer to `projection_dim`, the width of the language model."""
    tower = vit(values)
    out = values.whole("projection_dim", 2048)
    return tower._replace(projector_parameters=linear(tower.hidden_size, out))


def glm4v(values: ConfigValues, text: int) -> Counted:
    """RMS norms and gated MLPs without biases; a convolution joins neighbours before another."""
    width, layers = values.whole("hidden_size", 1536), values.whole("depth", 24)
    out, inner = values.whole("out_hidden_size", 4096), values.whole("intermediate_size", 13696)
    patch, merge = values.whole("patch_size", 14), values.whole("spatial_merge_size", 2)
    frames = values.whole("temporal_patch_size", VIDEO_FRAMES)
    positions = (values.whole("image_size", 336) // patch) ** 2
    pixels = values.whole("in_channels", CHANNELS) * frames * patch * patch * width
    layer = 4 * width * width + 3 * width * out + 2 * width
    layer += 3 * width if values.boolean("attention_bias", default=False) else 0
    found = pixels + width + positions * width + 2 * width + layers * layer
    merger = out * out + 2 * out + 3 * out * inner
    projector = linear(merge * merge * width, out) + merger
    return Counted(layers, width, found, projector, merge * merge)


def kimi_k25(values: ConfigValues, text: int) -> Counted:
    """Learned positions, a final norm; a norm and two linear layers on joined neighbours.

    Hub configs name the sizes `vt_*`, transformers as others do.
    """
    width = _first(values, ("vt_hidden_size", "hidden_size"), 1152)
    layers = _first(values, ("vt_num_hidden_layers", "num_hidden_layers"), 27)
    inner = _first(values, ("vt_intermediate_size", "intermediate_size"), 4304)
    high = _first(values, ("init_pos_emb_height", "pos_emb_height"), 64)
    wide = _first(values, ("init_pos_emb_width", "pos_emb_width"), 64)
    merge = _side(values, "merge_kernel_size", 2)
    patch, merged = values.whole("patch_size", 14), merge[0] * merge[1]
    found = CHANNELS * patch * patch * width + width + high * wide * width + 2 * width
    found += layers * encoder_layer(width, inner)
    seen = _first(values, ("projection_hidden_size", "mm_hidden_size"), 1152)
    joined = width * merged
    projector = 2 * seen + linear(joined, joined) + linear(joined, text)
    return Counted(layers, width, found, projector, merged)


def _first(values: ConfigValues, keys: tuple[str, ...], default: int) -> int:
    """The whole number of the first key that is there."""
    stated = [key for key in keys if values.raw((key,), None) is not None]
    return values.whole(stated[0], default) if stated else default
