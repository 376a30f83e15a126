"""What to install for a module that a log misses: only packages that are known to hold it.

Names of modules and of packages on the public index differ, and anybody may register a name that is
free. So a name out of a log is never passed to pip: a module of one's own, a misspelt one or an
invented one would bring a stranger's code into the run.
"""

from __future__ import annotations

import re
import shlex

from dsforge.diagnose.rule import MatchedLine
from dsforge.origin import MODULE, install_command

PYTHON = "<the interpreter in the log>"
EVERYWHERE = "   # on every node"
# Modules whose package has the same name, but for `_` and `-`.
_SAME = frozenset(
    "accelerate albumentations bitsandbytes click colossalai comet_ml datasets deepspeed einops "
    "evaluate fire flash_attn fsspec gguf hjson httpx huggingface_hub hydra jinja2 jsonlines "
    "jsonschema lightning liger_kernel lm_eval loguru matplotlib mlflow modelscope mpi4py msgpack "
    "networkx ninja nltk numba numpy nvtx omegaconf onnx openai optimum orjson packaging pandas "
    "peft pillow polars protobuf psutil pyarrow pybind11 pydantic pytest pytorch_lightning ray "
    "regex requests rich rouge_score sacrebleu safetensors scipy seaborn sentencepiece setuptools "
    "six soundfile sympy tabulate tensorboard tiktoken timm tokenizers torch torchao torchaudio "
    "torchdata torchmetrics torchvision tqdm transformers triton trl typer typing_extensions "
    "ujson vllm wandb wheel xformers zstandard".split()
)
_OTHER = {
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cpuinfo": "py-cpuinfo",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "distutils": "setuptools",
    "dotenv": "python-dotenv",
    "git": "gitpython",
    "google": "protobuf",
    "hydra": "hydra-core",
    "megatron": "megatron-core",
    "mii": "deepspeed-mii",
    "pkg_resources": "setuptools",
    "pynvml": "nvidia-ml-py",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "tensorboardX": "tensorboardX",
    "transformer_engine": "transformer-engine[pytorch]",
    "yaml": "pyyaml",
}
_EXTENSIONS = {
    "flash_attn_2_cuda": "flash-attn",
    "flash_attn_3_cuda": "flash-attn",
    "rotary_emb": "flash-attn",
    "dropout_layer_norm": "flash-attn",
    "fused_dense_lib": "flash-attn",
    "transformer_engine_torch": "transformer-engine[pytorch]",
    "grouped_gemm_backend": "grouped-gemm",
    "causal_conv1d_cuda": "causal-conv1d",
    "selective_scan_cuda": "mamba-ssm",
}  # compiled modules that packages bring beside their own
_APEX_PARTS = (
    "amp_C",
    "apex_C",
    "fused_layer_norm_cuda",
    "fused_rms_norm_cuda",
    "syncbn",
    "mlp_cuda",
    "fused_dense_cuda",
    "fused_weight_gradient",
    "fused_rotary_positional",
    "scaled_",
    "generic_scaled_",
)  # compiled parts, which an apex has that was built with them
_APEX = "# build apex from NVIDIA's repository: `apex` on the public index is another project's"
_APEX_BUILD = (
    f"{_APEX}; this part is built only when asked for\n"
    "$ git clone https://github.com/NVIDIA/apex; cd apex\n"
    "$ APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install -v --no-build-isolation .   "
    '# older: --global-option="--cpp_ext" --global-option="--cuda_ext"'
)
# Names that packages import only where another package is installed, by that package's module.
_OPTIONAL = {
    "peft": "PeftModel PeftConfig LoraConfig PeftType prepare_model_for_kbit_training",
    "flash_attn": "flash_attn_func flash_attn_varlen_func unpad_input index_first_axis",
    "bitsandbytes": "bnb",
    "numpy": "np",
    "torch": "nn F dist",
    "datasets": "load_dataset load_from_disk Dataset",
    "transformers": "AutoTokenizer AutoModelForCausalLM AutoConfig Trainer TrainingArguments",
    "accelerate": "Accelerator init_empty_weights load_checkpoint_and_dispatch",
    "vllm": "LLM SamplingParams",
    "apex": "amp FusedAdam FusedLayerNorm",
    "pydantic": "TypeAdapter BaseModel",
    "megatron.core": "RetroConfig",
}
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*([<>=!~].*)?")


def distribution_of(module: str) -> str:
    """The package on the public index that holds a module; empty where none is known."""
    top = module.partition(".")[0]
    return top.replace("_", "-") if top in _SAME else _OTHER.get(top, "")


def installs_module(module: str) -> str:
    """The line of a fix that installs a missing module, or says why none can be named."""
    top = module.partition(".")[0]
    if top == MODULE:
        return f"$ {install_command('train')}{EVERYWHERE}"
    if top == "apex":
        return _APEX
    if top.startswith(_APEX_PARTS) and ("_C" in top or "syncbn" in top or "cuda" in top):
        return _APEX_BUILD
    if built := _EXTENSIONS.get(top):  # its package may be there, installed without it
        build = f"install --force-reinstall --no-deps --no-build-isolation {shlex.quote(built)}"
        return f"$ {PYTHON} -m pip {build}{EVERYWHERE}"
    known = distribution_of(top)
    if known:
        return f"$ {PYTHON} -m pip install {shlex.quote(known)}{EVERYWHERE}"
    return (
        f"# `{top}` is in no package known here. Your own module: put its folder on PYTHONPATH of "
        "all ranks (or install the project in editable mode, where it has a setup). "
        "Somebody else's: its documentation names the package to install"
    )


def installs_version(requirement: str) -> str:
    """The line of a fix that installs another version of a package; empty for an unknown one."""
    found = _REQUIREMENT.fullmatch(requirement.strip())
    name = found[1].lower() if found else ""
    if found is None or not distribution_of(name.replace("-", "_")):
        return ""
    return f"$ pip install {shlex.quote(f'{name}{found[2] or str()}')}{EVERYWHERE}"


def optional_module(name: str) -> str:
    """The module that an undefined name is imported from; empty where it is not known."""
    if name in _SAME:
        return name
    return next((module for module, names in _OPTIONAL.items() if name in names.split()), "")


def top_package(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The package of the module that a line names."""
    return {"package": hits[0].values["module"].partition(".")[0]}


def install_module(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The package of a missing module, and the line that installs it."""
    return {**top_package(hits), "install": installs_module(hits[0].values["module"])}


def install_version(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The line that installs the version which a message asks for."""
    need = hits[0].values["need"]
    wanted = _APEX if need.lower().startswith("apex") else installs_version(need)
    return {"install": wanted or "# install the version that the message asks for"}


def version_needed(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The line that installs the version which is needed, where a package of pip's is meant."""
    values = hits[0].values
    wanted = values.get("need") or values.get("other") or ""
    name, _, rest = wanted.replace("PyTorch", "torch").partition(" ")
    number = rest.removeprefix("version ").replace(" ", "")
    requirement = f"{name}>={number}" if number[:1].isdigit() else f"{name}{number}"
    install = installs_version(requirement)
    return {"install": install or "# install the version that the message asks for"}


def extension_package(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The package that a compiled file belongs to, where it is known."""
    path = hits[0].values.get("file", "")
    module = path.rpartition("/")[2].partition(".")[0]
    folder = path.partition("-packages/")[2].partition("/")[0].partition(".")[0]
    known = (_EXTENSIONS.get(module), distribution_of(folder), _EXTENSIONS.get(folder))
    return {"package": next((name for name in known if name), "")}
