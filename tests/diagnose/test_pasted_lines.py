"""Errors as people paste them: in backticks, without their exception, as a notebook prints them."""

from __future__ import annotations

import pytest

from dsforge.diagnose import diagnose_text
from dsforge.diagnose.quoted_messages import quoted


def first(text: str) -> str:
    """The rule that answers first; empty where none does."""
    causes = diagnose_text(text)
    return causes[0].rule if causes else ""


ERRORS = (
    ("AttributeError: 'GenerationConfig' object has no attribute 'top_q'", "renamed-attribute"),
    ("ValueError: Adapter lora_a does not exist", "adapter-unknown"),
    ("ValueError: warmup_steps and warmup_ratio are mutually exclusive", "requirement-not-met"),
)


@pytest.mark.parametrize(("error", "rule"), ERRORS)
def test_a_line_that_is_all_code_is_read_as_its_content(error: str, rule: str) -> None:
    """With backticks around it or without, and with words before it where it names its kind."""
    assert first(error) == rule
    assert first(f"`{error}`") == rule
    assert first(f"Error:\n`{error}`") == rule


@pytest.mark.parametrize(
    "message",
    [
        "'Seq2SeqTrainingArguments' object has no attribute 'ddp_backend'",
        "'DynamicCache' object is not subscriptable",
    ],
)
def test_a_message_without_its_exception_is_read(message: str) -> None:
    """Titles of reports leave out the exception's name; the words are its own."""
    assert first(message) == first(f"AttributeError: {message}") != ""


@pytest.mark.parametrize("arrow", ["--> 117 ", "---> 17 ", "-> [117](vscode-cell:?line=117) "])
def test_the_line_that_a_notebook_points_at_is_of_the_traceback(arrow: str) -> None:
    """What stands there tells a batch of images from any other unpacking."""
    frame = (
        "/venv/lib/python3.10/site-packages/transformers/models/vit/modeling_vit.py in forward(x)"
    )
    source = f"{arrow}        batch_size, num_channels, height, width = pixel_values.shape"
    other = f"{arrow}        loss, logits, extra, more = model(batch)"
    error = "ValueError: too many values to unpack (expected 4)"

    assert first(f"{frame}\n{source}\n{error}") == "pixel-dimensions"
    assert first(f"{frame}\n{other}\n{error}") == "unpack-count"


@pytest.mark.parametrize("indent", [2, 3, 4, 8])
def test_a_source_that_lost_some_of_its_indent_is_of_the_traceback(indent: int) -> None:
    """What indented lines of other programs say is not."""
    source = " " * indent + "scores = scores + attention_mask"
    noise = "  Downloading attention_mask-1.0.tar.gz (1.3 MB)"
    error = "RuntimeError: The size of tensor a (35) must match the size of tensor b (70) at"
    error = f"{error} non-singleton dimension 3"

    assert first(f"{source}\n{error}") == "tensor-sizes-differ"
    assert first(f"{noise}\n{error}") == "tensor-shape"


@pytest.mark.parametrize("length", [45, 60, 76])
def test_a_long_name_that_a_terminal_moved_to_the_next_line_is_read(length: int) -> None:
    """The line before it ends early, as the name had no room there."""
    name = "layers." * (length // 7)
    shapes = "torch.Size([4, 8]) from checkpoint, the shape in current model is torch.Size([4, 9])."
    rest = f"{name}weight: copying a param with shape"

    assert first(f"        size mismatch for {rest} {shapes}") == "shape-mismatch"
    assert first(f"        size mismatch for\n{rest}\n{shapes}") == "shape-mismatch"


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("quirk needs a frob. Please pass `frob=1` to it.", "Please pass `frob=1` to it"),
        ("`quirk` must be set first; use `set_quirk()` instead", "use `set_quirk()` instead"),
    ],
)
def test_what_a_message_advises_is_in_the_fix(message: str, advice: str) -> None:
    """An error that no rule knows may say itself what to do."""
    assert advice in diagnose_text(f"ValueError: {message}")[0].fix


def test_a_message_without_advice_gives_none() -> None:
    """Nothing is invented, and no empty line stands in the fix."""
    fix = diagnose_text("ValueError: num_quirks must be greater than 0 (got 0)")[0].fix

    assert "the message itself says" not in fix


def test_the_command_for_a_missing_submodule_can_be_run() -> None:
    """Its words are words of a shell, not one quoted name."""
    fix = diagnose_text("ModuleNotFoundError: No module named 'transformers.modeling_layers'")[
        0
    ].fix

    assert "$ pip show transformers " in fix


MESSAGES = (
    ("ModuleNotFoundError", "No module named 'deepspeed'"),
    ("AttributeError", "'DummyOptim' object has no attribute 'step'"),
    ("AttributeError", "Can't pickle local object 'main.<locals>.collate_fn'"),
    ("TypeError", "cannot pickle 'generator' object"),
    ("TypeError", "__init__() got an unexpected keyword argument 'use_frob'"),
    ("UnpicklingError", "invalid load key, '<'."),
    ("RuntimeError", "The size of tensor a (514) must match the size of tensor b (512)"),
    ("RuntimeError", "shape '[2, 512, 32, 128]' is invalid for input of size 1048576"),
    ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (4x1024 and 4096x64)"),
)


@pytest.mark.parametrize(("kind", "message"), MESSAGES)
def test_a_message_is_read_in_prose_and_in_titles(kind: str, message: str) -> None:
    """With its exception in backticks or as a title; and without it, behind a label."""
    rule = first(f"{kind}: {message}")

    assert rule
    assert first(f"I get this error `{kind}: {message}` when I start on 8 GPUs.") == rule
    assert first(f"[Bug]: {kind}: {message}") == rule
    assert first(f"[BUG] {message}") == rule
    assert first(message) == rule


def test_a_title_that_says_what_was_changed_is_no_failure() -> None:
    """Unless the message itself begins with such a verb."""
    batch = "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu "
    batch += "* gradient_acc_step * world_size 16 != 2 * 1 * 1"

    assert first("Fix CUDA out of memory in evaluation") == ""
    assert first("Handle RuntimeError: CUDA out of memory") == ""
    assert first(batch) == first(f"AssertionError: {batch}") == "batch-world-size-one"


RANK = """\
[{rank}]:
  time      : 2026-05-07_10:11:12
  host      : node-1
  rank      : {rank} (local_rank: {rank})
  exitcode  : -{code} (pid: 81{rank})
  error_file: <N/A>
  traceback : Signal {code} ({signal}) received by PID 81{rank}
"""
RULER = "-" * 60 + "\n"
SIGNALS = {"killed": (9, "SIGKILL"), "bus-error": (7, "SIGBUS"), "aborted": (6, "SIGABRT"),
           "segmentation-fault": (11, "SIGSEGV"), "terminated": (15, "SIGTERM")}  # fmt: skip


def rank_ended(rank: int, rule: str) -> str:
    """The part of torchrun's table on a rank that ended by the signal of a rule."""
    code, signal = SIGNALS[rule]
    return RANK.format(rank=rank, code=code, signal=signal)


def table(root: str, other: str) -> str:
    """What torchrun prints where the first rank ended by one signal, another by the other."""
    return (
        f"train.py FAILED\n{RULER}Failures:\n{rank_ended(1, other)}{RULER}"
        f"Root Cause (first observed failure):\n{rank_ended(0, root)}{RULER}"
    )


@pytest.mark.parametrize("other", SIGNALS)
@pytest.mark.parametrize("root", ["killed", "bus-error", "aborted", "segmentation-fault"])
def test_the_root_cause_of_torchruns_table_answers(root: str, other: str) -> None:
    """It stands below the other ranks, which ended because of it."""
    assert first(table(root, other)) == root


def test_what_another_table_says_is_kept() -> None:
    """A run that was started again and failed in another way."""
    causes = diagnose_text(
        f"{table('segmentation-fault', 'aborted')}again\n{table('killed', 'aborted')}"
    )

    assert {"segmentation-fault", "killed"} <= {cause.rule for cause in causes}
    assert "aborted" not in {cause.rule for cause in causes}


@pytest.mark.parametrize(
    "said",
    [
        "No module named after a person is used here.",
        "No module named deepspeed is needed for CPU inference",
        "[Answer] No module named 'deepspeed' means that pip installed it elsewhere.",
        "[Docs] name 'x' is not defined, chapter 3 of the Python course",
        "load_dataset() takes 10 minutes the first time and is cached afterwards",
        "forward() takes 2 arguments: input ids and a mask.",
        "cannot import name resolution is lazy",
        "module torch has no attribute compile before 2.0",
        "unsupported operand type(s) for +: 'int' and 'str' is the classic error of beginners.",
    ],
)
def test_prose_with_words_of_a_message_is_none(said: str) -> None:
    """A message without its exception is the whole line, or says at most where it came."""
    assert first(said) == ""


def test_what_was_met_before_does_not_replace_the_error_of_a_log() -> None:
    """The exception at the end of the traceback is why this run ended."""
    text = (
        "The run crashed. Before that I had `ModuleNotFoundError: No module named 'deepspeed'`.\n"
        'Traceback (most recent call last):\n  File "/w/a.py", line 3, in main\n'
        "    check()\nValueError: bad setting foo"
    )

    assert "bad setting foo" in diagnose_text(text)[0].evidence[0].text


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("I get `ValueError: `foo` is not a `bar` value` in `eval`", "`foo` is not a `bar` value"),
        ("Why `ValueError: no foo`-like errors with deepspeed?", "no foo"),
        ("I get `ValueError: set `a`` with the run", "set `a`"),
    ],
)
def test_a_quotation_ends_with_its_quote(said: str, message: str) -> None:
    """Quotes within it stand in pairs."""
    assert quoted(said) == [f"ValueError: {message}"]


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 0 has a total "
OOM += "capacity of 24.00 GiB of which {} GiB is free. Of the allocated memory {} GiB is allocated "
OOM += "by PyTorch, and 0.10 GiB is reserved by PyTorch but unallocated."


def test_figures_of_memory_are_read_over_broken_lines() -> None:
    """As a terminal has cut the message, at any blank."""
    whole = diagnose_text(OOM.format(2, 1, 12))[0]
    broken = diagnose_text(OOM.format(2, 1, 12).replace(" of which", " of\nwhich"))[0]

    assert "other processes hold about" in whole.message
    assert broken.message == whole.message


def test_lines_of_others_are_no_part_of_a_message() -> None:
    """What follows a whole sentence was printed by somebody else."""
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    other = "loader cache; 1.00 GiB used\nhost; 0.50 GiB free"

    assert diagnose_text(f"{said}\n{other}")[0].message == diagnose_text(said)[0].message


def test_ranks_that_share_a_card_are_no_other_processes() -> None:
    """Four ranks report; the message does not say what each holds beside torch's pool."""
    lines = "\n".join(f"[rank{rank}]: {OOM.format(2, 1, 5)}" for rank in range(4))

    assert "other processes" not in diagnose_text(lines)[0].message


def test_what_no_card_could_hold_is_said() -> None:
    """A single allocation that is larger than the device."""
    message = diagnose_text(OOM.format(26, 22, 1))[0].message

    assert "more than the whole device has, 24.0 GiB" in message
