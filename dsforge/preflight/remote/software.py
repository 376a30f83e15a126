"""Software: the interpreter that the launcher will call here, its packages, and the build tools.

The interpreter is asked in a process of its own, because it may not be the one that runs this. No
package is imported for that: torch alone would take seconds on every host.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsforge.preflight.remote.machine import free_bytes, said, text

# From this torch on builds hold a lock of the kernel, which ends with its holder; the file stays.
# Before, the file itself was the lock (torch/utils/cpp_extension.py, pytorch issue 189245).
KERNEL_LOCKS = (2, 14)
LOCK_GRACE_S = 30.0  # younger locks may belong to a build that is just starting
MAX_ENTRIES = 200
MAX_HASHED_BYTES = 4 << 20
SECRET = re.compile(r"TOKEN|SECRET|PASS|PWD|CRED|AUTH|COOKIE|KEY")
COMPILERS = ("c++", "g++")
BLOCK_BYTES = 4096
EMPTY = "int main() { return 0; }\n"
WITH_LIBAIO = "#include <libaio.h>\nint main() { return io_submit(0, 0, 0); }\n"
ASK = """
import importlib.metadata as metadata, importlib.util as util, json, sys, sysconfig
found = {}
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
for name, distribution in json.loads(sys.argv[1]).items():
    spec = util.find_spec(name)
    if spec is None or spec.origin is None:
        continue
    other = version(name) if distribution != name else ""
    found[name] = {"version": version(distribution), "origin": spec.origin, "namesake": other}
nccl = ""
for item in metadata.distributions():
    if (item.metadata["Name"] or "").startswith("nvidia-nccl-cu"):
        nccl = item.version
tag = "py%d%d%s" % (sys.version_info[0], sys.version_info[1], getattr(sys, "abiflags", ""))
print(json.dumps({"version": sys.version.split()[0], "packages": found, "nccl": nccl, "tag": tag,
                  "headers": sysconfig.get_paths()["include"]}))
"""


def software_facts(job: dict[str, Any]) -> dict[str, Any]:
    """Interpreter, run folder, variables, build tools and disk for offload, as the job needs them.

    `job` has `interpreter`, `packages`, `folder`, `files`, `prefixes`, `nvme`, `extensions`.
    """
    python = interpreter_facts(job["interpreter"], job["packages"])
    return {
        "interpreter": python,
        "folder": folder_facts(Path(job["folder"]), job["files"]),
        "environment": variables(job["prefixes"]),
        "tools": tool_facts(python, job["interpreter"]),
        "builds": builds(extensions_root(python, job["extensions"]), torch_version(python)),
        "nvme": nvme_facts(job["nvme"]) if job["nvme"] else None,
    }


def interpreter_facts(path: str, packages: dict[str, str]) -> dict[str, Any]:
    """Version, packages and CUDA release of an interpreter, or what it says instead.

    `packages` gives the distribution of each module; another one of the module's name is told, too.
    """
    facts: dict[str, Any] = {"path": path, "exists": os.access(path, os.X_OK), "error": ""}
    if not facts["exists"]:
        return facts
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    answer = said([path, "-c", ASK, json.dumps(packages)], environment)
    try:
        found = json.loads(answer.strip().splitlines()[-1])
        facts.update(found)
    except (ValueError, IndexError, TypeError):
        facts["error"] = (answer.strip() or "no message").splitlines()[-1][:300]
        return facts
    torch = found["packages"].get("torch")
    facts["cuda"] = cuda_release(torch["origin"]) if torch else ""
    return facts


def cuda_release(origin: str) -> str:
    """The CUDA release that an installed torch was built for; empty for a CPU build."""
    match = re.search(
        r"^cuda\b[^=]*=\s*'([\d.]+)'", text(Path(origin).parent / "version.py"), re.MULTILINE
    )
    return match[1] if match else ""


def folder_facts(folder: Path, files: list[str]) -> dict[str, Any]:
    """Whether the run folder is here, what its files hold, and how much can be written."""
    return {
        "exists": folder.is_dir(),
        "is_writable": os.access(str(folder), os.W_OK | os.X_OK),
        "free_bytes": free_bytes(str(folder)),
        "files": {name: digest(folder / name) for name in files},
    }


def digest(path: Path) -> str:
    """Checksum of the beginning of a file; empty where it cannot be read."""
    with suppress(OSError), path.open("rb") as stream:
        return hashlib.sha256(stream.read(MAX_HASHED_BYTES)).hexdigest()
    return ""


def variables(prefixes: list[str]) -> dict[str, str]:
    """Variables of these names that a program started over ssh finds here; no secret's value."""
    found = {n: v for n, v in os.environ.items() if n.startswith(tuple(prefixes))}
    shown = {n: "(set)" if SECRET.search(n) else v[:400] for n, v in found.items()}
    return dict(sorted(shown.items())[:MAX_ENTRIES])


def tool_facts(python: dict[str, Any], interpreter: str) -> dict[str, Any]:
    """What can build a C++ op here."""
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, COMPILERS)), "")
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    nvcc = shutil.which("nvcc") or shutil.which(str(Path(home) / "bin" / "nvcc")) or ""
    release = re.search(r"release ([\d.]+)", said([nvcc, "--version"])) if nvcc else None
    beside = shutil.which(str(Path(interpreter).parent / "ninja"))
    include = Path(python.get("headers") or "/nonexistent")
    return {
        "compiler": compiler[:300],
        "compiler_works": bool(compiler) and compiles(compiler, EMPTY),
        "ninja": shutil.which("ninja") or "",
        "ninja_beside": beside or "",
        "nvcc": nvcc,
        "nvcc_release": release[1] if release else "",
        "has_python_headers": (include / "Python.h").is_file(),
        "has_libaio": bool(compiler) and compiles(compiler, WITH_LIBAIO, "-laio"),
    }


def compiles(compiler: str, program: str, *libraries: str) -> bool:
    """Whether a program can be compiled and linked."""
    import tempfile

    with suppress(OSError), tempfile.TemporaryDirectory() as name:
        source, made = Path(name) / "try.cpp", Path(name) / "try"
        source.write_text(program)
        said([compiler, str(source), "-o", str(made), *libraries])
        return made.exists()
    return False


def extensions_root(python: dict[str, Any], given: str) -> Path:
    """Where torch keeps the C++ ops that it builds (`torch.utils.cpp_extension`)."""
    given = given or os.environ.get("TORCH_EXTENSIONS_DIR", "")
    if given:
        return Path(given)
    release = python.get("cuda", "")
    accelerator = "cu" + release.replace(".", "") if release else "cpu"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = f"{python.get('tag', '')}_{accelerator}"
    return Path(cache).expanduser() / "torch_extensions" / folder


def torch_version(python: dict[str, Any]) -> str:
    """The version of an interpreter's torch; empty where it has none."""
    return str(python.get("packages", {}).get("torch", {}).get("version", ""))


def builds(root: Path, torch: str) -> dict[str, Any]:
    """The folder of built ops, what each op's folder holds, and the locks that make others wait."""
    ops, locks = [], []
    with suppress(OSError):
        for folder in sorted(root.iterdir())[:MAX_ENTRIES]:
            if (folder / f"{folder.name}.so").is_file():
                ops.append(folder.name)
            lock = folder / "lock"
            with suppress(FileNotFoundError):
                found = {"op": folder.name, "path": str(lock), "age_s": age(lock)}
                is_held = held(lock, torch)
                if is_held or not kernel_locks(torch):
                    locks.append({**found, "is_held": is_held})
    return {"root": str(root), "ops": ops, "locks": locks, "free_bytes": free_above(root)}


def free_above(folder: Path) -> int | None:
    """Free bytes where a folder is or would be made."""
    for place in (folder, *folder.parents):
        if place.exists():
            return free_bytes(str(place))
    return None


def age(path: Path) -> float:
    """Seconds since a file was made."""
    return max(0.0, time.time() - path.stat().st_mtime)


def kernel_locks(torch: str) -> bool:
    """Whether builds of this torch lock by the kernel; one without a version does not."""
    found = re.match(r"(\d+)\.(\d+)", torch)
    return found is not None and (int(found[1]), int(found[2])) >= KERNEL_LOCKS


def stale(lock: Path, torch: str) -> bool:
    """Whether a build that died left this lock, and every later one waits for it."""
    return not kernel_locks(torch) and not held(lock, torch)


def held(lock: Path, torch: str) -> bool:
    """Whether a living process may hold a build lock.

    The kernel knows, where it keeps them; else a compiler works there, or the lock is fresh.
    """
    if kernel_locks(torch):
        return kernel_holds(lock)
    if age(lock) < LOCK_GRACE_S:
        return True
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if link.readlink() == lock.parent:
                return True
    return False


def kernel_holds(path: Path) -> bool:
    """Whether a process has locked an existing file."""
    import fcntl

    with suppress(PermissionError), path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def unlock(root: Path, torch: str) -> list[str]:
    """Remove the locks of built ops that nobody holds; those that are left, held ones too.

    Hosts may share the folder, so another may be faster.
    """
    for lock in builds(root, torch)["locks"]:
        if not lock["is_held"]:
            with suppress(OSError):
                Path(lock["path"]).unlink()
    return [lock["path"] for lock in builds(root, torch)["locks"]]


def nvme_facts(name: str) -> dict[str, Any]:
    """Whether a folder for offload can be written and takes O_DIRECT, as libaio needs it."""
    folder = next((p for p in (Path(name), *Path(name).parents) if p.exists()), Path("/"))
    facts = {"path": name, "exists": folder == Path(name), "free_bytes": free_bytes(str(folder))}
    return {**facts, "error": direct_write_error(folder)}


def direct_write_error(folder: Path) -> str:
    """Why a block cannot be written past the page cache; empty where it can."""
    import mmap

    path = folder / f".dsforge-direct-{os.getpid()}"
    try:
        descriptor = os.open(str(path), os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
        try:
            os.write(descriptor, mmap.mmap(-1, BLOCK_BYTES))
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        with suppress(OSError):
            path.unlink()
    return ""
