"""Vision towers beside a language model: their parameters, counted from `vision_config`.

A config of a vision-language model nests the language model in `text_config`, or, as Qwen2-VL on
the hub, states it beside `vision_config`. Each tower here is counted to the last parameter as
transformers 5.23 builds it (`models/<model_type>/`); a test compares. Where a key is left out, the
default is that of the tower's config class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from dsforge.huggingface import more_towers
from dsforge.huggingface.tower_parts import (
    CHANNELS,
    VIDEO_FRAMES,
    Counted,
    encoder_layer,
    linear,
    vit,
)
from dsforge.huggingface.values import ConfigValues
from dsforge.plan import Reason
from dsforge.specs import TowerSpec


class Tower(NamedTuple):
    """How the tower of a model_type is counted, and the type of its language model."""

    counted: Callable[[ConfigValues, int], Counted]  # of `vision_config` beside a text width
    text_type: str
    tied: bool | None = None  # head and embedding, where no outer key says; none: as the text does


def _llava(values: ConfigValues, text: int) -> Counted:
    """Two linear layers lead to the language model."""
    tower = vit(values)
    projector = linear(tower.hidden_size, text) + linear(text, text)
    return tower._replace(projector_parameters=projector)


def _llava_next(values: ConfigValues, text: int) -> Counted:
    """The same with a vector that ends a row of the image."""
    tower = _llava(values, text)
    return tower._replace(projector_parameters=tower.projector_parameters + text)


def _gemma3(values: ConfigValues, text: int) -> Counted:
    """A norm and a matrix; patches are averaged to `mm_tokens_per_image`."""
    tower = vit(values)
    patches = (values.whole("image_size", 224) // values.whole("patch_size", 16)) ** 2
    each = max(1, patches // values.whole("mm_tokens_per_image", 256))
    width = tower.hidden_size
    return tower._replace(projector_parameters=width * text + width, patches_per_token=each)


def _merger(width: int, merged: int, out: int) -> int:
    """A norm aside: neighbours joined and led to the language model by two linear layers."""
    joined = width * merged
    return linear(joined, joined) + linear(joined, out)


def _qwen(values: ConfigValues, width: int) -> tuple[int, int, int]:
    """Pixels of a patch in both frames, layers, and patches that become one token."""
    patch, merge = values.whole("patch_size", 14), values.whole("spatial_merge_size", 2)
    frames = values.whole("temporal_patch_size", VIDEO_FRAMES)
    pixels = values.whole("in_channels", CHANNELS) * frames * patch * patch * width
    return pixels, values.whole("depth", 32), merge * merge


def _qwen2_vl(values: ConfigValues, text: int) -> Counted:
    """`embed_dim` is its width; `hidden_size` that of the language model."""
    width = values.whole("embed_dim", 1280)
    pixels, layers, merged = _qwen(values, width)
    inner = width * values.whole("mlp_ratio", 4)
    projector = 2 * width + _merger(width, merged, values.whole("hidden_size", text))
    found = pixels + layers * encoder_layer(width, inner)
    return Counted(layers, width, found, projector, merged)


def _qwen2_5_vl(values: ConfigValues, text: int) -> Counted:
    """RMS norms and gated MLPs with biases."""
    width = values.whole("hidden_size", 3584)
    pixels, layers, merged = _qwen(values, width)
    inner = values.whole("intermediate_size", 3420)
    mlp = 2 * linear(width, inner) + linear(inner, width)
    layer = 4 * linear(width, width) + mlp + 2 * width
    projector = width + _merger(width, merged, values.whole("out_hidden_size", text))
    return Counted(layers, width, pixels + layers * layer, projector, merged)


def _qwen3_vl(values: ConfigValues, text: int) -> Counted:
    """Learned positions, a bias on patches, and a merger for each layer that is read out."""
    width = values.whole("hidden_size", 1152)
    pixels, layers, merged = _qwen(values, width)
    inner, out = values.whole("intermediate_size", 4304), values.whole("out_hidden_size", text)
    positions = values.whole("num_position_embeddings", 2304) * width
    found = pixels + width + positions + layers * encoder_layer(width, inner)
    read = values.raw(("deepstack_visual_indexes",), [8, 16, 24])
    if not isinstance(read, list) or len(read) > layers:
        values.problem("deepstack_visual_indexes", "deepstack_visual_indexes must list layers")
        read = []
    whole = 2 * width + _merger(width, merged, out)
    wide = 2 * width * merged + _merger(width, merged, out)  # norm of the joined neighbours
    return Counted(layers, width, found, whole + len(read) * wide, merged)


def _mistral3(values: ConfigValues, text: int) -> Counted:
    """Pixtral's tower without biases; neighbours are joined by a matrix before the projector."""
    width = values.whole("hidden_size", 1024)
    layers, inner = values.whole("num_hidden_layers", 24), values.whole("intermediate_size", 4096)
    patch, merge = values.whole("patch_size", 16), values.whole("spatial_merge_size", 2)
    pixels = values.whole("num_channels", CHANNELS) * patch * patch * width
    layer = 4 * width * width + 3 * width * inner + 2 * width
    read = values.raw(("vision_feature_layer",), -1)
    if isinstance(read, list) and len(read) > 1:
        message = f"vision_feature_layer (={str(read)[:40]}) must be one layer"
        values.problem("vision_feature_layer", message)
    merged = width + merge * merge * width * width  # its norm, and the matrix
    projector = (width + text) * text
    if values.boolean("multimodal_projector_bias", default=False):
        projector += 2 * text
    found = pixels + width + layers * layer
    return Counted(layers, width, found, merged + projector, merge * merge)


TOWERS: Final[Mapping[str, Tower]] = {
    "llava": Tower(_llava, "llama"),
    "llava_next": Tower(_llava_next, "llama", tied=False),
    "gemma3": Tower(_gemma3, "gemma3_text", tied=True),
    "mistral3": Tower(_mistral3, "mistral", tied=True),
    "qwen2_vl": Tower(_qwen2_vl, "qwen2"),
    "qwen2_5_vl": Tower(_qwen2_5_vl, "qwen2"),
    "qwen3_vl": Tower(_qwen3_vl, "qwen3", tied=False),
    "qwen3_vl_moe": Tower(_qwen3_vl, "qwen3_moe", tied=False),
    "internvl": Tower(more_towers.internvl, "qwen2", tied=True),
    "idefics3": Tower(more_towers.idefics3, "llama", tied=False),
    "smolvlm": Tower(more_towers.idefics3, "llama", tied=False),
    "llava_onevision": Tower(more_towers.llava_onevision, "qwen2", tied=False),
    "paligemma": Tower(more_towers.paligemma, "gemma", tied=True),
    "glm4v": Tower(more_towers.glm4v, "glm4v_text", tied=False),
    "kimi_k25": Tower(more_towers.kimi_k25, "deepseek_v3", tied=True),
}
OUTER_ONLY: Final = (
    *("mm_tokens_per_image", "spatial_merge_size", "multimodal_projector_bias"),
    *("vision_feature_layer", "downsample_ratio", "scale_factor", "projection_hidden_size"),
    "projection_dim",
)  # keys of a tower that the outer config states


def tower_reason(tower: TowerSpec) -> Reason:
    """What is said of a tower."""
    whole = tower.parameters + tower.projector_parameters
    message = (
        f"{tower.kind}: a vision tower of {tower.layers} layers and its projector, "
        f"{whole / 1e6:,.0f} M parameters, beside the language model (`vision_training` says what "
        "of it trains)"
    )
    return Reason(rule="model-tower", message=message)


def tower_of(outer: str, config: Mapping[str, Any], text: int) -> tuple[dict[str, Any], list[Any]]:
    """The fields of a TowerSpec, and what is wrong with the config of the tower."""
    above = {key: config[key] for key in OUTER_ONLY if key in config}
    values = ConfigValues({**config["vision_config"], **above})
    counted = TOWERS[outer].counted(values, text)
    return {"kind": outer, **counted._asdict()}, values.problems
