"""Errors as people paste them: in backticks, without their exception, as a notebook prints them."""

from __future__ import annotations

import pytest

from dsforge.diagnose import diagnose_text


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


TABLE = """\
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-05-07_10:11:12
  host      : node-1
  rank      : 1 (local_rank: 1)
  exitcode  : {other} (pid: 812)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-05-07_10:11:10
  host      : node-1
  rank      : 0 (local_rank: 0)
  exitcode  : {first} (pid: 811)
  error_file: <N/A>
============================================================
"""


@pytest.mark.parametrize(
    ("code", "other", "rule"),
    [("-9", "-6", "killed"), ("-7", "-11", "bus-error"), ("-9", "-15", "killed")],
)
def test_the_root_cause_of_torchruns_table_answers(code: str, other: str, rule: str) -> None:
    """It stands below the other ranks, which ended because of it."""
    assert first(TABLE.format(first=code, other=other)) == rule


def test_an_error_that_the_last_frame_raises_is_read() -> None:
    """Its message was not pasted, but the source that raises it."""
    frame = '  File "/venv/lib/python3.11/logging/__init__.py", line 194, in _checkLevel\n'

    assert first(f'{frame}    raise ValueError("Unknown level: %r" % level)') == "name-unknown"


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 0 has a total "
OOM += "capacity of 24.00 GiB of which {} GiB is free. Of the allocated memory {} GiB is allocated "
OOM += "by PyTorch, and 0.10 GiB is reserved by PyTorch but unallocated."


def test_figures_of_memory_are_read_over_broken_lines() -> None:
    """As a terminal has cut the message, at any blank."""
    whole = diagnose_text(OOM.format(2, 1, 12))[0]
    broken = diagnose_text(OOM.format(2, 1, 12).replace(" of which", " of\nwhich"))[0]

    assert "other programs hold about" in whole.message
    assert broken.message == whole.message


def test_what_no_card_could_hold_is_said() -> None:
    """A single allocation that is larger than the device."""
    message = diagnose_text(OOM.format(26, 22, 1))[0].message

    assert "more than the whole device has, 24.0 GiB" in message
