"""The command line as a whole: its commands, help, usage errors and what it imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from dsforge.cli.flags import Flags
from dsforge.cli.main import COMMANDS, app, command_of
from dsforge.cli.options import with_flags
from dsforge.cli.sections import Sections
from dsforge.targets import BY_NAME as TARGETS

PROBE = """
import sys
import dsforge.cli.main
try:
    dsforge.cli.main.main(%r)
except SystemExit:
    pass
print(sorted(%r & set(sys.modules)))
"""


def typed(*arguments: str, **env: str) -> Result:
    """What a command line answers."""
    return CliRunner(env=env).invoke(app, list(arguments), prog_name="dsforge")


def imported(arguments: list[str], among: set[str]) -> str:
    """Which of some packages a command line has imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE % (arguments, among)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_commands_say(name: str) -> None:
    """The first line of a command's own help is the line in the table."""
    command: click.Command = command_of(name)

    assert (command.help or "").splitlines()[0] == COMMANDS[name]


def test_help_lists_the_commands_in_the_order_of_the_table() -> None:
    """The usual way comes first; each command has its whole line."""
    shown = typed("--help").stdout.partition("Commands:\n")[2].split()
    table = [f"{name} {line}" for name, line in COMMANDS.items()]

    assert " ".join(shown) == " ".join(table)


@pytest.mark.parametrize("command", ["gen", "plan", "estimate"])
def test_shared_flags_have_one_option_each_in_their_sections(command: str) -> None:
    """Every field of `Flags` is one option, and the help has all sections in order."""
    shown = typed(command, "-h").stdout
    headings = [line for line in shown.splitlines() if line.endswith(":") and line[0] != " "]

    sections = ("Input files", "Cluster", "Launch", "Workload", "Strategy", "Options")
    assert headings == [f"{section}:" for section in sections]
    own = {"back_end": "--for", "imported": "--from"}
    for field in Flags._fields:
        name = own.get(field, "--" + field.replace("_", "-"))
        assert shown.count(f"\n  {name} ") == 1


def test_flags_arrive_as_one_value() -> None:
    """Given flags have their types; what is not given is None, a switch is off."""
    seen: list[Flags] = []

    @click.command(cls=Sections)
    @with_flags
    def show(*, flags: Flags) -> None:
        seen.append(flags)

    CliRunner().invoke(show, ["--nodes", "2", "--gpu", "v100", "--for", "megatron", "--resolve"])

    assert seen == [Flags(nodes=2, gpu="v100", back_end="megatron", resolve=True)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Usage: dsforge"),
        (("gne",), "Did you mean 'gen'?"),
        (("gen", "--modle", "7b"), "'--model'"),
        (("gen", "--model", "7b"), "'--out'"),
        (("plan", "--nodes", "two"), "is not a whole number"),
        (("plan", "--top", "0"), "x>=1"),
        (("catalog", "cards"), "'models', 'gpus', 'links'"),
    ],
    ids=["nothing", "command", "option", "missing", "type", "range", "choice"],
)
def test_a_wrong_command_line_is_a_usage_error(arguments: tuple[str, ...], said: str) -> None:
    """Exit code 2 and the way out on stderr, nothing on stdout."""
    answer = typed(*arguments)

    assert answer.exit_code == 2
    assert said in answer.stderr
    assert not answer.stdout


def test_flags_that_are_no_numbers_hide_no_other_problem() -> None:
    """Every flag that is wrong is named at once, whichever way it is wrong."""
    wrong = ("--gpus-per-node", "-3", "--seq-len", "abc", "--precision", "int4", "--nodes", "two")
    answer = typed("plan", "--model", "gpt2", "--gpu", "v100-32gb", *wrong)

    assert answer.exit_code == 2
    assert not answer.stdout
    for name in wrong[::2]:
        assert answer.stderr.count(name) == 1


def test_a_number_that_is_none_is_all_that_is_said_where_files_say_the_rest(tmp_path: Path) -> None:
    """The flags of `import` and `rehearse` are no whole request: nothing is missing in them."""
    script = tmp_path / "run.sh"
    script.write_text("torchrun --nproc_per_node=4 train.py --output_dir o --bf16\n")
    for command in (("import", str(script)), ("rehearse", "--model", "gpt2", "--world-size", "8")):
        answer = typed(*command, "--micro-batch", "x")

        assert answer.exit_code == 2
        assert "missing" not in answer.stderr


def test_the_shell_completes_commands_and_options() -> None:
    """Click's completion sees the commands and, behind one, its options."""
    commands = typed(_DSFORGE_COMPLETE="bash_complete", COMP_WORDS="dsforge pl", COMP_CWORD="1")
    options = typed(
        _DSFORGE_COMPLETE="bash_complete", COMP_WORDS="dsforge gen --zero", COMP_CWORD="2"
    )

    assert commands.stdout == "plain,plan\n"
    assert options.stdout == "plain,--zero-stage\n"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("dsforge plan --gpu rtx-pro", "rtx-pro-6000-96gb"),
        ("dsforge gen --inter-node infiniband-4", "infiniband-400"),
        ("dsforge estimate --model mixtral-8x7", "mixtral-8x7b"),
    ],
)
def test_the_shell_completes_names_of_the_catalog(words: str, name: str) -> None:
    """Cards, links and models by how they begin."""
    found = typed(_DSFORGE_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="3")

    assert found.stdout == f"plain,{name}\n"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--method", ["full", "lora", "qlora"]),
        ("--for", ["deepspeed", "megatron", "torch", *TARGETS]),
        ("--recompute", ["none", "selective", "full"]),
        ("--precision", ["bf16", "fp16", "fp32", "fp8"]),
        (
            "--optimizer",
            [
                *("adamw", "lion", "sgd", "adafactor", "muon"),
                *("adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"),
            ],
        ),
        ("--offload-optimizer", ["none", "cpu", "nvme"]),
        ("--loss", ["plain", "fused", "fused_cross_entropy", "chunked"]),
        ("--attention", ["flash", "flash1", "triton", "eager", "masked"]),
        ("--objective", ["fastest", "cheapest", "fewest-gpus"]),
    ],
)
@pytest.mark.parametrize("command", ["plan", "gen"])
def test_the_shell_completes_the_words_that_an_option_takes(
    command: str, option: str, words: list[str]
) -> None:
    """All of them after a blank, fewer as letters are typed."""
    for begun in ("", words[-1][0]):
        line = f"dsforge {command} {option} {begun}"
        found = typed(_DSFORGE_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD="3")

        fitting = [word for word in words if word.startswith(begun)]
        assert sorted(found.stdout.splitlines()) == sorted(f"plain,{word}" for word in fitting)


def test_help_imports_no_library_but_click() -> None:
    """Neither the group nor the help of a command reads types, tables or YAML."""
    heavy = {"pydantic", "rich", "yaml", "numpy", "jinja2"}

    assert imported(["--help"], heavy) == "[]"
    assert imported(["gen", "--help"], heavy) == "[]"


def test_planning_imports_no_table_and_no_numbers_library() -> None:
    """`plan --json` needs pydantic alone: no numpy, and no YAML where no file is read."""
    plan = ["plan", "--model", "llama-2-7b", "--gpu", "a100-80gb", "--json"]

    assert imported(plan, {"rich", "yaml", "numpy", "jinja2", "pydantic"}) == "['pydantic']"


def test_each_setting_has_a_flag_of_its_own() -> None:
    """A field that declares two flags would lose the second one."""
    declared = {field: a.__metadata__ for field, a in Flags.__annotations__.items()}

    assert {field for field, flags in declared.items() if len(flags) != 1} == set()
    assert len({flags[0].setting for flags in declared.values() if flags[0].setting}) == sum(
        bool(flags[0].setting) for flags in declared.values()
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "run"),
        ("explain", "run", "step_s"),
        ("catalog", "models"),
        ("plan", *"--model 7b --gpu h100 --gpus-per-node 8 --verbose --top 200".split()),
        ("lint", "--rules"),
    ],
    ids=lambda arguments: " ".join(arguments[:3]),
)
def test_a_reader_that_leaves_is_no_fault(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """`| head -1` ends the output, without a traceback."""
    model = "--model 7b --gpu h100 --gpus-per-node 8 --out run".split()
    forge = [sys.executable, "-m", "dsforge"]
    subprocess.run([*forge, "gen", *model], cwd=tmp_path, check=True, capture_output=True)
    command = subprocess.Popen(
        [*forge, *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert command.stdout is not None
    assert command.stdout.read(1)
    command.stdout.close()
    _, messages = command.communicate(timeout=60)

    assert b"BrokenPipe" not in messages
    assert b"Traceback" not in messages
