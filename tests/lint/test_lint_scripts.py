"""Launch scripts: every flag is read wherever it stands, and what is computed is unknown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsforge.importing.script_text import arguments_of
from dsforge.lint.bounds import Bounds
from dsforge.lint.files import Against, checked, read_document, release_named
from dsforge.lint.reading.kind import document_of
from dsforge.lint.rules.megatron import known_flags

AGAINST = Against(*release_named(None))
SIZES = {
    "--num-layers": "24",
    "--hidden-size": "1024",
    "--num-attention-heads": "16",
    "--micro-batch-size": "4",
    "--pipeline-model-parallel-size": "16",
}


def command(flags: dict[str, str]) -> str:
    """The flags on the command itself."""
    body = " \\\n    ".join(f"{flag} {value}".strip() for flag, value in flags.items())
    return f"#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py \\\n    {body}\n"


def array(flags: dict[str, str]) -> str:
    """The flags in an array, with a remark."""
    body = "\n".join(f"  {flag} {value}  # why" for flag, value in flags.items())
    return f'ARGS=(\n{body}\n  # --not-this 3\n)\ntorchrun pretrain_gpt.py "${{ARGS[@]}}"\n'


def options(flags: dict[str, str]) -> str:
    """The flags in a string of options."""
    body = " \\\n".join(f"   {flag}={value}" if value else flag for flag, value in flags.items())
    return f'options=" \\\n{body} \\\n"\ndeepspeed pretrain_gpt.py $options >log 2>&1\n'


def variables(flags: dict[str, str]) -> str:
    """Each value in a variable."""
    names = {flag: flag.strip("-").upper().replace("-", "_") for flag in flags}
    assigned = "".join(f"export {names[flag]}={value}\n" for flag, value in flags.items() if value)
    using = {flag: f'"${{{names[flag]}}}"' if value else "" for flag, value in flags.items()}
    return assigned + command(using)


FORMS = (command, array, options, variables)
FLAGS = st.dictionaries(
    st.sampled_from(sorted(known_flags())),
    st.one_of(st.just(""), st.integers(0, 9999).map(str), st.sampled_from(["cosine", "1e-4"])),
    min_size=1,
    max_size=12,
)


@given(FLAGS, st.sampled_from(FORMS))
def test_flags_are_the_same_in_every_form(flags: dict[str, str], form: object) -> None:
    """On the command, in an array, in a string, and with values in variables."""
    read = arguments_of(form(flags))  # type: ignore[operator]
    values = {k: v for k, v in read.values.items() if k != "--nproc_per_node" or k in flags}

    assert values == flags


@given(FLAGS, st.sampled_from(FORMS))
def test_marks_are_where_the_flags_stand(flags: dict[str, str], form: object) -> None:
    """The text between the marks is the flag."""
    text = form(flags)  # type: ignore[operator]
    for (flag,), mark in arguments_of(text).marks.items():
        assert text[mark.key_start : mark.key_end] == flag


UNKNOWN = {
    "an argument": "TP=$1\n",
    "a default": "TP=${TP:-4}\n",
    "a command": "TP=$(nvidia-smi -L | wc -l)\n",
    "arithmetic": "TP=$((2 * 4))\n",
    "a branch": "if [ $1 = 7b ]; then TP=2\nelse TP=4\nfi\n",
    "the environment": "",
    "itself": "TP=$TP\n",
    "a sum": "TP=2\nTP+=3\n",
}


@pytest.mark.parametrize("assigned", UNKNOWN.values(), ids=UNKNOWN)
def test_what_a_script_computes_is_unknown(assigned: str) -> None:
    """No value is guessed, and no rule takes an unknown one for a small or missing one."""
    flags = {**SIZES, "--tensor-model-parallel-size": "$TP", "--sequence-parallel": ""}
    flags["--pipeline-model-parallel-size"] = "4"
    document = document_of("run.sh", assigned + command(flags))

    assert document.kind == "megatron"
    assert document.root["--tensor-model-parallel-size"] is None
    assert [f for f in checked(document, AGAINST) if f.severity != "info"] == []


BRANCHES = {
    "strings": 'if [ $1 = a ]; then\n  O="--fp16"\nelse\n  O="--bf16"\nfi\n',
    "cases": 'case $1 in\n  a) O="--fp16";;\n  b) O="--bf16";;\nesac\n',
    "commands": "if [ $1 = a ]\nthen\n  run --fp16\nelif true; then run --bf16\nfi\n",
    "arrays": "O=(--fp16)\nO=(--bf16)\n",
    "a sum": "O=(--bf16)\nif true; then O+=(--fp16); fi\n",
}


@pytest.mark.parametrize("text", BRANCHES.values(), ids=BRANCHES)
def test_branches_exclude_each_other(text: str) -> None:
    """One of the precisions is used, and which is not known: neither both nor none is said."""
    flags = {**SIZES, "--pipeline-model-parallel-size": "4"}
    document = document_of("run.sh", text + command(flags))

    assert {"--fp16", "--bf16"} & document.uncertain
    assert [f for f in checked(document, AGAINST) if f.severity != "info"] == []


def test_what_follows_a_branch_is_certain() -> None:
    """After its end both are given."""
    text = "if true; then x=1; fi\n" + command({**SIZES, "--fp16": "", "--bf16": ""})

    assert "megatron-precision" in {f.rule for f in checked(document_of("a.sh", text), AGAINST)}


@pytest.mark.parametrize("form", FORMS)
def test_a_fault_is_named_at_its_line(form: object) -> None:
    """24 layers cannot be divided over 16 stages."""
    text = form(SIZES)  # type: ignore[operator]
    (finding,) = [f for f in checked(document_of("run.sh", text), AGAINST) if f.severity == "error"]

    assert finding.rule == "megatron-layers"
    assert "--pipeline-model-parallel-size" in text.splitlines()[finding.line - 1]


def test_a_slip_is_named_and_a_flag_of_the_program_is_not() -> None:
    """Two letters are a slip; a longer difference may be a flag that the program adds."""
    flags = {**SIZES, "--pipeline-model-parallel-size": "4", "--lr-decay-stile": "cosine"}
    flags["--tokenizer-prompt-format"] = "x"
    found_rules = [
        (f.rule, f.path) for f in checked(document_of("run.sh", command(flags)), AGAINST)
    ]

    assert found_rules == [("megatron-flag-misspelt", "--lr-decay-stile")]


def test_sizes_from_a_checkpoint_are_no_fault() -> None:
    """-1 is what scripts write that take the model from its checkpoint."""
    flags = dict.fromkeys(SIZES, "-1")

    assert [f.rule for f in checked(document_of("run.sh", command(flags)), AGAINST)] == []


def test_flags_of_the_deepspeed_fork_are_known() -> None:
    """And its pipelines may be uneven."""
    text = command({**SIZES, "--lr-warmup-tokens": "3000", "--moe-loss-coeff": "0.1"})
    text += " --deepspeed --deepspeed_config x.json"

    assert checked(document_of("run.sh", text.replace("\n --deep", " --deep")), AGAINST) == ()


def test_a_fork_with_flags_of_its_own_is_said_once() -> None:
    """Nine findings about flags of another program help nobody."""
    flags = {**SIZES, "--pipeline-model-parallel-size": "4", **{f"--own-{n}": "" for n in "abcd"}}
    (finding,) = checked(document_of("run.sh", command(flags)), AGAINST)

    assert (finding.rule, finding.severity) == ("megatron-flag-misspelt", "info")


def test_other_scripts_are_declined_in_one_line(tmp_path: Path) -> None:
    """Named, one line says why; in a folder nothing does."""
    path = tmp_path / "train.sh"
    path.write_text("#!/bin/bash\npython train.py --output_dir x --learning_rate 1e-4\n")
    (finding,) = checked(read_document(path), AGAINST)

    assert (finding.rule, finding.severity) == ("kind-unknown", "info")
    assert "a script without arguments of Megatron-LM" in finding.message
    assert [f.path for f in Bounds().found([tmp_path])] == [path]


def test_what_a_command_reads_is_no_flag() -> None:
    """Lines between `<<EOF` and its end are a document, terminated or not."""
    text = "cat <<EOF > x\n--a 1\nEOF\nrun --b 2\ncat <<'X'\n--c 3\n"

    assert arguments_of(text).values == {"--b": "2"}


HOSTILE = {
    "flags": "--a " * 100_000,
    "quotes": '"' * 400_000,
    "commands": "$(" * 200_000,
    "documents": "<<A\n" * 100_000,
    "variables": "A=$A\n" * 80_000 + "run --x $A\n",
    "chain": "".join(f"A{n}=$A{n + 1}\n" for n in range(9_000)) + "run --x $A0\n",
    "backquotes": "`" * 400_001,
    "brackets": "(" * 400_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_script_takes_bounded_time(text: str) -> None:
    """Half a megabyte of anything is read within seconds."""
    begun = time.monotonic()
    checked(document_of("run.sh", text), AGAINST)

    assert time.monotonic() - begun < 5.0


def _flagged(program: str, flag: str) -> list[str]:
    """How bad an unknown flag is in a script that starts a program."""
    text = command(SIZES).replace("pretrain_gpt.py", program) + f"    {flag} 1\n"
    found = checked(document_of("run.sh", text.replace("\n    --", " \\\n    --")), AGAINST)
    return [f.severity for f in found if f.rule == "megatron-flag-misspelt"]


@pytest.mark.parametrize("program", ["finetune_gpt.py", "examples/x/train_own.py", "$DIR/run.py"])
def test_a_program_of_others_may_add_flags(program: str) -> None:
    """What looks like a slip is a warning there; a number behind a known flag is none at all."""
    assert _flagged(program, "--seq-lenght") == ["warning"]
    assert _flagged(program, "--data-path2") == []


@pytest.mark.parametrize("program", ["pretrain_gpt.py", "Megatron-LM/pretrain_t5.py"])
def test_a_slip_stops_the_programs_of_megatron(program: str) -> None:
    """Their parser refuses it."""
    assert _flagged(program, "--seq-lenght") == ["error"]
