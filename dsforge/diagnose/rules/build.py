"""C++ ops that cannot be built or loaded. The error in a destructor is never the cause."""

from __future__ import annotations

from dsforge.diagnose.rule import Hit, Rule

CONSEQUENCES = ("op-build-failed", "op-destructor", "op-not-compatible")
TORCH_ADAM = '+ "optimizer": {{"type": "AdamW", "params": {{"torch_adam": true, ...}}}}'

EXTENSIONS = "~/.cache/torch_extensions"


def _lock(hits: tuple[Hit, ...]) -> dict[str, str]:
    """The lock where it is named, and the folder that such locks are in."""
    lock = next((h.values["lock"] or h.values["other"] for h in hits), "")
    folder = next((h.values["folder"] for h in hits if h.values["folder"]), EXTENSIONS)
    return {"lock": f": {lock}" if lock else "", "folder": folder}


RULES = (
    Rule(
        "op-cuda-version",
        (
            "does not match the version torch was compiled with",
            "has a major version mismatch",
            "detected cuda version",
        ),
        r"(?:Installed CUDA version|detected CUDA version) \(?(?P<system>[\d.]+)\)?"
        r"[^\n]{0,40}mismatch\w*[^\n]{0,60}?(?:PyTorch \()?(?P<torch>[\d.]*)|"
        r"Installed CUDA version (?P<installed>[\d.]+) does not match the version torch was "
        r"compiled with (?P<wheel>[\d.]+)",
        "the CUDA toolkit on this node is not the one torch was built with, so no op compiles",
        "DeepSpeed builds its ops with the node's nvcc against torch's headers; major versions "
        "must agree",
        "CUDA_HOME=/usr/local/cuda-{wheel}\n# or, where only the minor version differs:\n"
        "DS_SKIP_CUDA_CHECK=1",
        "deepspeed/ops/op_builder/builder.py:126; deepspeedai/DeepSpeed#1077",
        explains=CONSEQUENCES,
        lines=1,
    ),
    Rule(
        "op-no-toolkit",
        (
            "cuda_home does not exist",
            "cuda_home environment variable is not set",
            "nvcc: not found",
            "nvcc: command not found",
            "nvcc'",
        ),
        r"CUDA_HOME (?:does not exist|environment variable is not set)|"
        r"(?:nvcc: (?:not found|command not found)|No such file or directory: '[^'\n]{0,80}nvcc')",
        "the CUDA toolkit (nvcc) is not installed where `CUDA_HOME` points",
        "GPU ops are compiled on first use; the driver and the torch wheel bring no compiler",
        "$ conda install -c nvidia cuda-nvcc   # or a devel container image\n"
        "CUDA_HOME=/usr/local/cuda",
        "deepspeed/ops/op_builder/builder.py:47",
        explains=CONSEQUENCES,
    ),
    Rule(
        "op-no-ninja",
        ("ninja is required", "due to ninja not being installed"),
        r"Ninja is required to load C\+\+ extensions|due to ninja not being installed",
        "ninja, which builds DeepSpeed's C++ ops, is not found by the ranks",
        "a shell over ssh does not activate the environment, so its `bin` is not on PATH",
        "$ pip install ninja   # on every node, and put its folder on PATH of the ranks",
        "torch/utils/cpp_extension.py:verify_ninja_availability",
        explains=CONSEQUENCES,
    ),
    Rule(
        "op-python-headers",
        ("python.h",),
        r"Python\.h: No such file or directory",
        "Python's headers are missing, so no C++ op compiles",
        "the distribution ships them in a package of their own",
        "$ apt-get install python3-dev   # on every node",
        "deepspeedai/DeepSpeed#1846",
        explains=CONSEQUENCES,
    ),
    Rule(
        "op-libaio-missing",
        ("libaio",),
        r"libaio\.h: No such file|async_io requires the dev libaio|cannot find -laio|"
        r"libaio\.so[^\n]{0,20}cannot open",
        "libaio is missing, which NVMe offload is built on",
        "the async_io op needs its library and headers on every node",
        "$ apt-get install libaio-dev   # on every node\n"
        '- "device": "nvme"\n+ "device": "cpu"    # or without it',
        "deepspeed/ops/op_builder/async_io.py",
        explains=CONSEQUENCES,
    ),
    Rule(
        "op-compiler-missing",
        ("c++: ", "g++: ", "gcc: ", "cc1plus: ", "c++'", "g++'", "gcc'"),
        r"(?:(?:g\+\+|gcc|c\+\+|cc1plus|[\w./-]{0,60}c\+\+): (?:command )?not found|"
        r"No such file or directory: '[^'\n]{0,60}(?:c\+\+|g\+\+|gcc)'|"
        r"Command '\[?'?(?:which'?, )?'?[^'\n]{0,40}(?:c\+\+|g\+\+)[^\n]{0,40}returned "
        r"non-zero exit status 1\b)",
        "there is no C++ compiler where the ranks run",
        "DeepSpeed compiles its ops on first use, on every node",
        "$ apt-get install g++\n" + TORCH_ADAM + "    # needs no build",
        "torch/utils/cpp_extension.py; deepspeedai/DeepSpeed#5677",
        explains=CONSEQUENCES,
    ),
    Rule(
        "op-compiler-too-new",
        ("unsupported gnu version", "unsupported gcc version"),
        r"unsupported GNU version! gcc versions later than (?P<most>[\d.]+)",
        "the C++ compiler is newer than this CUDA toolkit allows (gcc {most} at most)",
        "nvcc refuses host compilers it does not know",
        "$ apt-get install g++-{most}\nCC=gcc-{most}\nCXX=g++-{most}",
        "CUDA crt/host_config.h",
        explains=CONSEQUENCES,
    ),
    Rule(
        "op-link-library",
        ("cannot find -l",),
        r"cannot find -l(?P<library>(?!aio)[\w.+-]+)",
        "the linker does not find lib{library}, so the op is not built",
        "a conda environment or a slim image has the runtime library but no linker name for it",
        "LIBRARY_PATH=$CUDA_HOME/lib64:$LIBRARY_PATH\n$ ldconfig -p | grep {library}",
        "hiyouga/LlamaFactory threads on -lcurand",
        explains=CONSEQUENCES,
    ),
    Rule(
        "op-other-torch",
        ("pytorch version mismatch", "cuda version mismatch!", "undefined symbol"),
        r"PyTorch version mismatch! DeepSpeed ops|CUDA version mismatch! DeepSpeed ops|"
        r"(?<![\w./-])(?P<file>[\w./-]{1,200}\.so)[\w.]*: undefined symbol: \w+",
        "a compiled extension was built for another torch than the one that runs",
        "binary extensions (DeepSpeed ops, flash-attn) fit one torch version only",
        "$ rm -rf ~/.cache/torch_extensions\n"
        "$ pip install --force-reinstall --no-cache-dir --no-build-isolation PACKAGE",
        "deepspeed/ops/op_builder/builder.py:174",
        explains=CONSEQUENCES,
    ),
    Rule(
        "op-libstdcxx",
        ("glibcxx_", "cxxabi_", "glibc_"),
        r"version [`'](?P<version>(?:GLIBCXX|CXXABI|GLIBC)_[\d.]+)' not found",
        "the C++ runtime found first is too old ({version} is missing)",
        "an older libstdc++ (of conda, or of the system) comes before the compiler's own",
        "$ conda install -c conda-forge libstdcxx-ng   # or put the newer one first:\n"
        "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:$LD_LIBRARY_PATH",
        "glibc elf/dl-version.c",
        explains=CONSEQUENCES,
    ),
    Rule(
        "op-stale-lock",
        (
            "as pytorch extensions root",
            "waited on lock file",
            "waiting for lock",
            "held by lock",
            "stale lock",
        ),
        r"Using (?P<folder>\S{1,300}) as PyTorch extensions root\.\.\."
        r"(?:\nUsing [^\n]{1,400} as PyTorch extensions root\.\.\.)*\s*\Z|"
        r"Waited on lock file \"(?P<lock>[^\"\n]{1,300})\"|"
        r"(?:waiting for|held by|stale) (?:the )?lock[^\n]{0,20}(?P<other>\S*torch_extensions\S*)",
        "a lock file of a build that died holds every rank{lock}",
        "torch waits for ever for a lock that no process owns any more",
        "$ find {folder} -name lock -delete   # while no build is running",
        "torch/utils/file_baton.py",
        confidence=0.8,
        lines=16,
        read=_lock,
        silent=True,
        explains=("killed", "terminated", "exit-code", "interrupted"),
    ),
    Rule(
        "op-build-failed",
        ("error building extension", "ninja: build stopped"),
        r"Error building extension '(?P<op>\w+)'|ninja: build stopped",
        "the C++ op {op} did not compile; the compiler's first error is above this line",
        "the op is built on first use; everything after the compiler's message follows from it",
        "$ ds_report   # which ops can be built here\n" + TORCH_ADAM + "    # needs no build",
        "torch/utils/cpp_extension.py; deepspeedai/DeepSpeed#1846",
        confidence=0.75,
        explains=("op-destructor",),
    ),
    Rule(
        "op-not-compatible",
        ("unable to jit load the",),
        r"Unable to JIT load the (?P<op>\w+) op due to",
        "the C++ op {op} cannot be built on this machine",
        "a library, a compiler or a GPU that it needs is missing",
        "$ ds_report   # names what each op lacks",
        "deepspeed/ops/op_builder/builder.py:570",
        confidence=0.75,
        explains=("op-destructor",),
    ),
    Rule(
        "op-destructor",
        ("ds_opt_adam", "ds_opt_lion", "ds_opt_adagrad"),
        r"has no attribute '(?P<op>ds_opt_\w+)'",
        "the CPU optimizer was never built: `{op}` missing in its destructor is only the echo",
        "the first error, from the compiler or the builder, is further up or in another log",
        '$ python -c "from deepspeed.ops.op_builder import CPUAdamBuilder; '
        'CPUAdamBuilder().load()"   # shows the first error\n' + TORCH_ADAM,
        "deepspeed/ops/adam/cpu_adam.py; deepspeedai/DeepSpeed#1846",
        kind="echo",
        confidence=0.6,
    ),
)
