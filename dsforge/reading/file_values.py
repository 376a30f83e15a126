"""Values as people write them in files: counts, lengths, words and time limits of Slurm."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Discriminator, Field

from dsforge.specs import SLURM_NAME, SLURM_TIME
from dsforge.units import parse_count


def _count(value: Any) -> Any:
    """A count such as `2b` or `1e9` as a whole number; anything else as it is."""
    if isinstance(value, str):
        return parse_count(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _limit(value: Any) -> Any:
    """A time limit as Slurm writes it; a whole number is one of minutes."""
    if type(value) is int and value >= 0:
        return str(value)
    if isinstance(value, str) and not re.fullmatch(SLURM_TIME, value):
        raise ValueError("must be minutes, H:M:S or D-H:M:S, such as 12:00:00")
    return value


def _word(value: Any) -> Any:
    """A name of Slurm, which becomes a word of a script."""
    if isinstance(value, str) and not re.fullmatch(SLURM_NAME, value):
        raise ValueError("must be letters, digits and _.,+@- without a leading dash")
    return value


def _length(value: Any) -> Any:
    """A length or a batch: as a count, but `8k` is 8192, as such sizes are meant."""
    return parse_count(value, thousand=1024) if isinstance(value, str) else _count(value)


def _is_text(value: Any) -> str:
    """The branch of a union of text and mapping; its name never shows in messages."""
    return "<mapping>" if isinstance(value, (dict, BaseModel)) else "<text>"


Count = Annotated[int, BeforeValidator(_count, json_schema_input_type=int | str)]
Length = Annotated[int, BeforeValidator(_length, json_schema_input_type=int | str)]
NAME_OR_MAPPING = Discriminator(_is_text)
_Name = Annotated[str, Field(pattern=SLURM_NAME, max_length=200)]
_Time = Annotated[str, Field(pattern=SLURM_TIME, max_length=20)]
Word = Annotated[str | None, BeforeValidator(_word, json_schema_input_type=_Name | None)]
Limit = Annotated[str | None, BeforeValidator(_limit, json_schema_input_type=_Time | int | None)]
