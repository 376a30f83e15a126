"""Environment: the ranks get the variables and limits that they need."""

from __future__ import annotations

from collections.abc import Iterator

from dsforge.findings import Hit
from dsforge.masking import SET, masked_value
from dsforge.preflight.case import Case, check

# Names that change how a rank computes, communicates or finds its files.
RANK_VARIABLES = (
    *("PYTORCH_", "TORCH_", "CUDA_", "OMP_", "MKL_", "GLOO_", "NCCL_", "FI_", "UCX_", "DS_"),
    *("HF_", "TRANSFORMERS_", "WANDB_", "TOKENIZERS_", "TRITON_", "LD_LIBRARY_PATH", "XDG_CACHE"),
)
# What belongs to one shell or one host, or only tells the launcher where to look.
OWN = ("CUDA_HOME", "CUDA_PATH", "CUDA_VERSION", "DS_ENV_FILE", "DS_ACCELERATOR")
CARDS = "the launcher sets it for each rank: choose cards by `slots` or `--include HOST:0,1`"


@check(
    "env-stays",
    "env",
    "warning",
    why="Only NCCL*, PYTHON*, MLFLOW*, UCX* and MV2* are passed to other hosts. Everything else "
    "that is "
    "set in the launching shell is unknown to the ranks of other hosts.",
)
def env_stays(case: Case) -> Iterator[Hit]:
    """A variable of this shell that is not passed to the ranks."""
    if len(case.job.entries) < 2:  # noqa: PLR2004 (one node: the ranks inherit this shell)
        return
    exported = case.job.exported
    for name, value in case.job.environment.items():
        idle = name.startswith("NCCL") and case.job.on_cpu
        if not name.startswith(RANK_VARIABLES) or name in (*OWN, *exported) or idle:
            continue
        secret = masked_value(name, value) != value
        hosts = tuple(
            host
            for host, facts in case.hosts.items()
            if facts.environment.get(name, "") not in (SET, value)
        )
        if hosts:
            line = f"write the line `{name}={value}` into .deepspeed_env in the run folder"
            fix = f"set {name} on each host, in the file that sshd reads" if secret else line
            fix = CARDS if name == "CUDA_VISIBLE_DEVICES" else fix
            yield Hit(hosts, f"{name} is set in this shell but is not passed to other hosts", fix)


@check(
    "env-home",
    "env",
    "warning",
    why="The launcher reads `.deepspeed_env` of the home folder too, before that of the run.",
)
def env_home(case: Case) -> Iterator[Hit]:
    """Variables that a forgotten file in the home folder adds to the run."""
    names = [line.partition("=")[0] for line in case.job.home_lines]
    added = [name for name in names if name not in case.job.file_variables]
    if added:
        message = f"~/.deepspeed_env adds {', '.join(added)[:200]} to every run"
        yield Hit((case.first,), message, "move what this run needs into its folder, and remove it")


@check(
    "open-files",
    "env",
    "warning",
    why="A rank opens sockets to every other rank, files for its data and pipes for its workers.",
)
def open_files(case: Case) -> Iterator[Hit]:
    """A limit on open files that a rank of this job would reach."""
    needed = 256 + 4 * case.job.world_size
    for host, facts in case.hosts.items():
        if 0 <= facts.open_files < needed:
            message = f"a process may open {facts.open_files} files; about {needed} are needed"
            fix = "`* - nofile 65536` in /etc/security/limits.conf there, or LimitNOFILE of sshd"
            yield Hit((host,), message, fix)
