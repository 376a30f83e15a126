"""Properties of the readers over generated hosts and configs."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dsforge import catalog
from dsforge.errors import SpecError
from dsforge.estimate.params import parameters
from dsforge.hostfile import MAX_SLOTS, hostfile_text, parse_hostfile
from dsforge.huggingface import config_from_model, model_from_config
from dsforge.huggingface.architecture import ARCHITECTURES
from dsforge.specs import Host

BUILDABLE = [name for name in catalog.model_names() if catalog.model(name).model_type]
ONE_OF_EACH = sorted({catalog.model(name).model_type: name for name in BUILDABLE}.values())
STRANGE = (
    *(None, True, 0, 1, 64, -1, 1.5, 10**12, 10**400, float("inf"), "", "x"),
    *([], [1], [[]], [[["global"], 3]], ["full_attention"], {}, {"rope_theta": "x"}),
)
KEYS = sorted(
    {key for name in ONE_OF_EACH for key in config_from_model(catalog.model(name))}
    | {"layer_types", "mlp_only_layers", "text_config", "rope_parameters", "feed_forward_proj"}
)

names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True).filter(
    lambda name: not name.isdigit() and name != "localhost"
)
addresses = st.one_of(
    st.ip_addresses(network="10.0.0.0/8").map(str),
    st.ip_addresses(network="2001:db8::/32").map(str),
    names,
)
hosts = st.lists(
    st.builds(Host, address=addresses, slots=st.integers(1, MAX_SLOTS)),
    min_size=1,
    max_size=8,
    unique_by=lambda host: host.address,
).map(tuple)


@settings(max_examples=50, deadline=None)
@given(hosts)
def test_hosts_survive_the_round_trip(written: tuple[Host, ...]) -> None:
    """Hosts -> text -> hosts is the identity."""
    assert parse_hostfile(hostfile_text(written), "hostfile") == written


@settings(max_examples=100, deadline=None, database=None)
@given(
    st.sampled_from([*ARCHITECTURES, "brandnew", None, 7]),
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(STRANGE), max_size=4),
)
def test_no_config_makes_a_traceback(model_type: object, strange: dict[str, Any]) -> None:
    """Any value at any key of any architecture gives a countable model or its problems."""
    outcome: int | tuple = 0
    try:
        outcome = parameters(model_from_config({"model_type": model_type, **strange}, "x"))
    except SpecError as error:
        outcome = error.problems

    assert outcome
