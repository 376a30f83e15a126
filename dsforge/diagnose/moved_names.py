"""Which of two packages is too new, where an import fails: names that came or went with a release.

Each name was looked up in transformers 5.23, accelerate 1.15, peft 0.21, torch 2.13, deepspeed
0.19, datasets 5.2, pydantic 2.14 and packaging 26.3 (November 2026), and is one that threads report
as missing: what those releases have is missing in older ones, what they lack is gone in newer ones.
"""

from __future__ import annotations

from dsforge.diagnose.known_packages import distribution_of
from dsforge.diagnose.rule import Hit
from dsforge.diagnose.unknown_errors import unknown_error

CAME = {
    "transformers": (
        "check_peft_version is_flash_attn_greater_or_equal_2_10 is_flash_attn_greater_or_equal "
        "EncoderDecoderCache is_fsdp_enabled AutoImageProcessor BitsAndBytesConfig Unpack "
        "GenerationConfig LlamaTokenizer is_torch_npu_available ROPE_INIT_FUNCTIONS "
        "FlashAttentionKwargs is_deepspeed_zero3_enabled"
    ),
    "accelerate": (
        "PartialState is_mlu_available is_npu_available is_xpu_available clear_device_cache "
        "DummyOptim init_empty_weights"
    ),
    "peft": "prepare_model_for_kbit_training",
    "huggingface_hub": "split_torch_state_dict_into_shards OfflineModeIsEnabled",
    "torch": "LRScheduler",
}
WENT = {
    "transformers": (
        "AdamW top_k_top_p_filtering LlamaFlashAttention2 HfDeepSpeedConfig HybridCache "
        "SlidingWindowCache shard_checkpoint apply_chunking_to_forward is_offline_mode "
        "find_pruneable_heads_and_indices is_torch_fx_available AutoModelForVision2Seq "
        "SampleOutput GreedySearchOutput LossKwargs FLAX_WEIGHTS_NAME"
    ),
    "peft": "prepare_model_for_int8_training",
    "huggingface_hub": "cached_download HfFolder Repository",
    "torch": "log inf string_classes container_abcs",
    "deepspeed": "required_torch_version",
    "datasets": "load_metric",
    "pydantic": "BaseSettings",
    "packaging": "LegacyVersion",
}


def import_conflict(hits: tuple[Hit, ...]) -> dict[str, str]:
    """The package that lacks a name, which way its version is off, and what to install."""
    values = hits[0].values
    top = values["module"].partition(".")[0]
    package = distribution_of(top) or top
    importer = unknown_error(hits)["raised"].partition(" ")[0]
    other = distribution_of(importer) if importer != top else ""
    if values["name"] in CAME.get(top, "").split():
        direction = f"{package} is too old for the code that imports it"
        remedy = f"$ pip install --upgrade {package}   # on every node"
    elif values["name"] in WENT.get(top, "").split():
        direction = f"{package} is too new for the code that imports it"
        older = f"$ pip install '{package}<the release that dropped it>'"
        remedy = f"$ pip install --upgrade {other}\n# or: {older[2:]}" if other else older
    else:
        direction = ""
        remedy = f"# then install the version of {package} that the importing package asks for"
    return {"package": package, "direction": direction, "remedy": remedy}
