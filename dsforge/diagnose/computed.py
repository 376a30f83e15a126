"""The functions that rules name in `compute`: values that patterns alone cannot give.

Each takes the hits of one rule, first line first, and returns values for its templates.
"""

from __future__ import annotations

from collections.abc import Callable

from dsforge.diagnose.collective_timeout import collective_timeout, interface
from dsforge.diagnose.config_values import batch, key_above
from dsforge.diagnose.exit_codes import exit_report
from dsforge.diagnose.known_packages import (
    extension_package,
    install_module,
    install_version,
    top_package,
    version_needed,
)
from dsforge.diagnose.memory_moments import device_memory, host_memory
from dsforge.diagnose.moved_names import import_conflict, setting_conflict
from dsforge.diagnose.rule import MatchedLine
from dsforge.diagnose.unknown_errors import (
    assertion,
    calling_package,
    missing_submodule,
    undefined_name,
    unknown_error,
    unpicklable,
)

COMPUTED: dict[str, Callable[[tuple[MatchedLine, ...]], dict[str, str]]] = {
    function.__name__: function
    for function in (
        assertion,
        batch,
        calling_package,
        missing_submodule,
        collective_timeout,
        device_memory,
        exit_report,
        extension_package,
        host_memory,
        import_conflict,
        install_module,
        install_version,
        interface,
        key_above,
        setting_conflict,
        top_package,
        undefined_name,
        unknown_error,
        unpicklable,
        version_needed,
    )
}


def values_of(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """What a rule's templates are filled with: the first line, completed by later ones."""
    rule = hits[0].rule
    values = dict(hits[0].values)
    for hit in hits[1:]:
        values.update({name: text for name, text in hit.values.items() if not values.get(name)})
    values["phase"] = hits[0].phase
    if hits[0].rank is not None:
        values["rank"] = str(hits[0].rank)
    if rule.compute:
        values.update(COMPUTED[rule.compute](hits))
    return values
