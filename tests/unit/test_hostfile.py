"""The hostfile: what is read, what is refused and with which line, and the round trip."""

from __future__ import annotations

import pytest

from dsforge.errors import SpecError
from dsforge.hostfile import MAX_SLOTS, is_address, parse_hostfile
from dsforge.specs import Host

REFUSED = {
    "no slots": ("10.0.0.1", "hostfile-line"),
    "junk behind the slots": ("10.0.0.1 slots=8 max=9", "hostfile-line"),
    "comment behind the slots": ("10.0.0.1 slots=8 # fast", "hostfile-line"),
    "space around the sign": ("10.0.0.1 slots = 8", "hostfile-line"),
    "negative slots": ("10.0.0.1 slots=-1", "hostfile-line"),
    "fraction of a slot": ("10.0.0.1 slots=1.5", "hostfile-line"),
    "arabic digits": ("10.0.0.1 slots=\N{ARABIC-INDIC DIGIT EIGHT}", "hostfile-line"),
    "control character": ("10.0.0.1\x07 slots=8", "host-name"),
    "vertical tab as a line end": ("10.0.0.1 slots=8\x0b10.0.0.2 slots=8", "hostfile-line"),
    "no slots at all": ("10.0.0.1 slots=0", "host-slots"),
    "too many slots": (f"10.0.0.1 slots={MAX_SLOTS + 1}", "host-slots"),
    "slots of a thousand digits": (f"10.0.0.1 slots={'9' * 1000}", "host-slots"),
    "option of ssh": ("-oProxyCommand=reboot slots=8", "host-name"),
    "command substitution": ("$(reboot) slots=8", "host-name"),
    "backquotes": ("`reboot` slots=8", "host-name"),
    "quotes": ("'10.0.0.1' slots=8", "host-name"),
    "semicolon": ("a;reboot slots=8", "host-name"),
    "slash": ("../etc slots=8", "host-name"),
    "cyrillic letter": ("n\N{CYRILLIC SMALL LETTER O}de slots=8", "host-name"),
    "name too long": (f"{'a.' * 130}a slots=8", "host-name"),
    "user": ("root@10.0.0.1 slots=8", "host-user"),
    "octet above 255": ("10.0.0.256 slots=8", "host-address"),
    "three octets": ("10.0.1 slots=8", "host-address"),
    "leading zero": ("10.0.0.01 slots=8", "host-address"),
    "unspecified address": ("0.0.0.0 slots=8", "host-address"),
    "multicast address": ("224.0.0.1 slots=8", "host-address"),
    "zone of an IPv6 address": ("fe80::1%eth0 slots=8", "host-name"),
}


def test_comments_and_blank_lines_are_passed_over() -> None:
    """DeepSpeed ignores comment and blank lines, with any line ending, and so do we."""
    text = "# ours\r\n\r\n10.0.0.1 slots=8\r\n  # second\n\tnode-2\t slots=04 \n"

    assert parse_hostfile(text, "hostfile") == (
        Host(address="10.0.0.1", slots=8),
        Host(address="node-2", slots=4),
    )


@pytest.mark.parametrize(("line", "rule"), REFUSED.values(), ids=REFUSED)
def test_a_bad_line_is_refused_with_its_number(line: str, rule: str) -> None:
    """What could mean something else than it says is refused, with file and line."""
    with pytest.raises(SpecError) as caught:
        parse_hostfile(f"# one\n{line}\n", "hostfile")

    assert [p.rule for p in caught.value.problems] == [rule]
    assert caught.value.problems[0].place == "hostfile:2"
    assert str(caught.value.problems[0]).isprintable()


def test_every_bad_line_is_reported_at_once() -> None:
    """Four bad lines are four problems in one error."""
    text = "10.0.0.1 slots=0\nroot@h slots=8\n10.0.0.2\n10.0.0.3 slots=8\n10.0.0.3 slots=8\n"

    with pytest.raises(SpecError) as caught:
        parse_hostfile(text, "hostfile")

    assert {p.place for p in caught.value.problems} == {f"hostfile:{n}" for n in (1, 2, 3, 5)}


@pytest.mark.parametrize("second", ["10.0.0.1", "::ffff:0:1", "NODE"], ids=str)
def test_a_host_is_named_once(second: str) -> None:
    """Two spellings of one host are the same host."""
    first = {"::ffff:0:1": "::FFFF:0000:0001", "NODE": "node"}.get(second, second)

    with pytest.raises(SpecError, match="1 problem") as caught:
        parse_hostfile(f"{first} slots=1\n{second} slots=1\n", "hostfile")

    assert caught.value.problems[0].rule == "host-twice"
    assert "hostfile:1" in caught.value.problems[0].message


def test_a_user_name_moves_to_the_cluster_file() -> None:
    """`user@host` is refused with the line to write instead."""
    with pytest.raises(SpecError) as caught:
        parse_hostfile("ubuntu@10.0.0.1 slots=8", "hostfile")

    assert "ssh_user: ubuntu" in caught.value.problems[0].hint


@pytest.mark.parametrize("loopback", ["127.0.0.1", "::1", "localhost"])
def test_loopback_names_one_host_only(loopback: str) -> None:
    """Each of several hosts would reach itself under a loopback address."""
    alone = parse_hostfile(f"{loopback} slots=2", "hostfile")

    with pytest.raises(SpecError) as caught:
        parse_hostfile(f"{loopback} slots=2\n10.0.0.2 slots=2", "hostfile")

    assert alone[0].slots == 2
    assert caught.value.problems[0].rule == "host-loopback"


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"], ids=["empty", "blank", "comments"])
def test_a_hostfile_without_hosts_is_refused(text: str) -> None:
    """DeepSpeed would train on the local machine only; we say so."""
    with pytest.raises(SpecError) as caught:
        parse_hostfile(text, "hostfile")

    assert caught.value.problems[0].rule == "hostfile-empty"


@pytest.mark.parametrize(
    ("host", "expected"),
    [("10.0.0.1", True), ("::1", True), ("node1", False), ("10.0.0.256", False), ("", False)],
)
def test_addresses_are_told_from_names(host: str, expected: bool) -> None:
    """IPv4 and IPv6 addresses are addresses; anything else is a name."""
    assert is_address(host) is expected
