"""What a refused ds_config should have said: batch arithmetic, and the key above a complaint."""

from __future__ import annotations

from dsforge.diagnose.rule import MatchedLine

LONGEST = 20  # digits of a number that a config can mean
_BLOCKS = {
    "DeepSpeedZeroConfig": "zero_optimization",
    "DeepSpeedFP16Config": "fp16",
    "DeepSpeedBF16Config": "bf16",
}  # pydantic names the class


def batch(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The arithmetic, with the batch that would be right."""
    values = dict(hits[0].values)
    right = int(values["micro"]) * int(values["steps"]) * int(values["world"])
    return {**values, "right": str(right)}


def key_above(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The key that pydantic names on the line above its complaint, and the block it stands in."""
    hit = hits[0]
    lines = [line.strip() for line in hit.before.splitlines() if line.strip()][-4:]
    key = lines[-1].rsplit(" ", 1)[-1] if lines else ""
    values = {**hit.values, "key": key, "block": ""}
    for line in lines[:-1]:
        if "validation error" in line:
            name = line.rsplit(" ", 1)[-1]
            values["block"] = f" in {_BLOCKS.get(name, name)}"
    number = values.get("value") or ""
    values["value"] = number or "a value of another type"
    digits = number.replace(".", "", 1).replace("e+", "", 1)
    whole = digits.isdigit() and len(digits) <= LONGEST
    values["rounded"] = str(int(float(number))) if whole else "a whole number"
    return values
