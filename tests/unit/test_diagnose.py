"""Diagnosis of small logs: cascades, speakers, wrapping, phases, the plan's terms."""

from __future__ import annotations

from pathlib import Path

import pytest
from plans import plan

from dsforge.diagnose import diagnose_error, diagnose_files, diagnose_text
from dsforge.diagnose.log_line import cleaned
from dsforge.diagnose.oom_in_plan import in_ledger_terms
from dsforge.diagnose.report import described, document, shortly
from dsforge.errors import DsforgeError

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB. GPU 3 has a total "
    "capacity of 79.25 GiB of which 4.11 GiB is free."
)
TIMEOUT = (
    "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
    "OpType={op}, NumelIn={numel}, NumelOut=1, Timeout(ms)=600000) ran for 600081 milliseconds"
)
LAUNCHER = "[2026-03-02 10:12:31,311] [ERROR] [launch.py:259] ['python'] exits with return code = "


def rules_of(text: str) -> list[str]:
    """The rules that answer, best first."""
    return [cause.rule for cause in diagnose_text(text)]


def test_nothing_wrong_is_an_empty_list() -> None:
    """A log without a fault gives no cause."""
    assert document(diagnose_text("step 1/2 loss 2.1\nstep 2/2 loss 2.0\n")) == {"causes": []}


def test_the_first_error_in_time_is_the_cause() -> None:
    """Time-outs of the waiting ranks and the launcher's code only follow from it."""
    waited = TIMEOUT.format(rank=1, seq=5, op="ALLREDUCE", numel=4096)

    causes = diagnose_text(f"[rank3]: {OOM}\n{waited}\n{LAUNCHER}1\n")

    assert causes[0].rule == "cuda-out-of-memory"
    assert causes[0].confidence >= 1.5 * max((c.confidence for c in causes[1:]), default=0)
    assert "exit-code" not in [cause.rule for cause in causes]


def test_a_time_out_before_another_error_comes_first() -> None:
    """What happens after the time-out can be its consequence."""
    waited = TIMEOUT.format(rank=1, seq=5, op="ALLREDUCE", numel=4096)

    assert rules_of(f"{waited}\nRuntimeError: CUDA error: invalid device ordinal\n") == [
        "nccl-timeout",
        "device-ordinal",
    ]


def test_an_unknown_exception_is_better_than_an_echo() -> None:
    """The user's own mistake on one rank, and the lost peer on the other."""
    text = (
        "[rank0]: RuntimeError: Connection closed by peer [10.0.0.1]:5\n"
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "a.py", line 3, in <module>\n'
        "[rank1]:     print(row['x'])\n"
        "[rank1]: KeyError: 'x'\n"
    )

    causes = diagnose_text(text)

    assert [cause.rule for cause in causes] == ["python-error"]
    assert causes[0].message == (
        "the first error on rank 1 is KeyError: 'x'; deepest line of your code: a.py:3 in <module>"
    )
    assert [line.line for line in causes[0].evidence] == [5]


def test_a_destructor_is_no_cause_while_there_is_another() -> None:
    """`ds_opt_adam` in `__del__` follows from the build that failed."""
    text = (
        "fatal error: Python.h: No such file or directory\n"
        "RuntimeError: Error building extension 'cpu_adam'\n"
        "Exception ignored in: <function DeepSpeedCPUAdam.__del__ at 0x7f1c>\n"
        "Traceback (most recent call last):\n"
        "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n"
    )

    assert rules_of(text) == ["op-python-headers"]
    assert rules_of(text.split("\n", 2)[2]) == ["op-destructor"]


def test_source_code_in_a_traceback_proves_nothing() -> None:
    """The line below a frame is code that mentions an error, not the error."""
    text = (
        "Traceback (most recent call last):\n"
        '  File "runner.py", line 5, in main\n'
        "    raise RuntimeError('Unable to proceed, no GPU resources available')\n"
        "ValueError: other\n"
    )

    assert rules_of(text) == ["python-error"]


def test_a_run_that_ended_well_had_no_fatal_error() -> None:
    """Errors before the end were survived, except those that leave a wrong result."""
    ended = "[launch.py:285:main] Process 41 exits successfully."

    assert rules_of(f"OSError: [Errno 24] Too many open files\n{ended}\n") == []
    assert rules_of(f"step 3/9 loss nan\n{ended}\n") == ["loss-nan"]


@pytest.mark.parametrize(
    ("raw", "rank", "text"),
    [
        (b"[rank12]: KeyError: 1", 12, "KeyError: 1"),
        (b"worker-5: [rank22]: KeyError: 1", 22, "KeyError: 1"),
        (b"10.0.0.2: [rank1]: KeyError: 1", 1, "KeyError: 1"),
        (b"[default3]:KeyError: 1", 3, "KeyError: 1"),
        (b"7: KeyError: 1", 7, "KeyError: 1"),
        (b"[1,4]<stderr>:KeyError: 1", 4, "KeyError: 1"),
        (b"\x1b[31m2026-03-02 10:11:04,120 KeyError: 1\x1b[0m", None, "KeyError: 1"),
        (b"2026-03-02T10:11:04.120Z [rank3]: KeyError: 1", 3, "KeyError: 1"),
        (b"RuntimeError: KeyError: 1", None, "RuntimeError: KeyError: 1"),
    ],
    ids=["torch", "pdsh-name", "pdsh-address", "torchrun", "srun", "mpi", "ansi", "iso", "plain"],
)
def test_wrapping_is_taken_off(raw: bytes, rank: int | None, text: str) -> None:
    """Colours, times, hosts and ranks before the text are read and removed."""
    line = cleaned(raw)

    assert (line.rank, line.text) == (rank, text)


def test_interleaved_ranks_are_told_apart() -> None:
    """The error that ends a traceback is that of the same rank."""
    text = (
        "[rank0]: Traceback (most recent call last):\n"
        "[rank1]: Traceback (most recent call last):\n"
        '[rank0]:   File "a.py", line 3, in f\n'
        "[rank1]: IndexError: one\n"
        "[rank0]: KeyError: zero\n"
    )

    assert diagnose_text(text)[0].message == "the first error on rank 1 is IndexError: one"


@pytest.mark.parametrize(
    ("before", "phase"),
    [
        ("Loading checkpoint shards:  67%", "loading the model"),
        ("step 4/10 loss 2.0", "training"),
        ("[Torch] Saving out/global_step5/mp_rank_00.pt", "saving a checkpoint"),
    ],
    ids=["load", "train", "save"],
)
def test_exit_9_names_the_phase(before: str, phase: str) -> None:
    """The last thing that the run said before the kill decides the remedy."""
    cause = diagnose_text(f"{before}\nKilling subprocess 4\n{LAUNCHER}-9\n")[0]

    assert cause.rule == "killed"
    assert f"while {phase}" in cause.message


def test_a_time_out_names_rank_sequence_and_operation() -> None:
    """Ranks at different sequences took different branches; the one behind is named."""
    text = "\n".join(
        (
            TIMEOUT.format(rank=4, seq=9143, op="_REDUCE_SCATTER_BASE", numel=99999),
            TIMEOUT.format(rank=2, seq=9141, op="_ALLGATHER_BASE", numel=19008),
        )
    )

    cause = diagnose_text(text)[0]

    assert "_ALLGATHER_BASE, sequence 9141" in cause.message
    assert "rank 2 is furthest behind" in cause.message
    assert "set_z3_leaf_modules" in cause.fix


def test_memory_is_explained_in_the_terms_of_the_plan() -> None:
    """The term that grew at the frames above, the excess, and half the micro batch."""
    frames = (
        'Traceback (most recent call last):\n  File "loss.py", line 3, in cross_entropy\n    x\n'
    )
    given = plan()

    before = diagnose_text(frames + OOM)
    cause = in_ledger_terms(before, given)[0]

    assert "the term is `logits`" in cause.message
    assert "83.0 GiB, 3.72 GiB over the card" in cause.message
    assert cause.fix != before[0].fix or given.strategy.micro_batch_size == 1


def test_logs_of_a_folder_are_read_together(tmp_path: Path) -> None:
    """The earliest line of all ranks is the cause, whatever the file is called."""
    (tmp_path / "rank0.log").write_text(
        "2026-03-02 10:20:00,000 RuntimeError: Connection reset by peer\n"
        "2026-03-02 10:20:01,000 OSError: [Errno 24] Too many open files\n"
    )
    (tmp_path / "rank1.log").write_text("2026-03-02 10:10:00,000 " + OOM)

    causes = diagnose_files([tmp_path])

    assert causes[0].rule == "cuda-out-of-memory"
    assert causes[0].evidence[0].file == str(tmp_path / "rank1.log")


def test_a_path_without_logs_is_refused(tmp_path: Path) -> None:
    """A folder without logs and a path that is not there are the user's mistakes."""
    with pytest.raises(DsforgeError, match="has no log"):
        diagnose_files([tmp_path])
    with pytest.raises(DsforgeError, match="does not exist"):
        diagnose_files([tmp_path / "no.log"])


def test_an_exception_is_explained_from_its_traceback() -> None:
    """What `dsforge train` shows under the traceback of a run that failed."""
    try:
        raise IndexError("index out of range in self")  # noqa: TRY301
    except IndexError as error:
        lines = shortly(diagnose_error(error))

    assert lines[0].startswith("cause: an embedding was asked for a row")


def test_what_dsforge_has_written_is_not_read_again() -> None:
    """The lines under a failed run name words of other rules in their fixes."""
    own = "\n".join(shortly(diagnose_text(f"{LAUNCHER}-9\n")))

    assert "killed" in own
    assert rules_of(own) == []


def test_values_of_a_log_are_quoted_in_commands() -> None:
    """A path from a log that is copied into a shell cannot run anything."""
    text = "python: can't open file '/run/$(touch x); rm -r y': [Errno 2] No such file"

    assert "ls -l '/run/$(touch x); rm -r y'" in diagnose_text(text)[0].fix


def test_text_for_people_names_everything() -> None:
    """Message, rule, reason, line and fix are shown."""
    text = "\n".join(described(diagnose_text("x\n" + OOM)))

    for part in ("cause 1 of 1", "[cuda-out-of-memory", "because", "log:2", "fix"):
        assert part in text
