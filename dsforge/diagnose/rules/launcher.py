"""Starting ranks: hostfile, .deepspeed_env, arguments, scripts, variables of the launcher."""

from __future__ import annotations

from dsforge.diagnose.rule import Rule

RULES = (
    Rule(
        "hostfile-entry",
        ("hostfile contains", "hostfile is empty", "hostfile is not formatted"),
        r"Hostfile contains a bad entry: (?P<entry>[^\n]{0,120}?), unable|"
        r"Hostfile contains multiple entries for (?P<host>[^\n,]{1,80})|"
        r"Hostfile is (?:empty|not formatted correctly)",
        "the hostfile cannot be read{what}",
        "each line is `ADDRESS slots=N`, each host once",
        "+ 10.0.0.1 slots=8    # one such line per host",
        "deepspeed/launcher/runner.py:244",
        confidence=0.95,
        read=lambda hits: {
            "what": f": bad line `{hits[0].values['entry']}`"
            if hits[0].values["entry"]
            else f": {hits[0].values['host']} twice"
            if hits[0].values["host"]
            else ""
        },
    ),
    Rule(
        "host-or-slot",
        ("no slot '", "not found in hostfile"),
        r"No slot '(?P<slot>\d+)' specified on host '(?P<host>[\w.-]{1,80})'|"
        r"Hostname '(?P<name>[\w.-]{1,80})' not found in hostfile",
        "--include or --exclude names what the hostfile lacks: {host}{name} {slot}",
        "slots count from 0 to slots-1 of that host",
        "$ deepspeed --include <host of the hostfile>:0,1 ...",
        "deepspeed/launcher/runner.py:328",
        confidence=0.95,
    ),
    Rule(
        "env-file-line",
        ("not enough values to unpack",),
        r"not enough values to unpack \(expected 2, got 1\)",
        "a line of `.deepspeed_env` is not `NAME=value`",
        "its reader splits every line at `=`: a comment or an empty line ends the launch",
        "- # comments and empty lines\n$ sed -i '/^\\s*\\(#\\|$\\)/d' .deepspeed_env",
        "deepspeed/launcher/runner.py:610",
        confidence=0.8,
        read=lambda hits: {},
    ),
    Rule(
        "no-accelerator",
        ("no gpu resources available", "no cuda gpus are available", "found no nvidia driver"),
        r"no GPU resources available|No CUDA GPUs are available|Found no NVIDIA driver",
        "no GPU is visible to this process",
        "CUDA_VISIBLE_DEVICES is empty, the container was started without GPUs, or the driver is "
        "not loaded",
        '$ nvidia-smi; echo "$CUDA_VISIBLE_DEVICES"\n$ docker run --gpus all ...\n'
        "#SBATCH --gpus-per-node=8",
        "deepspeed/launcher/runner.py:471; torch/cuda/__init__.py",
        confidence=0.95,
    ),
    Rule(
        "device-ordinal",
        ("invalid device ordinal",),
        r"invalid device ordinal",
        "more ranks were started on a node than it has GPUs",
        "slots of the hostfile, --num_gpus or CUDA_VISIBLE_DEVICES do not fit the node",
        "$ nvidia-smi -L | wc -l   # on every node\n- 10.0.0.1 slots=8\n"
        "+ 10.0.0.1 slots=<that number>",
        "CUDA error 101; deepspeedai/DeepSpeed#3624",
        confidence=0.95,
    ),
    Rule(
        "local-rank-argument",
        ("unrecognized arguments: --local",),
        r"unrecognized arguments: (?P<argument>--local[-_]rank\S{0,12})",
        "the script does not know `{argument}`, which the launcher adds",
        "deepspeed passes the local rank as an argument unless told not to",
        "$ deepspeed --no_local_rank train.py ...\n"
        "# or: parser = deepspeed.add_config_arguments(parser)",
        "deepspeed/launcher/launch.py",
        confidence=0.95,
    ),
    Rule(
        "no-launcher-variables",
        ("expected, but not set", "requires the local_rank environment", "named 'mpi4py'"),
        r"No module named 'mpi4py'|environment variable (?P<name>\w+) expected, but not set|"
        r"DeepSpeed requires the LOCAL_RANK environment",
        "the script runs without a launcher: {name} is not set",
        "the script was started with python alone, or mpirun did not export it",
        "$ deepspeed --num_gpus N train.py ...   # or torchrun --nproc_per_node N train.py",
        "torch/distributed/rendezvous.py",
        confidence=0.95,
        read=lambda hits: {"name": hits[0].values["name"] or "RANK, WORLD_SIZE or MASTER_ADDR"},
        explains=("module-missing",),
    ),
    Rule(
        "script-missing",
        ("can't open file",),
        r"can't open file '(?P<file>[^'\n]{1,300})': \[Errno 2\]",
        "the script {file} is not there on the node that runs it",
        "the launcher changes to the same absolute path on every node",
        "$ ls -l {file}   # on every node; share the folder or copy it",
        "Python Modules/main.c",
        confidence=0.95,
    ),
    Rule(
        "folder-missing",
        ("cd: /", "can't cd to"),
        r"cd: (?:can't cd to )?(?P<folder>/[^\n:]{1,300}?)(?:: No such file or directory|$)",
        "the folder {folder} does not exist on a node",
        "pdsh runs the job in the same absolute path everywhere",
        "$ ssh <host> ls -ld {folder}   # share the folder, or copy it there",
        "deepspeed/launcher/multinode_runner.py",
        confidence=0.85,
        explains=("pdsh-exit", "clients-missing"),
    ),
    Rule(
        "interpreter-missing",
        ("no such file or directory", "command not found"),
        r"(?P<file>/[\w./-]{1,200}/python[\d.]*): No such file or directory|"
        r"bash: (?:line \d+: )?(?P<name>python[\d.]*): command not found",
        "the interpreter {file}{name} does not exist on a node",
        "the launcher uses the first node's interpreter, by its absolute path, on all of them",
        "$ ssh <host> ls -l {file}{name}   # install the same environment at the same path",
        "deepspeed/launcher/multinode_runner.py",
        explains=("pdsh-exit", "clients-missing"),
    ),
    Rule(
        "newer-syntax",
        ("syntaxerror",),
        r"SyntaxError: (?P<what>[^\n]{1,120})",
        "Python does not accept the source: {what}",
        "the code is written for a newer Python than this node runs, or is incomplete",
        "$ python --version   # on every node; the launcher's interpreter counts",
        "Python Parser",
        confidence=0.8,
    ),
)
