"""What launchers, terminals and issue trackers do to a log leaves the answer as it was.

Each failure of the corpus is written again as others would have copied it, with the lines that a
dying run prints after its error, or without its last line.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import each
from scoring import PARTS, Answer, answered, logs, part_of_logs

from dsforge.diagnose import diagnose_text
from dsforge.diagnose.log_scanner import ECHOES
from dsforge.diagnose.report import CONFIDENT
from dsforge.diagnose.rulebook import rulebook
from dsforge.diagnose.run_phases import SUCCESS

RULES = rulebook()
TRIED = 2  # forms, and ends, of each failure; all of them together over the corpus


def first(text: str) -> str:
    """The rule that answers first; empty where none does."""
    causes = diagnose_text(text)
    return causes[0].rule if causes else ""


def explaining(rule: str) -> set[str]:
    """The rule, those of which its line is a consequence, and those behind these."""
    found = {rule}
    while more := {r.id for r in RULES.values() if found & set(r.explains)} - found:
        found |= more
    return found


def some(choices: dict[str, Callable[[str], str]], seed: str) -> dict[str, Callable[[str], str]]:
    """A few of these changes, others for each failure."""
    names = random.Random(seed).sample(sorted(choices), TRIED)  # noqa: S311
    return {name: choices[name] for name in names}


def behind(prefix: str) -> Callable[[str], str]:
    """Every line after the words that a launcher or a logger puts before it."""
    return lambda text: "\n".join(prefix + line for line in text.split("\n"))


def coloured(code: str) -> Callable[[str], str]:
    """Every line in a colour of the terminal."""
    return lambda text: "\n".join(f"\x1b[{code}m{line}\x1b[0m" for line in text.split("\n"))


def then(*lines: str) -> Callable[[str], str]:
    """The text with these lines after it."""
    return lambda text: "\n".join((text, *lines))


FORMS: dict[str, Callable[[str], str]] = {
    "torchrun": behind("[rank3]: "),
    "torchrun --tee": behind("[default0]:"),
    "Ray": behind("(Worker pid=811, ip=10.0.0.2) "),
    "pdsh": behind("worker-1: "),
    "pdsh, addresses": behind("10.0.0.2: "),
    "srun --label": behind("3: "),
    "mpirun --tag-output": behind("[1,3]<stderr>:"),
    "docker compose": behind("trainer-1  | "),
    "syslog": behind("May 07 10:11:12 node-1 python[811]: "),
    "Kubernetes": behind("2026-05-07T10:11:12.345678901Z "),
    "logger": behind("[2026-05-07 10:11:12,345] "),
    "mail": behind("> "),
    "red": coloured("31"),
    "bold red": coloured("1;31"),
    "fence": lambda text: f"```\n{text}\n```",
    "named fence": lambda text: f"```shell\n{text}\n```\n",
    "Windows": lambda text: text.replace("\n", "\r\n"),
    "trailing blanks": lambda text: "\n".join(f"{line}  " for line in text.split("\n")),
}

LAUNCHER = "['/usr/bin/python3', '-u', 'train.py'] exits with return code ="
ENDS: dict[str, Callable[[str], str]] = {
    "shell, 11": then("Segmentation fault (core dumped)"),
    "shell, 9": then("train.sh: line 12: 12345 Killed                  python train.py"),
    "shell, 6": then("Aborted (core dumped)"),
    "deepspeed, 1": then(f"[ERROR] [launch.py:321:sigkill_handler] {LAUNCHER} 1"),
    "deepspeed, 9": then(f"[ERROR] [launch.py:321:sigkill_handler] {LAUNCHER} -9"),
    "deepspeed, 11": then(f"[ERROR] [launch.py:321:sigkill_handler] {LAUNCHER} -11"),
    "torchrun, 9": then(
        "E0507 10:11:12.345000 811 torch/distributed/elastic/multiprocessing/api.py:869] failed "
        "(exitcode: -9) local_rank: 0 (pid: 811) of binary: /usr/bin/python"
    ),
    "torchrun, 11": then(
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 0 (local_rank: 0)",
        "  exitcode  : -11 (pid: 811)",
        "  traceback : Signal 11 (SIGSEGV) received by PID 811",
    ),
    "torchrun, 15": then(
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 811 got signal: 15"
    ),
    "mpirun, 11": then(
        "mpirun noticed that process rank 0 with PID 811 on node node-1 exited on signal 11 "
        "(Segmentation fault)."
    ),
    "srun, 1": then("srun: error: node-1: task 0: Exited with exit code 1"),
    "srun, 11": then("srun: error: node-1: task 3: Segmentation fault (core dumped)"),
    "Slurm, memory": then(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks have "
        "been OOM Killed."
    ),
    "Slurm, time": then(
        "slurmstepd: error: *** STEP 123.0 ON node-1 CANCELLED AT 2026-05-07T10:11:12 DUE TO TIME "
        "LIMIT ***"
    ),
    "Kubernetes": then("command terminated with exit code 137"),
    "Ray": then("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing."),
    "NCCL, time": then(
        "[rank1]:[E507 10:11:12.345 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=74, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        "Timeout(ms)=1800000) ran for 1800042 milliseconds before timing out."
    ),
    "NCCL, heartbeat": then(
        "[rank1]:[F507 10:11:12.345 ProcessGroupNCCL.cpp:1306] [PG 0 Rank 1] Heartbeat monitor "
        "timed out! Process will be terminated after dumping debug info."
    ),
    "store": then("[rank2]: torch.distributed.DistStoreError: Socket Timeout"),
    "peer": then(
        "[rank2]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection "
        "closed by peer [10.0.0.1]:4242"
    ),
    "worker": then("RuntimeError: DataLoader worker (pid 811) is killed by signal: Killed. "),
    "command": then(
        "subprocess.CalledProcessError: Command '['/usr/bin/python', 'train.py']' returned "
        "non-zero exit status 1."
    ),
}
# What a frame raises stands for its error only where no other follows.
ENDS_IN_SOURCE = re.compile(r"\n\s*(?:assert|raise) [^\n]*\s*\Z")


def is_named(answer: Answer) -> bool:
    """Whether an answer says how a run failed; what only says that it did gives way to that."""
    return (
        RULES[answer.rule].kind not in ("exit", "echo", "hint")
        and answer.rule not in ("unknown-end", "traceback-in-one-line")
        and not answer.failure.wrapped
        and not (
            answer.rule == "error-line" and any(word in answer.failure.text for word in ECHOES)
        )
    )


def is_cause(answer: Answer) -> bool:
    """Whether an answer is to an error, by the form of its line, of a run that did not end well."""
    return (
        RULES[answer.rule].kind == "cause"
        and answer.is_error
        and not answer.failure.wrapped
        and not any(word.decode() in answer.failure.text for word in SUCCESS)
        and not ENDS_IN_SOURCE.search(answer.failure.text)
    )


CAUSES = st.sampled_from(logs()).map(answered).filter(is_cause)


@pytest.mark.parametrize("part", each(len(PARTS), PARTS))
def test_the_way_a_log_was_copied_changes_nothing(part: int) -> None:
    """Prefixes of launchers, loggers and mail, colours, fences, line ends of Windows."""
    whole = [answer for answer in part_of_logs(part) if not answer.failure.wrapped]
    changed = {
        (answer.failure.source, name): rule
        for answer in whole
        for name, form in some(FORMS, answer.failure.text).items()
        if (rule := first(form(answer.failure.text))) != answer.rule
    }

    assert changed == {}


@pytest.mark.parametrize("part", each(len(PARTS), PARTS))
def test_the_end_of_a_run_takes_over_no_failure(part: int) -> None:
    """Processes that die, ranks that wait in vain and launchers come after the error.

    Another answer is one that says why the first one's process died.
    """
    changed = {
        (answer.failure.source, name): rule
        for answer in filter(is_named, part_of_logs(part))
        for name, end in some(ENDS, answer.failure.text).items()
        if (rule := first(end(answer.failure.text))) not in explaining(answer.rule)
    }

    assert changed == {}


@pytest.mark.parametrize("part", each(len(PARTS), PARTS))
def test_a_text_without_its_last_line_is_not_confidently_wrong(part: int) -> None:
    """What is left may tell less; then the answer is unsure, or what the cause brought about."""
    wrong = {}
    for answer in part_of_logs(part):
        causes = diagnose_text(answer.failure.text.rstrip().rpartition("\n")[0])
        named = causes[0].rule if causes and causes[0].confidence >= CONFIDENT else ""
        if named and named != answer.rule and answer.rule not in explaining(named):
            wrong[answer.failure.source] = named

    assert wrong == {}


@pytest.mark.parametrize("part", each(len(PARTS), PARTS))
def test_a_log_in_a_diff_is_text_that_somebody_changed(part: int) -> None:
    """Nothing ran: it is a change of documentation, of a test or of a message."""
    for answer in part_of_logs(part):
        lines = answer.failure.text.split("\n")
        for mark, counts in (
            ("+", (0, len(lines))),
            ("-", (len(lines), 0)),
            (" ", [len(lines)] * 2),
        ):
            head = f"docs/faq.md\n@@ -1,{counts[0]} +1,{counts[1]} @@ Troubles\n"
            hunk = "".join(f"{mark}{line}\n" for line in lines)

            assert first(f"{head}{hunk}") == ""
            if mark == "+":  # what stands below a diff was not changed by it
                assert first(f"{head}{hunk}\n{answer.failure.text}") == answer.rule


@settings(max_examples=300, deadline=None)
@given(CAUSES, CAUSES)
def test_of_two_errors_the_first_is_the_cause(one: Answer, other: Answer) -> None:
    """Whatever fails afterwards, unless it says why the first one happened."""
    text = f"{one.failure.text}\n{other.failure.text}"

    assert first(text) in explaining(one.rule), (one.failure.source, other.failure.source)


@pytest.mark.parametrize(
    "before",
    ["2026-05-07 10:00:00,000 WARNING no fast path", "Exception ignored in: <function A.__del__>"],
)
def test_an_exception_that_ended_nothing_is_not_why_a_process_died(before: str) -> None:
    """It was logged, or raised in a destructor; the signal is the answer."""
    text = (
        f'{before}\nTraceback (most recent call last):\n  File "a.py", line 3, in close\n'
        "    self.x.close()\nAttributeError: 'A' object has no attribute 'x'\n"
        "INFO loading data\ntrain.sh: line 3:  811 Killed                  python a.py\n"
    )

    assert first(text) == "killed"
