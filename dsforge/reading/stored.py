"""Stored: what dsforge itself has written as JSON and reads again, perhaps from somebody else."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from dsforge.errors import DsforgeError
from dsforge.outside import UnreadableError, json_value, read_text
from dsforge.plan import Plan

MAX_BYTES = 32 << 20  # a plan has 200 KB
NONE = "give a plan.json, or the folder that `dsforge gen --out` wrote"
AGAIN = "written by another version of dsforge: run `dsforge gen` again"

Stored = TypeVar("Stored", bound=BaseModel)


def read_plan(path: Path) -> Plan:
    """The plan in a `plan.json`. Raises DsforgeError where it is none."""
    return read_stored(Plan, path, AGAIN if path.is_file() else NONE)


def read_stored(kind: type[Stored], path: Path, hint: str) -> Stored:
    """The value of that type in a JSON file. Raises DsforgeError, with the hint."""
    try:
        text = read_text(path, MAX_BYTES)
        json_value(text)  # every number of it is finite, which the types do not ask for
        return kind.model_validate_json(text)
    except UnreadableError as error:
        raise DsforgeError(f"{path} {error.reason}", hint) from error
    except ValidationError as error:
        what = f"{path} is not a {kind.__name__} ({error.error_count()} problems)"
        raise DsforgeError(what, hint) from error
