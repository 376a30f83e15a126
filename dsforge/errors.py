"""Every failure that dsforge explains, in one tree.

    DsforgeError                 message, hint; exit code 1
    ├─ SpecError                 input wrong; carries problems
    │  └─ UnusableError          a checkpoint is damaged or not to be trusted; exit code 3
    ├─ LayoutError               combination impossible; carries problems
    ├─ DoesNotFitError           nothing fits; carries the missing bytes and the largest term
    ├─ RenderError               template or artifact wrong
    ├─ EditedError               would overwrite what a person has edited; carries paths, diff
    ├─ NotRepairedError          lint could repair a file but left it as it was
    ├─ SaveError                 a checkpoint was not written; earlier ones are still there
    ├─ NotFiniteError            the loss or the gradient norm became NaN or inf
    ├─ UnknownTypeError          a checkpoint holds a value of a type that cannot be converted
    ├─ UntrustedError            a file would run code when it is loaded; exit code 3
    └─ RunError                  a process failed; carries command, exit code, last lines

A mistake of the user is always one of these and is shown without a traceback, by
`error_report.py` alone. Anything else that escapes is a bug of ours and keeps its traceback.
Messages follow one form: thing (=value) + rule + way out.

These are caught by their callers, which answer or raise one of the above:

    UnreadableError              a file cannot be read; says why, behind its name
    TableError                   a Parquet or Arrow file cannot be read
    GgufError                    a file is not a GGUF file of a known architecture
    PickleError                  a stream is not a pickle of torch
    Stopped                      the end of a pickle
    EndedError                   confined work ran into its limits
    _NotKnownError               an expression of a shell is no arithmetic of known numbers
    _StopError                   the rest of a JSON text cannot be parsed
"""

from __future__ import annotations

from dataclasses import dataclass, field

EXIT_USER = 1  # the input or the run is wrong
EXIT_USAGE = 2  # the command line is wrong
EXIT_FINDINGS = 3  # the command worked and found errors


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule: its id, what is wrong with which value, and the way out."""

    rule: str = field(metadata={"description": "Id of the rule."})
    message: str = field(metadata={"description": "What is wrong with which value."})
    hint: str = field(default="", metadata={"description": "What to do; empty: no advice."})
    place: str = field(
        default="", metadata={"description": "File and line, or flag; may be empty."}
    )

    def __str__(self) -> str:
        """`place: message` with the hint behind it, on one line."""
        head = f"{self.place}: " if self.place else ""
        return head + self.message + (f" ({self.hint})" if self.hint else "")


class DsforgeError(Exception):
    """A failure with a message for the user and, where there is one, the way out."""

    exit_code = EXIT_USER

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SpecError(DsforgeError):
    """Input is wrong. All problems of the input are collected before it is raised."""

    def __init__(self, problems: tuple[Problem, ...], message: str = "") -> None:
        super().__init__(message or _headline(problems, "in the input"))
        self.problems = problems


class LayoutError(DsforgeError):
    """The combination of sizes is impossible; carries every rule it breaks."""

    def __init__(self, problems: tuple[Problem, ...], message: str = "") -> None:
        super().__init__(message or _headline(problems, "with this combination"))
        self.problems = problems


class DoesNotFitError(DsforgeError):
    """No legal strategy fits the memory; says by how much and which term is the largest."""

    def __init__(self, message: str, hint: str, *, missing_bytes: int, largest_term: str) -> None:
        super().__init__(message, hint)
        self.missing_bytes = missing_bytes
        self.largest_term = largest_term


class RenderError(DsforgeError):
    """A template is wrong, or an artifact does not mean what the plan says."""


class EditedError(DsforgeError):
    """Generated files were edited by a person; carries their paths and the diff to the new ones."""

    def __init__(self, paths: tuple[str, ...], diff: str) -> None:
        super().__init__(
            f"edited since dsforge wrote them: {', '.join(paths)}; nothing was written",
            "the edits are on lines that change now: choose another --out to keep them, or "
            "overwrite them with --force",
        )
        self.paths = paths
        self.diff = diff


class UntrustedError(DsforgeError):
    """A file from outside would run code when it is loaded."""

    exit_code = EXIT_FINDINGS


class RunError(DsforgeError):
    """A process failed; carries its command, exit code and last lines of output."""

    def __init__(
        self, message: str, hint: str = "", *, command: tuple[str, ...], code: int, tail: str
    ) -> None:
        super().__init__(message, hint)
        self.command = command
        self.code = code
        self.tail = tail


def first_line(error: BaseException) -> str:
    """What an error of others says, on one line; its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _headline(problems: tuple[Problem, ...], where: str) -> str:
    """`1 problem in the input` or `3 problems in the input`."""
    return f"{len(problems)} problem{'s' if len(problems) != 1 else ''} {where}"


def quoted(value: object, most: int = 60) -> str:
    """A value as messages quote it: in ASCII, and where it is cut, its quotes are closed."""
    text = ascii(value)
    if len(text) <= most:
        return text
    end = text[-1] if text[-1] in "'\"" else ""
    return f"{text[: most - 3 - len(end)]}...{end}"
