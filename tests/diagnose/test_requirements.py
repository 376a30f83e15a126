"""Requirements that programs state are read off their sentences: ours, and of all packages here."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsforge.diagnose import diagnose_text
from dsforge.diagnose.requirement_forms import names_in, requirement_in

PACKAGES = ("transformers", "accelerate", "peft", "deepspeed", "datasets", "huggingface_hub")
READ_AT_LEAST = 0.4  # of the messages that these packages raise

EXAMPLES = [
    ("`num_tiles` (6) must divide the number of rows (32)", "multiple", "`num_tiles` (6)"),
    ("warmup_steps and warmup_ratio are mutually exclusive", "excludes", ""),
    ("You cannot use packing together with group_by_length", "excludes", "group_by_length"),
    ("schedule must be one of ['linear', 'cosine'], got 'cosin'", "choice", "['linear', 'cosine']"),
    ("`rank` must be greater than 0 (got 0)", "bound", "greater than 0 (got 0)"),
    ("freq must be a list of integers, got <class 'str'>", "type", "list of integers"),
    ("key length must match value length", "same", "value length"),
    ("bf16 is required when using the fused kernel", "needs", "bf16"),
    ("Passing in a `Plugin` requires setting `stage`", "needs", "setting `stage`"),
    ("Either input_ids or inputs_embeds must be given", "either", ""),
    ("You must specify reward_funcs or reward_model", "either", ""),
    ("`reward_path` must be specified", "missing", ""),
    ("You didn't pass a dataset_text_field", "missing", ""),
    ("tensor parallelism does not support sequence packing", "unsupported", "tensor parallelism"),
    ("Only fp16 and bf16 are supported", "only", "fp16 and bf16"),
    ("the tracker must be initialized before the first log call", "order", "the first log call"),
    ("Unknown attention type: flash9", "unknown", ""),
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


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_of_a_package_are_read(package: str) -> None:
    """What is read stands in the message, and two in five messages of a package are read."""
    messages = {text for text in raised(package) if len(text.split()) > 2}
    found = {text: requirement_in(text) for text in messages}
    read = {text: one for text, one in found.items() if one}
    assert len(read) >= READ_AT_LEAST * len(messages)
    for text, one in read.items():
        joined = " ".join(text.split())
        assert one.left in joined
        assert one.right in joined
        assert one.given in joined
        assert all(name in joined for name in (*names_in(one.left), *one.choices))


@given(st.text(max_size=2000))
def test_any_text_is_read(text: str) -> None:
    """Nothing that a program prints is an error here."""
    requirement_in(text)


@given(st.lists(st.sampled_from([*"` '\"(),.:[]=-", "must be", "one of", "either", "or", "x_y"])))
def test_words_of_checks_without_sense_are_read_soon(words: list[str]) -> None:
    """The words of the patterns in any order take no long search (Hypothesis's deadline)."""
    requirement_in(" ".join(words * 20))


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("ValueError: `num_tiles` (6) must divide the number of rows (32)", "num_tiles=4 (or 8)"),
        ("ValueError: `mode` must be one of ['fast', 'slow'], got 'fsat'", "mode=fast"),
        ("ValueError: --warmup must be greater than 0, got -1", "--warmup <greater than 0>"),
        ("TypeError: `freq` must be a list of integers, got <class 'str'>", "freq=<list of integ"),
        ("ValueError: `use_x` requires `y_size` to be set", "y_size=<value>"),
    ],
)
def test_the_fix_is_a_setting_that_would_be_accepted(line: str, fix: str) -> None:
    """A check that nobody has seen is answered by its own names and numbers."""
    assert fix in diagnose_text(line)[0].fix
