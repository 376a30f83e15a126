"""From a command to what it launches: launcher, its flags, the program and its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from dsforge.importing.shell.expansion import Piece, without_unset
from dsforge.importing.shell.run import Command

LAUNCHERS = (  # a later one of a command is started by an earlier one
    *("srun", "mpirun", "mpiexec", "torchrun", "deepspeed", "accelerate", "colossalai"),
    *("torch.distributed.launch", "torch.distributed.run", "lightning", "fabric", "pdsh", "tune"),
    *("swift", "megatron", "llamafactory-cli", "axolotl", "trl", "litgpt", "deepy.py", "ray"),
)
WITH_COMMAND = ("swift", "megatron", "llamafactory-cli", "axolotl", "trl", "litgpt", "tune")
STARTING = ("launch", "run", "model", "job", "submit", "api")  # words after a launcher's name
SHELLS = ("bash", "sh", "eval", "zsh", "ssh", "srun", "nohup", "exec")
SWITCHES = frozenset(  # flags of launchers without a value
    "--standalone --no_python --no-python --use_env --multi_gpu --use_deepspeed --use_fsdp --cpu "
    "--no_local_rank --force_multi --bind_cores_to_rank --enable_elastic_training --same_network "
    "--tpu --save_pid --no_ssh --no_ssh_check --quiet --debug --mpi --exclusive --unbuffered "
    "--module -m --host_network --use_mps_device --use_xpu --use_megatron_lm --downcast_bf16 "
    "--enable_cpu_affinity --fp8 --parallelism_config --label --allow-run-as-root --overlap".split()
)
PROGRAM = re.compile(r"\S+\.(py|sh|pyz)$")
FLAG = re.compile(r"--?[A-Za-z][\w.:/-]*")
OPTIONS = re.compile(r"args|opts|options|flags|extra|params|^\x01\?[@*]", re.IGNORECASE)
_BLANK = re.compile(r"[ \t\n\x03]+")
OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][\w/@-]*\.[\w./@-]+=")  # of Hydra
MOST_VALUES = 200  # of one flag


class Flags(NamedTuple):
    """Flags with the words behind each, and words that belong to none."""

    values: dict[str, tuple[Piece, list[Piece]]]
    rest: list[Piece]
    overrides: dict[str, Piece]  # `key=value` words, as Hydra takes them


class Launch(NamedTuple):
    """One command that starts a program."""

    launchers: dict[str, Flags]  # with their own flags, in order
    program: Piece
    arguments: Flags
    variables: dict[str, str]

    @property
    def name(self) -> str:
        """The program without its folders."""
        return self.program.text.rpartition("/")[2]


def launches(commands: Iterable[Command]) -> list[Launch]:
    """What commands launch; those that start no program are left out."""
    found = (_launch(command) for command in commands)
    return [launch for launch in found if launch is not None]


def _launch(command: Command) -> Launch | None:
    words = _plain_words(command)
    launchers: dict[str, Flags] = {}
    at = 0
    while at < len(words):
        name = _launcher_of(words[at].text)
        if name is None:
            passed = _passed(words, at, launchers)
            if passed == at:
                break
            at = passed
            continue
        at += 1
        if name in WITH_COMMAND:
            while at < len(words) and words[at].text.startswith("-"):
                at += 1
            launchers[name] = Flags({}, [], {})
            return Launch(launchers, *_program(words, at), command.variables)
        while at < len(words) and words[at].text in STARTING:
            at += 1
        stop = _end_of_flags(words, at)
        launchers[name] = flags_of(words[at:stop], switches=SWITCHES)
        at = stop
    if at >= len(words):
        return None
    if not launchers and not PROGRAM.search(words[at].text) and not _is_module(words, at):
        return None
    return Launch(launchers, *_program(words, at), command.variables)


def _passed(words: list[Piece], at: int, launchers: dict[str, Flags]) -> int:
    """Where to go on from a word that is no launcher: at the same place where a program begins."""
    text = words[at].text
    if launchers.keys() - {"mason.py"}:
        return at if _begins_program(text) else at + 1
    if _is_module(words, at):
        return at
    if not PROGRAM.search(text):
        return at + 1
    if at + 1 < len(words) and words[at + 1].text == "&&":
        return at + 2
    behind = _behind(words, at)
    if behind is None:
        return at
    launchers[text.rpartition("/")[2]] = flags_of(words[at + 1 : behind - 1])
    return behind


def _is_module(words: list[Piece], at: int) -> bool:
    """Whether `python -m MODULE` stands at a word, where the module is no launcher."""
    texts = [piece.text for piece in words[at : at + 4]]
    if not texts[0].rpartition("/")[2].startswith("python") or "-m" not in texts[1:3]:
        return False
    module = texts[texts.index("-m") + 1 :]
    return bool(module) and _launcher_of(module[0]) is None


def _begins_program(word: str) -> bool:
    """Whether a program stands at a word behind the flags of its launcher."""
    return word in ("-m", "--module", "python", "python3") or bool(PROGRAM.search(word))


def _behind(words: list[Piece], at: int) -> int | None:
    """Where a command begins behind a bare `--`; none where there is none."""
    texts = [piece.text for piece in words]
    return texts.index("--", at) + 1 if "--" in texts[at:-1] else None


def _program(words: list[Piece], at: int) -> tuple[Piece, Flags]:
    """The program at a word, and its arguments."""
    if at >= len(words):
        return Piece("", words[-1].line), Flags({}, [], {})
    if words[at].text in ("python", "python3", "-u", "-m", "--module") and at + 1 < len(words):
        return _program(words, at + 1)
    return words[at], flags_of(words[at + 1 :])


def _plain_words(command: Command) -> list[Piece]:
    """The words of a command; those that a shell or `eval` gets as one text are split."""
    made: list[Piece] = []
    of_shell = any(piece.text.rpartition("/")[2] in SHELLS for piece in command.words)
    first = bool(command.words) and _BLANK.search(command.words[0].text)
    for piece in command.words:
        text = without_unset(piece.text)
        after = made[-1].text if made else ""
        flag, equals, value = text.partition("=")
        if equals and not value and FLAG.fullmatch(flag):
            text = piece.text  # `--nproc_per_node=$GPUS`
        if not text and _launcher_of(after) in WITH_COMMAND:
            text = piece.text  # `swift $TASK`
        if not text and FLAG.fullmatch(after) and not OPTIONS.search(piece.text):
            text = piece.text  # the value of a flag, which the environment gives
        if not (of_shell or first) or not _BLANK.search(text):
            made += [Piece(text, piece.line)] if text.strip() else []
            continue
        line = piece.line
        for part in re.split(r"([ \t\n\x03]+)", text):
            if part and not _BLANK.fullmatch(part):
                made.append(Piece(part.strip("'\""), line))
            line += part.count("\n")
    return made


def _launcher_of(word: str) -> str | None:
    """The launcher that a word names."""
    name = word.rpartition("/")[2]
    if name == "axolotl.cli.train":
        return "axolotl"
    if name in ("deepspeed.launcher.runner", "deepspeed.launcher.launch"):
        return "deepspeed"
    if name == "accelerate.commands.launch":
        return "accelerate"
    if name == "run" and word == "run":
        return None
    return name if name in LAUNCHERS else None


def _end_of_flags(words: list[Piece], at: int) -> int:
    """Where the flags of a launcher end: at its program, or at the next launcher."""
    while at < len(words):
        text = words[at].text
        if text in ("-m", "--module", "python", "python3", "-u") or _launcher_of(text):
            name = words[at + 1].text if at + 1 < len(words) else ""
            is_next = text == "-m" and _launcher_of(name) is not None
            return at + 1 if is_next else at
        if PROGRAM.search(text) and not text.startswith("-"):
            return at
        if not text.startswith("-"):
            before = words[at - 1].text
            takes = before.startswith("-") and "=" not in before and before not in SWITCHES
            if not takes:
                return at
        at += 1
    return at


def flags_of(words: list[Piece], switches: frozenset[str] = frozenset()) -> Flags:
    """Flags with their values; a flag that is given twice has its last value."""
    values: dict[str, tuple[Piece, list[Piece]]] = {}
    rest: list[Piece] = []
    overrides: dict[str, Piece] = {}
    at = 0
    while at < len(words):
        piece = words[at]
        flag, equals, attached = piece.text.partition("=")
        if FLAG.fullmatch(flag):
            given = [Piece(attached, piece.line)] if equals else []
            at += 1
            while not equals and flag not in switches and at < len(words):
                text = words[at].text
                if FLAG.fullmatch(text.partition("=")[0]) or len(given) > MOST_VALUES:
                    break
                if given and OVERRIDE.match(text):
                    break
                given.append(words[at])
                at += 1
            values[flag] = (piece, given)
            continue
        if equals and re.fullmatch(r"\+{0,2}[A-Za-z_][\w./@-]*", flag):
            overrides[flag.lstrip("+")] = Piece(attached, piece.line)
        else:
            rest.append(piece)
        at += 1
    return Flags(values, rest, overrides)
