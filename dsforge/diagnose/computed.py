"""The functions that rules name in `compute`: values that patterns alone cannot give.

Each takes the hits of one rule, first line first, and returns values for its templates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dsforge.diagnose.collective_timeout import collective_timeout, interface, ranks_joined
from dsforge.diagnose.compiler_errors import build_failure
from dsforge.diagnose.config_values import batch, key_above
from dsforge.diagnose.data_formats import data_format
from dsforge.diagnose.data_schemas import schema_facts
from dsforge.diagnose.exit_codes import exit_report
from dsforge.diagnose.known_packages import (
    extension_package,
    install_module,
    install_version,
    top_package,
    version_needed,
)
from dsforge.diagnose.log_context import last_frames
from dsforge.diagnose.memory_moments import device_memory, host_memory
from dsforge.diagnose.missing_headers import missing_header
from dsforge.diagnose.moved_names import (
    architecture_release,
    argument_conflict,
    attribute_conflict,
    import_conflict,
    setting_conflict,
    wrapper_conflict,
)
from dsforge.diagnose.offered_names import named_thing
from dsforge.diagnose.recomputed_tensors import recomputed
from dsforge.diagnose.requirements import requirement
from dsforge.diagnose.rule import Case, MatchedLine, compiled
from dsforge.diagnose.sizes import (
    batch_facts,
    channel_facts,
    divisors,
    mask_places,
    matrix_facts,
    pair_facts,
    shape_facts,
    tensor_facts,
)
from dsforge.diagnose.source_lines import argument_count, none_expression, with_source
from dsforge.diagnose.tensor_names import converter_tensor
from dsforge.diagnose.unknown_errors import (
    assertion,
    calling_package,
    missing_submodule,
    undefined_name,
    unknown_error,
    unpicklable,
)
from dsforge.diagnose.write_places import write_place
from dsforge.diagnose.xid_codes import xid_meaning

COMPUTED: dict[str, Callable[[tuple[MatchedLine, ...]], dict[str, str]]] = {
    function.__name__: function
    for function in (
        architecture_release,
        argument_conflict,
        argument_count,
        assertion,
        attribute_conflict,
        batch,
        batch_facts,
        build_failure,
        calling_package,
        channel_facts,
        missing_submodule,
        collective_timeout,
        converter_tensor,
        data_format,
        device_memory,
        divisors,
        exit_report,
        extension_package,
        host_memory,
        import_conflict,
        install_module,
        install_version,
        interface,
        key_above,
        missing_header,
        mask_places,
        matrix_facts,
        named_thing,
        none_expression,
        pair_facts,
        ranks_joined,
        recomputed,
        requirement,
        schema_facts,
        setting_conflict,
        shape_facts,
        tensor_facts,
        top_package,
        undefined_name,
        unknown_error,
        unpicklable,
        version_needed,
        write_place,
        xid_meaning,
        wrapper_conflict,
        with_source,
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


NO_CASE = Case(when={}, hits=())


def case_of(hit: MatchedLine, values: Mapping[str, str]) -> Case:
    """The first case of a hit's rule that fits what the log tells; one that says nothing else."""
    if not hit.rule.cases:
        return NO_CASE
    known = {**values, "frames": f"{last_frames(hit.before)}\n{hit.text}"}
    logs = (hit.before, f"{hit.before}\n{hit.text}\n{hit.after}")  # patterns may ask for the end

    def tells(name: str, pattern: str) -> bool:
        texts = logs if name == "log" else (known.get(name, ""),)
        return any(compiled(pattern).search(text) for text in texts)

    fitting = (
        case
        for case in hit.rule.cases
        if all(tells(name, pattern) for name, pattern in case.when.items())
    )
    return next(fitting, NO_CASE)
