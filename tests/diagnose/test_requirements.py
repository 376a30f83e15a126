"""Requirements that programs state are read off their sentences: ours, and of all packages here."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled import each

from dsforge.diagnose import diagnose_text
from dsforge.diagnose.requirement_forms import names_in, requirement_in

PACKAGES = ("transformers", "accelerate", "peft", "deepspeed", "datasets", "huggingface_hub")
READ_AT_LEAST = 0.3  # of the messages that these packages raise

EXAMPLES = [
    ("`num_tiles` (6) must divide the number of rows (32)", "divides", "the number of rows (32)"),
    ("warmup_steps and warmup_ratio are mutually exclusive", "excludes", ""),
    ("You cannot use packing together with group_by_length", "excludes", "group_by_length"),
    ("schedule must be one of ['linear', 'cosine'], got 'cosin'", "choice", "['linear', 'cosine']"),
    ("`rank` must be greater than 0 (got 0)", "bound", "greater than 0 (got 0)"),
    ("freq must be a list of integers, got <class 'str'>", "type", "list of integers"),
    ("bf16 is required when using the fused kernel", "needs", "bf16"),
    ("Passing in a `Plugin` requires setting `stage`", "needs", "setting `stage`"),
    ("Either input_ids or inputs_embeds must be given", "either", ""),
    ("You must specify reward_funcs or reward_model", "either", ""),
    ("`reward_path` must be specified", "missing", ""),
    ("You didn't pass a dataset_text_field", "missing", ""),
    ("tensor parallelism does not support sequence packing", "unsupported", "tensor parallelism"),
    ("Only fp16 and bf16 are supported", "only", "fp16 and bf16"),
    ("`top` cannot be greater than 8, got 9", "beyond", "greater than 8, got 9"),
    ("`rate` must be in [0.0, 1.0), got 1.0", "bound", "in [0.0, 1.0), got 1.0"),
    ("If --overwrite is not set, --output_file must be given", "missing", ""),
]


def raised(package: str) -> Iterator[str]:
    """The messages of the exceptions and assertions in a package's source, values as `{...}`."""
    spec = find_spec(package)
    assert spec
    assert spec.origin
    for file in sorted(Path(spec.origin).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert):
                message = node.msg
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                message = node.exc.args[0]
            else:
                continue
            if isinstance(message, ast.Constant) and isinstance(message.value, str):
                yield message.value
            elif isinstance(message, ast.JoinedStr):
                parts = (part.value for part in message.values if isinstance(part, ast.Constant))
                yield "7".join(map(str, parts))


@pytest.mark.parametrize(("message", "form", "right"), EXAMPLES)
def test_the_forms_of_requirements(message: str, form: str, right: str) -> None:
    """Each form is told from the others, and its sides are parted at the words of the check."""
    found = requirement_in(message)
    assert found is not None
    assert found.form == form
    assert right in found.right


@pytest.mark.parametrize("package", each(4, PACKAGES))
def test_messages_of_a_package_are_read(package: str) -> None:
    """What is read stands in the message, and a third of a package's messages is read."""
    messages = {text for text in raised(package) if len(text.split()) > 2}
    found = {text: requirement_in(text) for text in messages}
    read = {text: one for text, one in found.items() if one}
    assert len(read) >= READ_AT_LEAST * len(messages)
    for text, one in read.items():
        joined = " ".join(text.split())
        assert one.left in joined
        assert one.right in joined
        assert one.given in joined
        assert all(name in joined for name in names_in(one.left))


@given(st.text(max_size=2000))
def test_any_text_is_read(text: str) -> None:
    """Nothing that a program prints is an error here."""
    requirement_in(text)


@given(st.lists(st.sampled_from([*"` '\"(),.:[]=-", "must be", "one of", "either", "or", "x_y"])))
def test_words_of_checks_without_sense_are_read_soon(words: list[str]) -> None:
    """The words of the patterns in any order take no long search (Hypothesis's deadline)."""
    requirement_in(" ".join(words * 20))


NOT_READ_SO = [
    ("One of the workers died and must be restarted", "either"),
    ("backend must be one of nccl, gloo or mpi", "either"),
    ("`sgd` doesn't require `betas`", "needs"),
    ("`max_steps` is required unless `num_train_epochs` is set", "needs"),
    ("`rate` must be in [0, 1], got 1.2", "choice"),
    ("buffer (2) is smaller than window (4)", "bound"),
    ("Expected all tensors to be on the same device", "type"),
]


@pytest.mark.parametrize(("message", "form"), NOT_READ_SO)
def test_what_looks_like_a_form_and_is_another(message: str, form: str) -> None:
    """Sentences that were read the wrong way round, or as something they do not say."""
    found = requirement_in(message)
    assert found is None or found.form != form


FIXES = [
    ("ValueError: `num_tiles` (6) must divide the number of rows (32)", "num_tiles=<4 or 8>"),
    ("ValueError: `mode` must be one of ['fast', 'slow'], got 'fsat'", "mode=fast"),
    ("ValueError: size must be one of (8, 16), got 24", "size=<one of (8, 16)>"),
    ("ValueError: --warmup must be greater than 0, got -1", "--warmup <greater than 0>"),
    ("ValueError: `top` cannot be greater than 8, got 9", "top=<not greater than 8>"),
    ("TypeError: `freq` must be a list of integers, got <class 'str'>", "freq=<list of integ"),
    ("ValueError: `use_x` requires `y_size` to be set", "y_size=<value>"),
    ("ValueError: p_free=True is only supported with impl='flash_2'", "impl='flash_2'"),
    ("ValueError: If --a_b is not set, --c_d must be given", "--c_d <value>"),
    ("ValueError: mode must be 'fast' or 'slow', not 'slwo'", "mode=<one of fast, slow>"),
    ("ValueError: kind must be one of alpha, beta, but got gamma", "kind=<one of alpha, beta>"),
]


@pytest.mark.parametrize(("line", "fix"), FIXES)
def test_the_fix_is_a_setting_that_would_be_accepted(line: str, fix: str) -> None:
    """A check that nobody has seen is answered by its own names and numbers."""
    assert fix in diagnose_text(line)[0].fix.split("\n")[0]


@pytest.mark.parametrize(
    ("line", "harm"),
    [
        ("ValueError: `x_y; reboot` must be set", "reboot"),
        ("ValueError: `mode` must be one of ['$(reboot)', 'b'], got 'c'", "mode="),
        ("ImportError: the fast path requires transformer_engine to be installed", "_engine=<"),
        ("ValueError: this kernel requires sm_90", "sm_90=<"),
        ("RuntimeError: This checkpoint is incompatible with model_type llama", "model_type"),
        ("ValueError: Either the path is wrong or the tokenizer is missing", "path is wrong"),
        ("ValueError: size (48) must be one of (8, 64), got 48", "size=64"),
    ],
)
def test_a_fix_copies_no_more_than_settings(line: str, harm: str) -> None:
    """Neither words of a shell, nor packages or devices as settings, nor guesses of numbers."""
    lines = diagnose_text(line)[0].fix.split("\n")
    assert not any(harm in text for text in lines if not text.startswith("#"))


def test_large_numbers_take_no_time() -> None:
    """Divisors of numbers above a million are not looked for."""
    answer = diagnose_text("ValueError: `num_tiles` (1024) must divide the rows (99999989)")[0]
    assert "num_tiles=" not in answer.fix
