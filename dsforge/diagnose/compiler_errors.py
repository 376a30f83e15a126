"""What the first error of a compiler tells: whose file it stands in, and what does not fit.

Compilers say thousands of things, but a build that fails on one machine and not on another fails
for few reasons: a header of one release meets code of another. Whose file it is and which names the
message has tell which two.
"""

from __future__ import annotations

import re
from itertools import chain

from dsforge.diagnose.rule import MatchedLine

# File and place, then the message: of gcc and clang, of nvcc's front end, of Microsoft's compiler.
_ERROR = re.compile(
    r"(?P<file>(?:[A-Za-z]:)?[^\s:()\"'<>|]{1,300})"
    r"(?:(?::\d{1,6}){1,2}|\(\d{1,6}(?:,\d{1,5})?\)) ?: ?(?:fatal )?error"
    r"(?: [A-Z]{0,4}#?\d{1,6}(?:-D)?)? ?: (?P<said>[^\n]{3,400})"
)
_GCC = re.compile(
    r"[/\\]include[/\\]c\+\+[/\\](?P<one>\d{1,2})|[/\\]gcc[/\\][\w-]+[/\\](?P<two>\d{1,2})"
)
# Whose header it is, by a part of its path; what none has is the package that is built.
_HOMES = {
    "host": r"[/\\]include[/\\]c\+\+[/\\]|[/\\]lib[/\\]gcc[/\\]|^/usr/include/(?!python)|MSVC[/\\]",
    "numpy": r"numpy[/\\]_?core[/\\]include",
    "pybind": r"pybind11[/\\]\w+\.h$",
    "torch": r"torch[/\\](?:lib[/\\])?include[/\\]",
    "python": r"include[/\\]python\d",
    "cuda": r"cuda[^/\\]{0,12}[/\\](?:targets[/\\][\w-]+[/\\])?include[/\\]|/(?:thrust|cub)/",
    "rocm": r"rocm[^/\\]{0,12}[/\\]",
}
_QUOTES = "['\"`\u2018\u2019]"
# What a message is about, by the names in it, most telling first.
_KINDS: dict[str, tuple[str, ...]] = {
    "numpy": (r"\bNPY_\w+|\bPyArray|\bPyUFunc|\bnpy_\w+|subarray|PyDataType",),
    "python": (
        r"\bPy(?:ThreadState|Frame|Code|Type|Long|Unicode|ASCII|Eval|Int|String|Object|CF|Gen)\w*",
        r"\b_Py\w+|tp_print|ob_digit|use_tracing|curexc_|exc_type|exc_value|Py_UNICODE|PyBaseExc",
    ),
    "strict": (
        r"implicit declaration|incompatible[- ](?:pointer|integer)|implicit-(?:int|function)",
        r"int-conversion|makes (?:integer|pointer) from|return type defaults to|ISO C99 and later",
    ),
    "half": (
        r"__half|\bhalf2?\b|bfloat16|nv_bfloat|\batomicAdd\b|\bh(?:exp|log|max|min|sqrt|rcp)\b",
        r"__h(?:add|mul|fma|max)|__ldg|__shfl|wmma|mma_sync|__nanosleep|__fp8|nv_fp8",
    ),
    "torch": (
        r"\b(?:at|torch|c10|caffe2)::|\bat\"|\bTORCH_\w+|\bAT_[A-Z]\w+|\bC10_\w+|ScalarType",
        r"CUDAStream|DeviceGuard|\bTensor\b|data_ptr|is_cuda|THC\w+",
        rf"{_QUOTES}(?:at|c10|torch){_QUOTES}",
    ),
    "standard": (
        r"\bis_\w+_v\b|\bvoid_t\b|string_view|std::(?:optional|variant|any|byte|filesystem|apply)",
        r"std::invoke|if constexpr|structured binding|inline variable|std::enable_if_t",
        r"namespace \"std\" has no member|nested namespace|ISO C\+\+ 20\d\d standard",
    ),
    "kernels": (r"\b(?:cub|thrust|cutlass|cute|cooperative_groups|hipcub|rocprim)\b",),
    "included": (
        r"\b(?:FLT|DBL|INT|UINT|LONG|SIZE)_(?:MAX|MIN|EPSILON)\b|\bu?int(?:8|16|32|64|ptr)_t\b",
        r"numeric_limits|runtime_error|unique_ptr|\bexchange\b|std::mutex",
        r"std::(?:string|function|array|sort|move|min|max|accumulate|iota)\b",
        rf"{_QUOTES}(?:string|function|array){_QUOTES}",
    ),
    "windows": (
        rf"{_QUOTES}(?:uint|ssize_t|u_int|M_PI|and|or|not|__builtin\w+|__attribute__){_QUOTES}",
        r"\bC7555\b|\bC2872\b|/std:|unistd",
    ),
}
_PLACES = {home: re.compile(path) for home, path in _HOMES.items()}
_WORDS = {kind: re.compile("|".join(words)) for kind, words in _KINDS.items()}
# Packages that are compiled where no wheel fits, and what that takes: names as indexes write them.
_NEEDS = {
    "torch": (
        "flash-attn mamba-ssm causal-conv1d xformers torch-scatter torch-sparse torch-cluster "
        "torch-spline-conv detectron2 pytorch3d mmcv mmcv-full apex transformer-engine "
        "transformer-engine-torch grouped-gemm auto-gptq autoawq autoawq-kernels gptqmodel "
        "natten deepspeed fairseq vllm exllamav2 groundingdino spconv chamfer "
        "diff-gaussian-rasterization simple-knn sageattention nvdiffrast tinycudann "
        "torchsparse horovod"
    ),
    "rust": (
        "tokenizers safetensors tiktoken orjson pydantic-core cryptography bcrypt rpds-py "
        "jiter hf-xet hf-transfer outlines-core polars"
    ),
    "wheel": (
        "numpy scipy pandas scikit-learn scikit-image matplotlib pyarrow h5py lxml aiohttp "
        "grpcio yarl frozenlist multidict psutil kiwisolver pillow cffi pyyaml numba llvmlite "
        "sentencepiece opencv-python opencv-python-headless av thinc spacy blis preshed "
        "murmurhash cymem srsly pycocotools tensorboard-data-server wandb wrapt regex msgpack "
        "greenlet cython contourpy lightgbm xgboost onnx dm-tree python-levenshtein "
        "levenshtein ujson gensim statsmodels"
    ),
    "library": (
        "mpi4py mmpycocotools pyaudio mysqlclient psycopg2 pygraphviz pynini kenlm dlib "
        "python-ldap pycairo box2d-py gmpy2 h3 pyodbc python-snappy lmdb cartopy rasterio "
        "llama-cpp-python fasttext pesq pyworld webrtcvad lap lapx cython-bbox insightface "
        "hnswlib nmslib annoy"
    ),
}
_NEED = {package: need for need, packages in _NEEDS.items() for package in packages.split()}
_SYSTEM = {
    "mpi4py": "apt-get install libopenmpi-dev",
    "mmpycocotools": "apt-get install build-essential python3-dev",
    "pyaudio": "apt-get install portaudio19-dev",
    "mysqlclient": "apt-get install default-libmysqlclient-dev pkg-config",
    "psycopg2": "apt-get install libpq-dev",
    "pygraphviz": "apt-get install graphviz-dev",
    "pynini": "apt-get install libfst-dev",
    "kenlm": "apt-get install cmake libboost-all-dev libeigen3-dev",
    "dlib": "apt-get install cmake",
    "box2d-py": "apt-get install swig",
    "llama-cpp-python": "apt-get install cmake ninja-build",
}
_NO_EVIDENCE = {"said": "", "file": "", "home": "", "about": "", "gcc": ""}


def first_error(text: str) -> dict[str, str]:
    """The first error of a compiler in a text: message, file, whose it is, and what it is about."""
    found = _ERROR.search(text)
    if found is None:
        return dict(_NO_EVIDENCE)
    said, file = found["said"].strip(), found["file"]
    gcc = _GCC.search(file)
    return {
        "said": said,
        "file": file,
        "home": next((home for home, path in _PLACES.items() if path.search(file)), "package"),
        "about": next((kind for kind, words in _WORDS.items() if words.search(said)), "other"),
        "gcc": (gcc["one"] or gcc["two"]) if gcc else "",
    }


def build_failure(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The first compiler's error of a build, or what the package that failed takes to be built."""
    lines = chain([hits[0].before], (hit.text for hit in hits))
    values = first_error("\n".join(lines))
    named = (hit.values.get("op") or "" for hit in hits)
    package = next((name for name in named if name), "").lower().replace("_", "-")
    need = _NEED.get(package, "") if not values["said"] else ""
    system = _SYSTEM.get(package, "apt-get install build-essential cmake")
    return {**values, "need": need, "system": system}
