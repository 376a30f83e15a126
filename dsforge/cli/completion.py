"""Values that the shell completes on TAB: names of the catalog, and the words that a key allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

if TYPE_CHECKING:
    import click


def complete(
    setting: tuple[str, ...], _: click.Context, __: click.Parameter, begun: str
) -> list[str]:
    """The values that begin so, of the key of a spec file that an option stands for."""
    return [value for value in _values(setting) if value.startswith(begun.lower())]


def _values(setting: tuple[str, ...]) -> Iterator[str]:
    """All values of a key; none where any text is one."""
    from dsforge import catalog
    from dsforge.programs import NAMES as PROGRAMS
    from dsforge.reading.files import WorkloadFile
    from dsforge.specs import LoraSpec
    from dsforge.strategy import Constraints
    from dsforge.targets import BY_NAME as TARGETS

    match setting:
        case ("model",):
            yield from catalog.model_names()
        case ("cluster", "gpu"):
            yield from catalog.gpu_names()
        case ("cluster", "intra_node" | "inter_node"):
            yield from catalog.link_names()
        case ("workload", "lora", key):
            yield from _words(LoraSpec.model_fields[key].annotation)
        case ("workload", key):
            yield from _words(WorkloadFile.model_fields[key].annotation)
        case ("strategy", key):
            yield from _words(Constraints.model_fields[key].annotation)
            yield from dict.fromkeys((*PROGRAMS, *TARGETS)) if key == "back_end" else ()


def _words(annotation: Any) -> Iterator[str]:
    """The words of the `Literal` types in an annotation."""
    for part in get_args(annotation):
        if get_origin(annotation) is Literal:
            yield str(part)
        else:
            yield from _words(part)
