"""Software that does not fit together: versions, drivers, missing modules, failing cards."""

from __future__ import annotations

from dsforge.diagnose.known_packages import installs_module, installs_version
from dsforge.diagnose.rule import Rule

RULES = (
    Rule(
        "driver-too-old",
        ("driver on your system is too old", "driver version is insufficient"),
        r"NVIDIA driver on your system is too old(?: \(found version (?P<found>\d+)\))?|"
        r"CUDA driver version is insufficient",
        "the NVIDIA driver is too old for this torch {found}",
        "a wheel built for CUDA 12 needs driver 525 or newer, for CUDA 13 580",
        "$ nvidia-smi   # the CUDA version at the top right is the newest it serves\n"
        "$ pip install torch --index-url <the wheels for that CUDA version>",
        "torch/cuda/__init__.py",
        confidence=0.95,
    ),
    Rule(
        "gpu-architecture",
        ("no kernel image is available",),
        r"no kernel image is available for execution on the device",
        "a compiled kernel does not fit this GPU's architecture",
        "the wheel or the extension was built for other compute capabilities",
        '$ python -c "import torch; print(torch.cuda.get_arch_list(), '
        'torch.cuda.get_device_capability())"\nTORCH_CUDA_ARCH_LIST=<that capability>   # and '
        "build the extension again",
        "CUDA error 209",
        confidence=0.95,
    ),
    Rule(
        "gpu-lost",
        (
            "nvrm: xid",
            "fallen off the bus",
            "uncorrectable ecc",
            "unable to determine the device handle",
            "cuda error: unknown error",
        ),
        r"NVRM: Xid[^\n]{0,40}: (?P<xid>\d+)|fallen off the bus|uncorrectable ECC error|"
        r"Unable to determine the device handle",
        "a GPU failed {xid}",
        "hardware: memory that cannot be corrected, power, cooling, or the bus",
        "$ nvidia-smi -q -d ECC,PAGE_RETIREMENT; dmesg -T | grep -i xid\n"
        "$ deepspeed --exclude <host>:<gpu> ...   # and drain the node",
        "NVIDIA Xid catalogue",
        confidence=0.95,
        read=lambda hits: {
            "xid": f"(Xid {hits[0].values['xid']})" if hits[0].values["xid"] else ""
        },
        explains=("nccl-timeout", "nccl-error", "peer-lost", "illegal-memory-access"),
    ),
    Rule(
        "flash-attention-missing",
        ("toggled on, but it cannot be used",),
        r"FlashAttention\d? has been toggled on, but it cannot be used[^\n]{0,60}: ?"
        r"(?P<what>[^\n]{0,160})",
        "FlashAttention was asked for but is not usable: {what}",
        "the package is missing on this node, or the card or dtype does not fit",
        'attn_implementation="sdpa"   # same result, no extra package\n'
        "$ pip install flash-attn --no-build-isolation   # on every node",
        "transformers/modeling_utils.py:1554",
        confidence=0.95,
        explains=("module-missing",),
    ),
    Rule(
        "numpy-abi",
        ("compiled using numpy 1", "numpy.dtype size changed", "numpy.core.multiarray failed"),
        r"module that was compiled using NumPy 1\.x cannot be run in NumPy (?P<new>\S{1,12})|"
        r"numpy\.dtype size changed|numpy\.core\.multiarray failed to import",
        "a compiled package was built for another NumPy",
        "NumPy 2 changed its binary interface",
        "$ pip install 'numpy<2'   # or upgrade the package named in the traceback",
        "numpy/core/src/multiarray",
        confidence=0.85,
    ),
    Rule(
        "import-conflict",
        ("cannot import name", "has no attribute '__version__'"),
        r"cannot import name '(?P<name>\w{1,80})' from (?:partially initialized module )?"
        r"'(?P<module>[\w.]{1,120})'",
        "`{module}` has no `{name}`: two packages are of versions that do not fit",
        "one was upgraded without the other; nodes can differ, too",
        "$ pip check; pip show {package}   # on every node: which of the two is older\n"
        "# then install the version of {package} that the importing package asks for",
        "Python import system",
        confidence=0.9,
        read=lambda hits: {**hits[0].values, "package": hits[0].values["module"].partition(".")[0]},
    ),
    Rule(
        "module-missing",
        ("no module named",),
        r"(?:ModuleNotFoundError: |Error while finding module specification[^\n]{0,80})?"
        r"No module named '?(?P<module>[\w.]{1,120})",
        "the package `{package}` is not installed where this rank runs",
        "the launcher uses another interpreter than your shell, or one node lacks it",
        "{install}",
        "Python import system",
        confidence=0.9,
        read=lambda hits: {
            "package": hits[0].values["module"].partition(".")[0],
            "install": installs_module(hits[0].values["module"]),
        },
    ),
    Rule(
        "library-missing",
        ("cannot open shared object file",),
        r"(?P<library>lib[\w.+-]{1,80}): cannot open shared object file",
        "the library {library} is not found by the loader",
        "LD_LIBRARY_PATH does not travel to other nodes with the launcher",
        "LD_LIBRARY_PATH=<its folder>   # in .deepspeed_env as well\n"
        "$ ldconfig -p | grep {library}",
        "glibc elf/dl-load.c",
        confidence=0.85,
    ),
    Rule(
        "needs-newer",
        (
            "is required for a normal functioning",
            "requires a different python",
            "requires accelerate",
            "requires torch",
            "requires deepspeed",
        ),
        r"(?P<need>[\w.-]{1,40}[<>=!~]=?[\w.,<>=!*]{1,40}) is required for a normal functioning"
        r"[^\n]{0,60}found (?P<found>[\w.=-]{1,60})|requires a different Python: (?P<python>\S+)|"
        r"requires (?P<other>(?:accelerate|torch|deepspeed)[^\n]{1,60})",
        "a package of another version is needed: {need}{other}{python}",
        "transformers and its relatives check versions when they start",
        "{install}",
        "transformers/utils/versions.py",
        confidence=0.9,
        read=lambda hits: {
            **hits[0].values,
            "install": installs_version(hits[0].values["need"] or hits[0].values["other"])
            or "# install the version that the message asks for",
        },
    ),
    Rule(
        "segmentation-fault",
        ("segmentation fault", "sigsegv", "return code = -11", "exitcode: -11", "exitcode  : -11"),
        r"Segmentation fault|SIGSEGV|return code = -11|exitcode ?: -11",
        "a process crashed in native code",
        "mismatched binary packages, most often; a compiler or driver fault more rarely",
        "PYTHONFAULTHANDLER=1   # shows the Python line\n$ rm -rf ~/.cache/torch_extensions\n"
        "$ pip check",
        "signal 11",
        kind="death",
        confidence=0.75,
        explains=("exit-code",),
    ),
)
