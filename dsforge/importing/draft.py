"""Draft: the setup while files are read, with the place of each value and what is left over.

What a file says wins over a program's default, and the default over nothing. What a file says and
nobody can know before the run stays open: then a default would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from dsforge.errors import Problem
from dsforge.importing.values import Value
from dsforge.specs import FROZEN
from dsforge.training_setup import TrainingSetup

Origin = Literal["said", "default", "derived", "named"]
MOST_LOST = 500
COUNTS = (
    *("nodes", "gpus_per_node", "data_parallel_size", "tensor_parallel_size"),
    *("pipeline_parallel_size", "context_parallel_size", "expert_parallel_size", "virtual_stages"),
    *("shard_group", "micro_batch_size", "gradient_accumulation_steps", "global_batch_size"),
    *("sequence_length", "lora_rank"),
)
LARGEST = 10**9


class Said(BaseModel):
    """One value of a setup, and where it comes from."""

    model_config = FROZEN

    field: str = Field(description="Name in the schema of the setup.")
    value: Any = Field(description="What was read for the field.")
    place: str = Field(description="File and line, or the place of the default in the program.")
    origin: Origin = Field(
        description="`said` by a file, the program's `default`, `derived` from other values, or "
        "`named`: taken from the name of a file that was not given."
    )


class Left(BaseModel):
    """A key that a setup has no field for, or a value that only the run knows."""

    model_config = FROZEN

    key: str = Field(description="Key of a file, or flag of a command.")
    value: str = Field(description="What is written there, shortened.")
    place: str = Field(description="File and line of it.")
    reason: str = Field(default="", description="Why it is not in the setup; empty: no field.")


class Draft:
    """A setup in the making."""

    def __init__(self) -> None:
        self.said: dict[str, Said] = {}
        self.open: dict[str, Left] = {}
        self.lost: list[Left] = []
        self._lost: set[tuple[str, str]] = set()
        self.problems: list[Problem] = []

    def value(self, field: str) -> Any:
        """What is known of a field so far."""
        held = self.said.get(field)
        return None if held is None else held.value

    def is_said(self, field: str) -> bool:
        """Whether a file says something about a field, be it open."""
        held = self.said.get(field)
        return field in self.open or (held is not None and held.origin != "default")

    def say(self, field: str, value: Any, place: str, origin: Origin = "said") -> None:
        """A value that a file says."""
        if field in COUNTS and (type(value) is not int or not 0 < value < LARGEST):
            self.problem(
                "value-range", f"{field} (={value!r:.60}) must be a whole number above 0", place
            )
            return
        self.open.pop(field, None)
        self.said[field] = Said(field=field, value=value, place=place, origin=origin)

    def assume(self, field: str, value: Any, source: str) -> None:
        """A program's default, where no file says anything."""
        if field not in self.said and field not in self.open:
            self.said[field] = Said(field=field, value=value, place=source, origin="default")

    def assume_all(self, defaults: Mapping[str, Any], source: str) -> None:
        """Several defaults of one program."""
        for field, value in defaults.items():
            self.assume(field, value, source)

    def leave_open(self, field: str, value: Value, reason: str = "known at run time only") -> None:
        """A value that only the run knows."""
        self.said.pop(field, None)
        self.open[field] = Left(key=field, value=value.shown, place=value.place, reason=reason)

    def whole(self, field: str, value: Value | None, least: int = 1) -> bool:
        """A whole number, where one is written; whether something was."""
        legal = f"a whole number, at least {least}"
        return self._taken(field, value, lambda v: v.whole, legal=legal, least=least)

    def number(self, field: str, value: Value | None) -> bool:
        """A number above 0, where one is written."""
        return self._taken(field, value, lambda v: v.number, legal="a number above 0", least=1e-30)

    def _taken(
        self,
        field: str,
        value: Value | None,
        read: Callable[[Value], float | None],
        *,
        legal: str,
        least: float,
    ) -> bool:
        if value is None:
            return False
        if value.is_open:
            self.leave_open(field, value)
            return True
        number = read(value)
        if number is None or number < least:
            self.problem("value-range", f"{field} (={value.shown}) must be {legal}", value.place)
            return True
        self.say(field, number, value.place)
        return True

    def lose(self, key: str, value: Value, reason: str = "") -> None:
        """A key that the setup has no field for, once for each place."""
        known = (key, value.place) in self._lost
        self._lost.add((key, value.place))
        if len(self.lost) < MOST_LOST and not known:
            self.lost.append(
                Left(key=key[:120], value=value.shown, place=value.place, reason=reason)
            )

    def problem(self, rule: str, message: str, place: str, hint: str = "") -> None:
        """Something wrong with the files."""
        if len(self.problems) < MOST_LOST:
            self.problems.append(Problem(rule, message, hint, place))

    def setup(self) -> TrainingSetup:
        """The setup; what does not fit its field is left out and becomes a problem."""
        values = {name: held.value for name, held in self.said.items()}
        while True:
            try:
                return TrainingSetup(**values)
            except ValidationError as error:
                names = {str(each["loc"][0]) for each in error.errors()}
                for name in names & values.keys():
                    held = self.said.pop(name)
                    message = (
                        f"{name} (={values.pop(name)!r:.60}) is not a value that dsforge knows"
                    )
                    self.problem("value-choice", message, held.place)
