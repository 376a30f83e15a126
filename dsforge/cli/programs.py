"""What `--for` names: the engine of a plan, and programs beside it that files are written for."""

from __future__ import annotations

from typing import NamedTuple

BACK_ENDS = ("deepspeed", "megatron")


class Programs(NamedTuple):
    """Targets, the back end and the program that trains: of both at most one."""

    targets: tuple[str, ...]
    back_ends: tuple[str, ...]
    trainers: tuple[str, ...] = ()


def programs_of(text: str) -> Programs:
    """The programs in `deepspeed,accelerate`; a launcher of `dsforge train` fixes the back end.

    Raises SpecError for an unknown name, and where two back ends are meant.
    """
    from dsforge.errors import Problem, SpecError, quoted
    from dsforge.programs import BY_NAME as PROGRAMS
    from dsforge.programs import OWN, back_end_of
    from dsforge.targets import BY_NAME

    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    names = ", ".join((*BACK_ENDS, *OWN, *BY_NAME))
    problems = tuple(
        Problem("target-name", f"`--for` (={quoted(word)}) must be one of {names}")
        for word in words
        if word not in (*BACK_ENDS, *OWN, *BY_NAME)
    )
    if problems:
        raise SpecError(problems)
    targets = tuple(word for word in words if word not in BACK_ENDS)
    launched = [name for name in targets if name in BY_NAME and BY_NAME[name].starts != "none"]
    fixed = [back_end_of(PROGRAMS[name].ways[0]) for name in targets if name in OWN]
    fixed += ["deepspeed"] * bool(launched)  # the back end of `dsforge train`, on any engine
    meant = [word for word in words if word in BACK_ENDS] + fixed
    back_ends = tuple(dict.fromkeys(meant))
    trainers = tuple(name for name in targets if name in PROGRAMS)
    if len(trainers) > 1:
        message = f"`--for` (={quoted(text)}) needs one trainer, not {' and '.join(trainers)}"
        raise SpecError((Problem("target-engine", message, "call gen once for each of them"),))
    if len(back_ends) > 1:
        message = f"`--for` (={quoted(text)}) needs one engine, not {' and '.join(back_ends)}"
        raise SpecError((Problem("target-engine", message, "call gen once for each engine"),))
    return Programs(targets, back_ends, trainers)
