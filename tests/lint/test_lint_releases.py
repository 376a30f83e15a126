"""What is known of the releases of DeepSpeed, and how it is read from their source."""

from __future__ import annotations

import pytest

from dsforge.errors import DsforgeError
from dsforge.lint.files import release_named
from dsforge.lint.schemas.deepspeed_source import extracted
from dsforge.lint.schemas.releases import frozen, merged, number, releases_of

SOURCE = {
    "runtime/constants.py": 'STEPS = "steps"\nSTEPS_DEFAULT = False\nBLOCK = "block"\n',
    "runtime/config.py": """
class Kind(Enum):
    a = "x"
    b = "y"

class Inner(DeepSpeedConfigModel):
    size: int = Field(5, ge=0, alias="stage3_size")
    kind: Kind = "x"

class Model(DeepSpeedConfigModel):
    inner: Optional[Inner] = None
    old: bool = Field(False, json_schema_extra={"deprecated": True, "new_param": "inner"})

def read_block(d):
    return Model(**d.get(BLOCK, {}))

def steps(config, name=STEPS):
    return get_scalar_param(config, name, STEPS_DEFAULT)

class DeepSpeedConfig:
    def __init__(self, config):
        self._initialize_params(config)

    def _initialize_params(self, param_dict):
        self.steps = steps(param_dict)
        self.block = read_block(param_dict)
        plain = param_dict["plain"] if "plain" in param_dict else {}
        self.flag = plain.get("flag", None)
""",
}


def test_extraction_follows_the_config_through_functions() -> None:
    """Keys of dicts and of models are found, with aliases, limits, choices and what replaces."""
    schema = extracted(SOURCE)
    inner = schema.keys[("block", "inner")]

    assert set(schema.keys[()]) == {"steps", "block", "plain"}
    assert schema.keys[()]["steps"].type == "bool"
    assert set(schema.keys[("plain",)]) == {"flag"}
    assert schema.closed == {("block",), ("block", "inner")}
    assert (inner["size"], inner["size"].limits) == (inner["stage3_size"], (("ge", 0),))
    assert inner["kind"].choices == ("x", "y")
    assert schema.keys[("block",)]["old"].deprecated == "inner"


def test_a_key_knows_when_it_came_and_went() -> None:
    """Merging releases gives each key its first and last one."""
    new = SOURCE | {"runtime/config.py": SOURCE["runtime/config.py"].replace('"flag"', '"flags"')}
    known = releases_of(merged({"1.0.0": extracted(SOURCE), "1.1.0": extracted(new)}))
    keys = known.blocks["plain"].keys

    assert (keys["flag"]["until"], keys["flags"]["since"]) == ("1.0.0", "1.1.0")


@pytest.mark.parametrize(
    ("path", "key", "since", "until"),
    [
        ("zero_optimization", "leaf_module", "0.18.0", None),
        ("aio", "thread_count", None, "0.16.3"),
        ("", "tensor_parallel", "0.16.4", None),
        ("", "nebula", None, "0.19.6"),
        ("zero_optimization", "stage", None, None),
    ],
)
def test_the_frozen_releases(path: str, key: str, since: str | None, until: str | None) -> None:
    """Known comings and goings, as read in the releases' own source."""
    life = frozen().blocks[path].keys[key]

    assert (life.get("since"), life.get("until")) == (since, until)


def test_every_minor_release_from_0_14_to_0_19_is_there() -> None:
    """The data covers what the package promises."""
    assert {name.rpartition(".")[0] for name in frozen().names} == {f"0.{n}" for n in range(14, 20)}


def test_a_minor_release_stands_for_its_last_patch() -> None:
    """`0.16` has what 0.16.4 brought."""
    assert number("0.16") > number("0.16.9") > number("0.16.4")


@pytest.mark.parametrize("name", ["0.13", "1.0", "x", "0..1"])
def test_other_releases_are_refused(name: str) -> None:
    """What is not known is not guessed."""
    with pytest.raises(DsforgeError):
        release_named(name)
