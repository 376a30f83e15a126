"""Secrets are masked wherever they stand, and nothing else is."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from secret_forms import HARMLESS, planted

from dsforge.masking import SET, is_secret, masked, masked_document, masked_value

FORMS = 52
SEEDS = [*range(10 * FORMS), *(pytest.param(n, marks=pytest.mark.slow) for n in range(1000, 2000))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_secret_is_masked_and_its_name_stays(seed: int) -> None:
    """In every form; masking twice changes nothing more."""
    given_ = planted(seed)

    shown = masked(f"a line before\n{given_.text}\nand one after")

    assert given_.secret not in shown
    assert SET in shown
    assert given_.name in shown
    assert shown.startswith("a line before\n")
    assert shown.endswith("\nand one after")
    assert masked(shown) == shown


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_none_stays(text: str) -> None:
    """A diagnosis lives on these lines."""
    assert masked(text) == text
    assert masked(f"[rank0]: {text}\n") == f"[rank0]: {text}\n"


@given(st.text(max_size=300))
def test_any_text_is_answered(text: str) -> None:
    """No exception, and masking is final."""
    shown = masked(text)
    assert masked(shown) == shown


@pytest.mark.parametrize("seed", range(FORMS))
def test_a_document_keeps_its_shape(seed: int) -> None:
    """Values, keys and elements of lists are masked; numbers and names stay."""
    given_ = planted(seed)
    document = {
        "lines": [given_.text, 3, None],
        "environment": {"HF_TOKEN": given_.secret, "RANK": "0"},
        "listed": [{"name": "API_KEY", "value": given_.secret}],
        "command": ["train", "--token", given_.secret, "--steps", "3"],
        given_.text: True,
    }

    shown = masked_document(document)

    assert given_.secret not in str(shown)
    assert shown["lines"][1:] == [3, None]
    assert shown["environment"] == {"HF_TOKEN": SET, "RANK": "0"}
    assert shown["command"] == ["train", "--token", SET, "--steps", "3"]


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "MAX_TOKENS", "PASSES", "AUTHOR", "KEYBOARD"])
def test_names_that_only_look_like_it(name: str) -> None:
    """A value under such a name stays."""
    assert not is_secret(name)
    assert masked_value(name, "/some/where") == "/some/where"


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "a",
            "a b ",
            "key=",
            '"',
            "eyJ",
            'token=\\"',
            "mysql ",
            "://a:",
            "cookie ",
            "'--",
            "a=b,",
        ),
        *(
            "HF_TOKEN | ",
            "HF_TOKEN\t",
            "name: HF_TOKEN ",
            "<key>",
            "token: |\n ",
            "echo token-stdin ",
        ),
        *(
            "login('",
            "password is ",
            "'HF_TOKEN', ",
            '"token" :\n ',
            "A(A(token='",
            "value name=key",
        ),
        *("https://hooks.slack.com/services/a/", "'username':'", "['AAAA']='"),
    ],
)
def test_masking_takes_linear_time(piece: str) -> None:
    """Nothing that a log can hold makes it slow."""
    text = piece * (200_000 // len(piece))
    begin = time.monotonic()
    masked(text)

    assert time.monotonic() - begin < 8


LINE = "loading shard 3 of 12 from the disk, 1,234 rows read, 5.6 GB left by rank 7\n"
MB_PER_S = 4.0  # far below what is there, for a machine that does other things, too


@pytest.mark.parametrize("seed", range(2 * FORMS))
def test_a_long_log_is_masked_like_a_short_text(seed: int) -> None:
    """Where only some of its lines are looked at, they are the right ones."""
    given_ = planted(seed)
    text = f"{LINE * 900}{given_.text}\n{LINE * 900}"

    assert masked(text) == f"{LINE * 900}{masked(given_.text)}\n{LINE * 900}"


@pytest.mark.parametrize(
    "secret",
    [
        "password:\n  hunter2hunter2",
        "HF_TOKEN=\n\nhf_abcdefghijklmnopqrstuv",
        'API_KEY="' + "hunter2\n" * 300 + '"',
        "machine x\n login u\n password hunter2hunter2",
        "-----BEGIN PRIVATE KEY-----\n" + "hunter2\n" * 300 + "-----END PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\n" + "hunter2\n" * 300,
    ],
)
def test_a_secret_of_several_lines_is_masked_as_one(secret: str) -> None:
    """In a log of many blocks, too."""
    shown = masked(f"{LINE * 900}{secret}\n{LINE * 900}")

    assert masked(secret) in shown
    assert ("hunter2" in shown) == ("hunter2" in masked(secret))


@pytest.mark.parametrize(
    "line", [LINE, "node1: NCCL INFO Channel 00/0 : 3[3] -> 4[4] via NET/IB\n"]
)
def test_a_log_of_many_megabytes_is_masked_quickly(line: str) -> None:
    """Ordinary lines cost next to nothing."""
    text = line * (8_000_000 // len(line))
    begin = time.process_time()

    assert masked(text) == text
    assert time.process_time() - begin < len(text) / 1e6 / MB_PER_S


@pytest.mark.parametrize("prefix", ["", "u", "b"])
def test_names_in_strings_of_any_kind_are_masked(prefix: str) -> None:
    """As Python prints bytes, and as its second version printed all texts."""
    shown = masked(f"{{{prefix}'hf_token': {prefix}'Pr1v4teV4lue', 'a': 1}}")

    assert "Pr1v4teV4lue" not in shown
    assert "'a': 1" in shown


def test_a_name_behind_the_broken_quote_of_another_is_masked_too() -> None:
    """The value of the first ends where the quote of the second begins."""
    shown = masked("'token:'['token':Pr1v4teV4lue")

    assert "Pr1v4teV4lue" not in shown
    assert masked(shown) == shown
