"""Logs made by really provoking faults: `python tests/diagnose/provoke.py [NAME…]`.

Every case starts a real program with one thing wrong and keeps what it printed in `logs/NAME.log`,
with this machine's paths and names replaced. Minutes in all; CPU only; at most two ranks. `ssh`
cases start an sshd of their own on the loopback address.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
LOGS = HERE / "logs"
BIN = Path(sys.executable).parent
OPS = Path.home() / ".cache" / "dsforge-provoke"  # a killed case leaves locks: keep them apart
BUILD_S = 600  # for the first case, which builds an op
ALONE = "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT={port} "
SSH = "ssh -F /dev/null -o BatchMode=yes -o ConnectTimeout=3 -o UserKnownHostsFile={known} "
KEPT_HEAD, KEPT_TAIL = 60, 120  # lines of a long log


class Case(NamedTuple):
    """One fault: the shell command that meets it, its environment, and how long it may take."""

    command: str
    environment: dict[str, str] = {}  # noqa: RUF012 (never written to)
    timeout_s: float = 90


def python(code: str) -> str:
    """A command that runs a few lines."""
    return f"python -c '{code}'"


def transformers(code: str) -> str:
    """A command that runs a few lines beside a model folder without weights."""
    return python(f"from transformers import *; {code}")


RANKS = "deepspeed --num_accelerators 2 --master_port {port} --no_local_rank "
LAUNCH = RANKS + "victim.py "
OURS = RANKS + "--module dsforge.train train.yaml"
JOB = (
    "PYTHONPATH={tests} python -c 'from pathlib import Path; import tiny_job as t;"
    ' t.write_job(Path(), t.write_model(Path("model")), t.ds_config(2))\'; '
)
RENDEZVOUS = "import torch.distributed as d, datetime as t; d.init_process_group("
CASES = {
    "batch-arithmetic": Case(LAUNCH + "batch-arithmetic"),
    "batch-world-size-one": Case(ALONE + "python victim.py batch-arithmetic"),
    "no-launcher-mpi": Case("python victim.py healthy"),
    "batch-zero": Case(LAUNCH + "batch-zero"),
    "batch-division": Case(LAUNCH + "batch-division"),
    "batch-missing": Case("echo '{{\"steps\": 1}}' >ds_config.json; " + LAUNCH + "config-json"),
    "config-unknown-key": Case(LAUNCH + "unknown-key"),
    "config-wrong-type": Case(LAUNCH + "fractional"),
    "config-two-precisions": Case(LAUNCH + "two-precisions"),
    "config-json": Case("echo '{{\"steps\": [1' >ds_config.json; " + LAUNCH + "config-json"),
    "config-duplicate-key": Case(
        'echo \'{{"steps": 1, "steps": 2}}\' >ds_config.json; ' + LAUNCH + "config-json"
    ),
    "config-missing": Case(LAUNCH + "config-json"),
    "client-optimizer": Case(LAUNCH + "client-optimizer"),
    "pipeline-with-zero2": Case(LAUNCH + "pipeline"),
    "no-sync": Case(LAUNCH + "no-sync"),
    "exit-9": Case(LAUNCH + "kill"),
    "host-allocation": Case(ALONE + "python victim.py address-space"),
    "gloo-timeout": Case("torchrun --nproc_per_node 2 --master_port {port} victim.py stall"),
    "one-rank-fails": Case(LAUNCH + "alone"),
    "one-rank-fails-torchrun": Case(
        "torchrun --nproc_per_node 2 --master_port {port} victim.py alone"
    ),
    "vocabulary": Case(LAUNCH + "vocabulary"),
    "labels": Case(LAUNCH + "labels"),
    "precision-fp16": Case(LAUNCH + "fp16"),
    "untested-optimizer": Case(LAUNCH + "untested"),
    "nan": Case(LAUNCH + "diverge"),
    "world-size-changed": Case(LAUNCH + "save; " + ALONE + "python victim.py load", timeout_s=240),
    "rank-leaves-early": Case(LAUNCH + "leave-early"),
    "universal-missing": Case(LAUNCH + "save; " + LAUNCH + "universal", timeout_s=240),
    "cpu-adam-no-compiler": Case(
        "CXX=/usr/bin/no-such-c++ " + ALONE + "TORCH_EXTENSIONS_DIR=$PWD/ops"
        " python victim.py cpu-adam"
    ),
    "cpu-adam-no-ninja": Case(
        "ln -s $(which python) python; mkdir bin; ln -s /usr/bin/* bin; rm -f bin/ninja;"
        " PATH=$PWD/bin " + ALONE + "TORCH_EXTENSIONS_DIR=$PWD/ops"
        " {python} victim.py cpu-adam"
    ),
    "cpu-adam-no-headers": Case(
        'printf \'#!/bin/sh\\nexec c++ $(printf "%%s\\\\n" "$@" | grep -v include/python)\\n\''
        " | sed s/%%/%/ >c++; chmod +x c++;"
        " CXX=$PWD/c++ " + ALONE + "TORCH_EXTENSIONS_DIR=$PWD/ops python victim.py cpu-adam"
    ),
    "healthy-nvme": Case(ALONE + "python victim.py nvme", timeout_s=400),
    "zero3-outside-module": Case(ALONE + "python victim.py partitioned"),
    "ddp-unused-parameters": Case(
        "torchrun --nproc_per_node 2 --master_port {port} victim.py unused"
    ),
    "segfault": Case(LAUNCH + "crash"),
    "sigterm": Case(LAUNCH + "sigterm"),
    "healthy-zero2": Case(LAUNCH + "healthy"),
    "healthy-zero3": Case(LAUNCH + "healthy-zero3"),
    "healthy-torchrun": Case("torchrun --nproc_per_node 2 --master_port {port} victim.py healthy"),
    "healthy-cpu-adam": Case(ALONE + "python victim.py cpu-adam", timeout_s=400),
    "healthy-pipeline": Case(LAUNCH + "healthy-pipeline"),
    "healthy-resume": Case(LAUNCH + "save; " + LAUNCH + "load"),
    "healthy-fallback": Case(LAUNCH + "healthy-fallback"),
    "healthy-samples": Case(LAUNCH + "healthy-samples"),
    "healthy-trainer": Case(JOB + LAUNCH + "healthy-trainer"),
    "healthy-dsforge": Case(JOB + OURS),
    "healthy-dsforge-resumed": Case(JOB + OURS + " --steps 4 --no-export; " + OURS),
    "port-in-use": Case(
        "python -m http.server {port} --bind 0.0.0.0 >/dev/null 2>&1 & server=$!; sleep 2;"
        + LAUNCH
        + "healthy; kill $server"
    ),
    "module-missing": Case(
        'echo "import flash_attn" >train.py; '
        "deepspeed --num_accelerators 2 --master_port {port} train.py"
    ),
    "import-conflict": Case(python("from transformers import LlamaForCausalLM, AdamW")),
    "script-missing": Case("deepspeed --num_accelerators 2 --master_port {port} train.py"),
    "newer-syntax": Case('echo "type Row = dict[str, str]" >train.py; python train.py'),
    "local-rank-argument": Case(
        'printf "import argparse\\np = argparse.ArgumentParser()\\np.parse_args()\\n" >train.py;'
        " deepspeed --num_accelerators 2 --master_port {port} train.py"
    ),
    "no-launcher": Case(python('import torch.distributed as d; d.init_process_group("gloo")')),
    "master-unreachable": Case(
        python(RENDEZVOUS + '"gloo", timeout=t.timedelta(seconds=8))'),
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.255.255.1", "MASTER_PORT": "29500"},
    ),
    "master-name": Case(
        python(RENDEZVOUS + '"gloo", timeout=t.timedelta(seconds=5))'),
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node-1.invalid", "MASTER_PORT": "29500"},
    ),
    "clients-missing": Case(
        python(RENDEZVOUS + '"gloo", timeout=t.timedelta(seconds=8))'),
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"},
    ),
    "wrong-interface": Case("GLOO_SOCKET_IFNAME=eth9 " + LAUNCH + "healthy"),
    "hostfile-bad": Case(
        "echo '10.0.0.1 gpus=8' >hostfile; deepspeed --hostfile hostfile victim.py healthy"
    ),
    "hostfile-duplicate": Case(
        "printf '10.0.0.1 slots=8\\n10.0.0.1 slots=8\\n' >hostfile;"
        " deepspeed --hostfile hostfile victim.py healthy"
    ),
    "slot-missing": Case(
        "printf 'node-1 slots=2\\nnode-2 slots=2\\n' >hostfile;"
        " deepspeed --hostfile hostfile --include node-1:5 victim.py healthy"
    ),
    "env-file-line": Case(
        "echo 'localhost slots=2' >hostfile; printf 'NCCL_DEBUG=INFO\\n# for the slow net\\n'"
        " >.deepspeed_env; deepspeed --hostfile hostfile --force_multi --no_ssh_check"
        " --master_addr 127.0.0.1 victim.py healthy"
    ),
    "first-host-unreachable": Case(
        "printf '127.0.0.1 slots=2\\n127.0.0.2 slots=2\\n' >hostfile;"
        " deepspeed --hostfile hostfile --ssh_port 1 victim.py healthy"
    ),
    "pdsh-refused": Case(
        "printf '127.0.0.1 slots=1\\n127.0.0.2 slots=1\\n' >hostfile; deepspeed --hostfile hostfile"
        " --no_ssh_check --ssh_port 1 --master_addr 127.0.0.1 --master_port {port}"
        " victim.py healthy"
    ),
    "ssh-refused": Case(SSH + "-p 1 127.0.0.1 hostname"),
    "ssh-name": Case(SSH + "node-2.invalid hostname"),
    "ssh-timeout": Case(SSH + "10.255.255.1 hostname"),
    "ssh-key-refused": Case(SSH + "-o StrictHostKeyChecking=no -p {sshd} 127.0.0.1 hostname"),
    "ssh-host-key-unknown": Case(SSH + "-p {sshd} 127.0.0.1 hostname"),
    "ssh-host-key-changed": Case(
        "echo \"[127.0.0.1]:{sshd} $(cut -d' ' -f1,2 other.pub)\" >{known}; "
        + SSH
        + "-p {sshd} 127.0.0.1 hostname"
    ),
    "disk-full": Case(
        "mount -t tmpfs -o size=2m tmpfs small; "
        + python('import torch; torch.save(torch.zeros(2**20), "small/model.pt")')
        + "; umount small"
    ),
    "disk-full-write": Case(
        "mount -t tmpfs -o size=64k tmpfs small; "
        + python('open("small/log.txt", "w").write("x" * 2**20)')
        + "; umount small"
    ),
    "file-size-limit": Case(
        python(
            "import signal, torch; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
            " import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (2**16, 2**16));"
            ' open("model.bin", "wb").write(bytes(2**20))'
        )
    ),
    "open-files": Case(
        python(
            "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (64, 64)); import tempfile;"
            " files = [tempfile.TemporaryFile() for _ in range(99)]"
        )
    ),
    "read-only": Case(
        "mount -t tmpfs -o ro tmpfs small; "
        + python('import os; os.makedirs("small/output")')
        + "; umount small"
    ),
    "truncated-safetensors": Case(
        python(
            "import torch; from safetensors.torch import *;"
            ' save_file({"w": torch.zeros(999)}, "model.safetensors");'
            ' import os; os.truncate("model.safetensors", 999); load_file("model.safetensors")'
        )
    ),
    "truncated-pt": Case(
        python(
            'import torch, os; torch.save(torch.zeros(99999), "m.pt");'
            ' os.truncate("m.pt", 9999); torch.load("m.pt")'
        )
    ),
    "empty-tensors": Case(
        python(
            "import torch; m = torch.nn.Embedding(32000, 8);"
            ' m.load_state_dict({"weight": torch.zeros(0)})'
        )
    ),
    "shape-mismatch": Case(
        python(
            "import torch; m = torch.nn.Embedding(32000, 8);"
            ' m.load_state_dict({"weight": torch.zeros(32001, 8)})'
        )
    ),
    "weights-only": Case(
        python(
            'import torch, pathlib, types; torch.save(types.SimpleNamespace(a=1), "m.pt");'
            ' torch.load("m.pt")'
        )
    ),
    "optimizer-groups": Case(
        python(
            "import torch; p = torch.nn.Parameter(torch.zeros(1)); q = torch.nn.Parameter(p+1);"
            " o = torch.optim.AdamW([p]); torch.optim.AdamW([p, q]).load_state_dict(o.state_dict())"
        )
    ),
    "no-grad": Case(
        python(
            "import torch; m = torch.nn.Linear(2, 2).requires_grad_(False);"
            " m(torch.zeros(1, 2)).sum().backward()"
        )
    ),
    "hub-offline": Case(
        "HF_HUB_OFFLINE=1 " + transformers('AutoConfig.from_pretrained("gpt2")'), timeout_s=120
    ),
    "model-missing": Case(transformers('AutoConfig.from_pretrained("/home/user/models/llama")')),
    "unknown-architecture": Case(
        'mkdir model; echo \'{{"model_type": "llama9"}}\' >model/config.json; '
        + transformers('AutoConfig.from_pretrained("model")')
    ),
    "interrupted": Case(ALONE + "timeout -s INT 15 python victim.py stall"),
}


def provoke(name: str) -> str:
    """What a case printed, made neutral and cut where it is long."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder, _sshd(Path(folder), name) as sshd:
        work = Path(folder)
        shutil.copy(HERE / "victim.py", work)
        (work / "small").mkdir()
        values = {
            "port": str(_free_port()),
            "python": sys.executable,
            "tests": str(HERE.parent),
            "known": f"{folder}/known_hosts",
            "sshd": str(sshd),
        }
        text = _output(case, values, work)
    return _trimmed(_neutral(text, folder, sshd))


def _output(case: Case, values: dict[str, str], work: Path) -> str:
    """Everything the command printed before it ended or its time was up."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SSH_")},
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "TORCH_EXTENSIONS_DIR": str(OPS),
        "DSFORGE_CACHE": str(work / "cache"),
        **{name: _filled(value, values) for name, value in case.environment.items()},
    }
    process = subprocess.Popen(
        ["/bin/bash", "-c", _filled(case.command, values)],
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=case.timeout_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def _filled(text: str, values: dict[str, str]) -> str:
    """The text with `{port}` and its like filled in, and doubled braces single."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text.replace("{{", "{").replace("}}", "}")


@contextmanager
def _sshd(work: Path, name: str) -> Iterator[int]:
    """The port of an sshd that lets nobody in; 0 for cases without one."""
    if "{sshd}" not in CASES[name].command:
        yield 0
        return
    for key in ("host", "other"):
        subprocess.run(
            ["/usr/bin/ssh-keygen", "-qt", "ed25519", "-N", "", "-f", str(work / key)], check=True
        )
    port = _free_port()
    Path("/run/sshd").mkdir(exist_ok=True)
    options = [f"HostKey={work}/host", f"Port={port}", "ListenAddress=127.0.0.1", "UsePAM=no"]
    options += ["PasswordAuthentication=no", f"PidFile={work}/pid"]
    flags = [part for option in options for part in ("-o", option)]
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", "/dev/null", *flags])
    try:
        _wait_for(port)
        yield port
    finally:
        server.terminate()
        server.wait()


def _wait_for(port: int) -> None:
    """Return when somebody listens."""
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
            signal.sigtimedwait([], 0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _neutral(text: str, folder: str, sshd: int) -> str:
    """The text without paths, names and ports of this machine."""
    home = re.escape(str(Path.home()))
    for pattern, plain in (
        (re.escape(folder), "/home/user/run"),
        (re.escape(str(BIN.parent)), "/home/user/venv"),
        (rf"(?<![\w/]){home}/\.cache", "/home/user/.cache"),
        (r"/home/user/\.cache/dsforge-provoke", "/home/user/.cache/torch_extensions/py311_cpu"),
        (rf"\b{re.escape(socket.gethostname())}\b", "node-1"),
        (r"\S*/\.pyenv/versions/[\d.]+(?=/(?:lib|include))|/usr/local(?=/lib/python)", "/usr"),
        (rf"\b{sshd}\b" if sshd else r"\bnever\b", "2222"),
    ):
        text = re.sub(pattern, plain, text)
    return text


def _trimmed(text: str) -> str:
    """The first and the last lines of a long log."""
    lines = text.splitlines()
    if len(lines) > KEPT_HEAD + KEPT_TAIL:
        lines = [*lines[:KEPT_HEAD], "[...]", *lines[-KEPT_TAIL:]]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the logs of the named cases, or of all."""
    LOGS.mkdir(exist_ok=True)
    _output(CASES["healthy-zero2"]._replace(timeout_s=BUILD_S), {"port": str(_free_port())}, HERE)
    for name in sys.argv[1:] or CASES:
        (LOGS / f"{name}.log").write_text(provoke(name), encoding="utf-8")
        print(f"{name}: {len((LOGS / f'{name}.log').read_text().splitlines())} lines", flush=True)


if __name__ == "__main__":
    main()
