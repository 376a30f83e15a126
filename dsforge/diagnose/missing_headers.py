"""Which package a C or C++ header belongs to that a compiler did not find."""

from __future__ import annotations

import re

from dsforge.diagnose.rule import MatchedLine

# (start of the header's path, what it belongs to, what brings it), most special first.
_HOMES = (
    (
        r"infiniband/|rdma/",
        "the verbs library (rdma-core)",
        "$ apt-get install libibverbs-dev librdmacm-dev   # dnf: rdma-core-devel",
    ),
    (
        r"mpi\.h",
        "MPI",
        "$ apt-get install libopenmpi-dev   # conda: openmpi; then MPI_HOME, or mpicc in PATH",
    ),
    (
        r"(?:torch|ATen|c10)/",
        "torch",
        "$ pip install --no-build-isolation -v <the package>   # torch first; same environment",
    ),
    (
        r"hip/|rocblas|hipblas|rocprim|hipcub|rccl|miopen",
        "ROCm",
        "$ apt-get install rocm-dev rocm-libs   # or a rocm/pytorch image; ROCM_PATH=/opt/rocm",
    ),
    (
        r"sycl/|CL/sycl|oneapi/|dpct/|mkl",
        "Intel's oneAPI",
        "$ source /opt/intel/oneapi/setvars.sh   # in the shell that builds",
    ),
    (
        r"cutlass/|cute/",
        "CUTLASS, a submodule of the package",
        "$ git submodule update --init --recursive   # DeepSpeed: CUTLASS_PATH=<its folder>",
    ),
    (
        r"cudnn_frontend|googletest/|gtest/|3rdparty/|third_party/",
        "a submodule of the package",
        "$ git submodule update --init --recursive",
    ),
    (
        r"nvtx3/|nvToolsExt",
        "NVTX, which newer CUDA toolkits keep in nvtx3",
        "CPATH=$CUDA_HOME/include/nvtx3    # the headers of the CUDA toolkit",
    ),
    (
        r"acl/|aclnn|hccl/",
        "Ascend's CANN toolkit",
        "$ source /usr/local/Ascend/ascend-toolkit/set_env.sh   # in the shell that builds",
    ),
    (
        r"longintrepr|cpython/|frameobject|internal/pycore",
        "Python, which has moved it in 3.11 or newer: the C file is of an older Cython or Python",
        "$ pip install --upgrade --only-binary :all: <the package>   # or python 3.10",
    ),
    (r"ffi\.h", "libffi", "$ apt-get install libffi-dev"),
    (r"numa\.h", "libnuma", "$ apt-get install libnuma-dev"),
    (r"openssl/", "OpenSSL", "$ apt-get install libssl-dev"),
    (r"zlib\.h|zconf\.h", "zlib", "$ apt-get install zlib1g-dev"),
    (r"sndfile|portaudio", "an audio library", "$ apt-get install libsndfile1-dev portaudio19-dev"),
    (r"numpy/", "NumPy", "$ pip install numpy && pip install --no-build-isolation <the package>"),
    (
        r"pybind11/",
        "pybind11",
        "$ pip install pybind11; python -m pybind11 --includes",
    ),
    (r"Eigen/|eigen3/", "Eigen", "$ apt-get install libeigen3-dev"),
    (r"boost/", "Boost", "$ apt-get install libboost-all-dev"),
    (r"GL/|EGL/", "OpenGL", "$ apt-get install libgl1-mesa-dev libegl1-mesa-dev"),
    (r"X11/", "X11", "$ apt-get install libx11-dev"),
)
_ANY = "$ apt-file search {header}   # or conda search; its folder then belongs into CPATH"


def missing_header(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The header, the package that it belongs to where that is known, and how to get it."""
    header = hits[0].values["header"]
    for start, owner, remedy in _HOMES:
        if re.match(start, header, re.IGNORECASE):
            return {"header": header, "owner": owner, "remedy": remedy}
    return {"header": header, "owner": "", "remedy": _ANY.format(header=header)}
