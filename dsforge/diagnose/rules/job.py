"""Ends that come from outside: the scheduler, a signal, the launcher's last word."""

from __future__ import annotations

from dsforge.diagnose.rule import ESTIMATE, Rule
from dsforge.diagnose.rules.frames import host_moment

RULES = (
    Rule(
        "slurm-time-limit",
        ("due to time limit",),
        r"(?P<job>(?:JOB|STEP) [\w.]{1,40}) (?:ON \S{1,80} )?CANCELLED AT \S{1,40} DUE TO TIME "
        r"LIMIT",
        "Slurm ended {job}: its time limit was reached",
        "the last checkpoint is what remains",
        "#SBATCH --time=24:00:00\n#SBATCH --signal=TERM@300   # save before the end\n"
        "+ checkpoint_every: 100    # train.yaml",
        "slurmstepd",
        confidence=0.95,
        explains=("slurm-cancelled", "terminated", "killed", "exit-code", "peer-lost"),
    ),
    Rule(
        "slurm-preempted",
        ("due to preemption", "due to node failure", "node_fail", "nodefail"),
        r"CANCELLED AT \S{1,40} DUE TO (?P<why>PREEMPTION|NODE FAILURE)|(?P<other>NODE_FAIL)",
        "Slurm ended the job: {why}{other}",
        "another job took the nodes, or one of them failed",
        "#SBATCH --requeue\n+ checkpoint_every: 100    # train.yaml; the next start resumes",
        "slurmstepd",
        confidence=0.95,
        explains=("slurm-cancelled", "terminated", "killed", "exit-code", "peer-lost"),
    ),
    Rule(
        "slurm-cancelled",
        ("cancelled at",),
        r"(?P<job>(?:JOB|STEP) [\w.]{1,40}) (?:ON (?P<node>\S{1,80}) )?CANCELLED AT",
        "{job} was cancelled",
        "by a person (scancel), or by Slurm after a task of the step failed",
        "$ sacct -j <job> --format=JobID,State,ExitCode,MaxRSS,Reason",
        "slurmstepd",
        kind="death",
        confidence=0.7,
        explains=("terminated", "exit-code"),
    ),
    Rule(
        "killed",
        (
            "return code = -9",
            "exitcode: -9",
            "exitcode  : -9",
            "sigkill",
            "signal 9",
            "killed",
            "exit code 137",
            "exit status 137",
            "return code = 137",
        ),
        r"return code = -9|exitcode ?: -9|\bSIGKILL\b|signal 9\b|"
        r"(?:^|\s)\d* ?Killed(?:\s|$)|exit (?:code|status) 137|return code = 137",
        "a rank was killed with signal 9{phase}: most likely the kernel, for host memory",
        "nothing in Python can catch it, so the log stops without a traceback",
        "$ dmesg -T | grep -i -e oom -e killed   # on the node, names the process and its size\n"
        "{remedy}\n" + ESTIMATE + "   # host RAM by phase",
        "deepspeed/launcher/launch.py:259; deepspeedai/DeepSpeed#4239",
        kind="death",
        confidence=0.8,
        read=host_moment,
        explains=("peer-lost", "exit-code"),
    ),
    Rule(
        "interrupted",
        ("keyboardinterrupt",),
        r"^(?:\s*)KeyboardInterrupt\b",
        "the run was interrupted from the keyboard or with SIGINT",
        "not a fault of the job",
        "$ dsforge train train.yaml   # goes on from the last checkpoint",
        "signal 2",
        kind="death",
        confidence=0.7,
        explains=("exit-code",),
    ),
    Rule(
        "terminated",
        ("sigterm", "return code = -15", "exitcode: -15", "signal 15", "exitcode  : -15"),
        r"received SIGTERM|return code = -15|exitcode ?: -15|signal 15\b|Received 15 death signal",
        "the run was ended from outside with SIGTERM",
        "by a scheduler, a person, or the launcher after another rank had failed",
        "$ sacct -j <job>; journalctl -k --since '1 hour ago'   # who sent it",
        "deepspeed/launcher/launch.py:262",
        kind="exit",
        confidence=0.6,
        explains=("exit-code",),
    ),
    Rule(
        "exit-code",
        ("exits with return code", "childfailederror", "exited with exit code", "exitcode"),
        r"exits with return code = (?P<code>-?\d+)|ChildFailedError|"
        r"srun: error: [^\n]{1,80}Exited with exit code (?P<other>\d+)|"
        r"exitcode ?: (?P<third>-?\d+)",
        "a rank ended with exit code {code}{other}{third}; its reason is not in this log",
        "the launcher repeats the code; the error is in the output of that rank",
        "$ deepspeed --enable_each_rank_log logs ...   # one file for each rank\n"
        "$ dsforge diagnose logs",
        "deepspeed/launcher/launch.py:259; torch elastic",
        kind="exit",
        confidence=0.4,
    ),
)
