"""Which part of a run was writing a file, and the setting that sends its files elsewhere."""

from __future__ import annotations

import re

from dsforge.diagnose.log_context import last_frames
from dsforge.diagnose.rule import MatchedLine

# (what its frames or its paths look like, what is written, what puts it elsewhere)
_WRITERS = (
    (
        r"/triton/runtime/cache|/\.triton/|/triton/compiler/",
        "Triton's cache of kernels",
        "TRITON_CACHE_DIR=/scratch/$USER/triton    # unset, it lies in the home folder",
    ),
    (
        r"/torch/_inductor/|/torchinductor_",
        "the cache of torch.compile",
        "TORCHINDUCTOR_CACHE_DIR=/scratch/$USER/inductor",
    ),
    (
        r"/torch/utils/cpp_extension|/torch_extensions/|/op_builder/",
        "compiled extensions",
        "TORCH_EXTENSIONS_DIR=/scratch/$USER/torch_extensions    # unset, ~/.cache",
    ),
    (
        r"-packages/datasets/|/huggingface/datasets/|/datasets/(?:builder|arrow_writer)\.py",
        "the cache of data sets",
        "HF_DATASETS_CACHE=/scratch/$USER/hf_datasets    # or cache_dir= of load_dataset and map",
    ),
    (
        r"-packages/huggingface_hub/|/huggingface/hub/|/transformers/(?:file_utils|utils/hub)\.py",
        "files from the Hub",
        "HF_HOME=/scratch/$USER/hf    # or cache_dir= of from_pretrained",
    ),
    (r"-packages/wandb/|/wandb/", "W&B's files", "WANDB_DIR=/scratch/$USER/wandb"),
    (r"/torch/hub\.py|/torch/hub/", "torch's downloads", "TORCH_HOME=/scratch/$USER/torch"),
    (
        r"-packages/matplotlib/|/matplotlib/",
        "matplotlib's files",
        "MPLCONFIGDIR=/scratch/$USER/mpl",
    ),
    (r"-packages/numba/", "Numba's cache", "NUMBA_CACHE_DIR=/scratch/$USER/numba"),
    (
        r"-packages/pip/|/pip/_internal/|/\.cache/pip",
        "pip's files",
        "$ TMPDIR=/scratch/$USER pip install --no-cache-dir ...",
    ),
    (
        r"-packages/ray/|/tmp/ray/",
        "Ray's files",
        "$ ray start --head --temp-dir=/scratch/ray ...   # unset, /tmp/ray",
    ),
    (
        r"/torch/serialization\.py|/save_checkpoint|_save_checkpoint|save_pretrained|/safetensors/",
        "a checkpoint",
        "output_dir=<a folder that can be written, with room>    # save_total_limit=2 keeps fewer",
    ),
    (r"/tempfile\.py", "temporary files", "TMPDIR=/scratch/$USER/tmp"),
)


def write_place(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """What was written by the deepest frame that tells, else by the path of the message."""
    hit = hits[0]
    path = hit.values.get("path", "")
    text = last_frames(hit.before) + "\n" + hit.text
    found = [
        (match.end(), writer, setting)
        for pattern, writer, setting in _WRITERS
        for match in re.finditer(pattern, text)
    ]
    _, writer, setting = max(found, default=(0, "", ""))
    return {"path": path, "writer": writer, "setting": setting}
