"""Builds the DeepSpeed C++ ops that CPU ranks need, once, so that no launch waits for a compiler.

DeepSpeed builds an op at its first use, inside the training process. A run that dies meanwhile
leaves a `lock` file in the op's build folder and, before torch 2.14, every later run waits for it
without a word. Here each op is built in a process of its own, two at a time as each has little to
do at once, with its time shown, and a lock that nobody holds any more is removed.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from dsforge.preflight.remote.software import stale

DEMO_OPS = {
    "ShareMemCommBuilder": "collectives between ranks of one CPU node, about 80 s on 2 cores"
}
TEST_OPS = DEMO_OPS | {
    "CPUAdamBuilder": "optimizer offload, about 90 s",
    "FusedAdamBuilder": "AdamW of CPU ranks where a config does not ask for torch's, about 85 s",
}
ALL_OPS = TEST_OPS | {"AsyncIOBuilder": "NVMe offload, about 6 min; needs libaio"}
WANTED = {"demo": DEMO_OPS, "test": TEST_OPS, "all": ALL_OPS}
AT_ONCE = 2


def build_folder(op: str) -> Path:
    """Folder in which torch builds the op for this interpreter."""
    from torch.utils.cpp_extension import _get_build_directory

    return Path(_get_build_directory(op, verbose=False))


def build(builder_name: str) -> bool:
    """Build one op if it is missing; whether it can be used afterwards."""
    import torch
    from deepspeed.accelerator import get_accelerator

    builder = get_accelerator().create_op_builder(builder_name)
    lock = build_folder(builder.NAME) / "lock"
    if lock.exists() and stale(lock, torch.__version__):
        print(f"ops: {builder.NAME}: removing the lock of a build that has died", flush=True)
        lock.unlink()
    start = time.monotonic()
    try:
        builder.load(verbose=False)
    except Exception as error:  # any build failure costs skipped tests, with the cause shown
        print(f"ops: {builder.NAME}: cannot be built: {error}", flush=True)
        return False
    print(f"ops: {builder.NAME}: ready after {time.monotonic() - start:.0f} s", flush=True)
    return True


def main() -> int:
    """Build what is missing for the `demo`, the `test` or `all`; exit code 1 on a failure."""
    wanted = WANTED[sys.argv[1]]
    for builder_name, purpose in wanted.items():
        print(f"ops: {builder_name.removesuffix('Builder')} ({purpose})", flush=True)
    with ProcessPoolExecutor(AT_ONCE) as processes:
        usable = list(processes.map(build, wanted))
    return 0 if all(usable) else 1


if __name__ == "__main__":
    sys.exit(main())
