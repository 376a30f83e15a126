"""Tensors that are computed again: what their shapes say, and which remedy they leave."""

from __future__ import annotations

import pytest

from dsforge.diagnose import diagnose_text

CHECKPOINT = (
    "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the "
    "following tensors have different metadata than during the forward pass.\n"
    "saved metadata: {{'shape': torch.Size({}), 'dtype': torch.{}}}\n"
    "recomputed metadata: {{'shape': torch.Size({}), 'dtype': torch.{}}}"
)


def answer(text: str) -> tuple[str, str]:
    """Message and fix of the first answer."""
    cause = diagnose_text(text)[0]
    return cause.message, cause.fix


@pytest.mark.parametrize(
    ("first", "again", "said", "remedy"),
    [
        (("[2048]", "bfloat16"), ("[0]", "bfloat16"), "released", "use_reentrant"),
        (("[1, 12, 171, 64]", "half"), ("[1, 12, 342, 64]", "half"), "cache", "use_cache"),
        (("[99, 5120]", "half"), ("[98, 5120]", "half"), "by chance", "router"),
        (("[64, 64]", "float32"), ("[64, 64]", "bfloat16"), "the type was", "autocast"),
    ],
)
def test_a_recomputed_tensor_says_why_it_differs(
    first: tuple[str, str], again: tuple[str, str], said: str, remedy: str
) -> None:
    """Only the remedy that fits the difference is left."""
    message, fix = answer(CHECKPOINT.format(*first, *again))
    remedies = ("use_reentrant", "use_cache", "autocast", "router")

    assert said in message
    assert [word for word in remedies if word in fix] == [remedy]
