"""Which of two packages is too new, where a name or a setting is missing: see releases.py.

The names without a release were looked up in transformers 5.23, accelerate 1.15, peft 0.21, torch
2.13, deepspeed 0.19, datasets 5.2, pydantic 2.14 and packaging 26.3 (November 2026): what those
have is missing in older ones, what they lack is gone in newer ones.
"""

from __future__ import annotations

import re

from dsforge.diagnose.known_packages import distribution_of
from dsforge.diagnose.release_history import (
    EXPORTED,
    PACKAGES,
    Life,
    architecture,
    export,
    family_of,
    has_owner,
    is_constant,
    lives,
    other_owners,
    releases_read,
    spelling,
)
from dsforge.diagnose.releases import (
    CAME,
    RENAMED,
    SETTINGS_CAME,
    SETTINGS_WENT,
    WENT,
    release_of,
)
from dsforge.diagnose.rule import MatchedLine
from dsforge.diagnose.source_lines import called_in, source_line, with_source
from dsforge.diagnose.unknown_errors import calling_package, search_terms, unknown_error

NOTHING_KNOWN = "# then install the version of {package} that the importing package asks for"
OWN_KINDS = ("Trainer", "Arguments", "Config")  # classes of packages that projects derive from


def import_conflict(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The package that lacks a name, which way its version is off, and what to install."""
    values = hits[0].values
    top, _, module = values["module"].partition(".")
    name, package = values["name"], distribution_of(top) or top
    importer = unknown_error(hits)["raised"].partition(" ")[0]
    other = distribution_of(importer) if importer != top else ""
    place = re.search(r"' \((/[^()\n]{1,300}|[A-Z]:[^()\n]{1,300})\)", hits[0].text)
    life = export(package, module, name)
    came, went = (release_of(name, names.get(top, {})) for names in (CAME, WENT))
    came, went = life.came or came, life.went or went
    if came and went:
        direction = (
            f"{package} is too new for the code that uses it, most likely "
            f"(`{name}` is in releases from {came} on and below {went})"
        )
        remedy = f"$ pip install '{package}>={came},<{went}'   # or newer code"
    elif came is not None:
        since = f" (`{name}` came with {came})" if came else ""
        direction = f"{package} is too old for the code that uses it{since}"
        wanted = f"'{package}>={came}'" if came else package
        remedy = f"$ pip install --upgrade {wanted}   # on every node"
    elif went is not None:
        until = f" (`{name}` is in releases below {went})" if went else ""
        direction = f"{package} is too new for the code that uses it{until}"
        older = f"pip install '{package}<{went}'" if went else f"an older release of {package}"
        alone = f"$ {older}" if went else f"# {older}"
        remedy = f"$ pip install --upgrade {other}\n# or: {older}" if other else alone
    else:
        direction = _likely(package, name, f"{top}.{module}".rstrip("."))
        older = f"$ pip install --upgrade {other}   # what imports it; else an older {package}"
        remedy = older if other else NOTHING_KNOWN.format(package=package)
    return {"package": package, "top": top, "direction": direction, "remedy": remedy,
            "importer": other, "place": place[1] if place else ""}  # fmt: skip


def _likely(package: str, name: str, module: str) -> str:
    """The direction that the form of an unlisted name tells; empty where it tells none."""
    if name.startswith("_") and not name.startswith("__"):
        return f"most likely {package} is too new: it drops private names without notice"
    if package == "transformers" and name.startswith(("TF", "Flax")):
        return "most likely transformers is too new: 5.0 dropped TensorFlow and Flax"
    if module == package in PACKAGES:
        return _unlisted(package, name)
    return ""


def _unlisted(package: str, name: str) -> str:
    """What it means that a package of which releases were read has no such change on record."""
    first, last = releases_read(package)
    if right := spelling(package, name):
        return f"most likely it is misspelt: {package} has `{right}` (the names are case-sensitive)"
    if is_constant(package, name):
        return (
            f"every release of {package} from {first} to {last} has it, so the installed one is "
            "older, its installation is damaged, or what it needs (torch) cannot be imported"
        )
    if package == "transformers" and name.endswith(EXPORTED):
        return "most likely transformers is too old: it is the class of a newer model"
    return (
        f"no release of {package} from {first} to {last} has it, so the code was written for a "
        "changed copy of the package (in the project's own repository), or a newer one"
    )


def argument_conflict(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """Which release a call was written for, by what is known of the argument and of the callee."""
    known, values = with_source(hits), hits[0].values
    name = values.get("name") or next(iter(values.get("names", "").split("'")[1::2]), "")
    owner = _callee(values.get("function") or "", known["source"])
    kind, _, what = hits[0].text.strip().partition(": ")
    raising = known["raised"].partition(" ")[0]
    facts = {**known, "owner": owner, "search": search_terms(kind, what, raising)}
    life = next(iter(lives("arguments", owner, name)), Life("", "", ""))
    holder = life.package or has_owner("arguments", owner)
    new = RENAMED.get(name, "") if life.went or not holder else ""
    facts |= {"came": life.came, "went": life.went, "holder": holder, "renamed": new}
    facts["call"] = "missing" if " missing " in hits[0].text else "unexpected"
    facts |= {"caller": known["package"] or raising, "own": "" if raising else known["frame"]}
    others = other_owners("arguments", name)
    facts["elsewhere"] = ", ".join(others[:3])
    if holder and not life.came and not life.went:
        facts["first"], facts["last"] = releases_read(holder)
    return facts


def _callee(function: str, source: str) -> str:
    """The class or function that was called: by its qualified name, else by the source line."""
    path = function.split(".")
    if path[-1] in ("__init__", "init") and len(path) > 1:  # some pages drop the underscores
        return path[-2]
    if path[-1] in ("__init__", ""):
        return called_in(source).rpartition(".")[2]
    return path[-1] if len(path) == 1 else function


def attribute_conflict(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """Which way a version is off, where an object lacks an attribute."""
    return _attribute(hits, hits[0].values["owner"].rpartition(".")[2])


def wrapper_conflict(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The same for the class that wraps a model."""
    return _attribute(hits, hits[0].values["wrapper"])


def _attribute(hits: tuple[MatchedLine, ...], owner: str) -> dict[str, str]:
    """The history of an attribute, where the asking code is not of the package that lacks it."""
    name = hits[0].values["name"]
    facts = {**calling_package(hits), "source": source_line(hits[0].before)}
    raising = facts["raised"].partition(" ")[0]
    base = family_of(owner)
    found = lives("attributes", owner, name) or (lives("attributes", base, name) if base else [])
    copied = owner.endswith("Trainer") and not name.startswith("_")  # projects have their own
    unsure = not raising and copied
    taken = found and raising != found[0].package and not unsure
    life = found[0] if taken else Life("", "", "")
    facts |= {"came": life.came, "went": life.went, "holder": life.package}
    facts["expected_by"] = raising if owner.endswith(OWN_KINDS) and raising in PACKAGES else ""
    return facts | {"caller": raising, "own": "" if raising else facts["frame"]}


def architecture_release(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The release of transformers that brought the architecture of a model."""
    kind = hits[0].values.get("kind") or ""
    return {**unknown_error(hits), "came": architecture(kind) if kind else ""}


def setting_conflict(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """Which way TRL's version is off, where a configuration lacks a setting, and what to do."""
    owner, name = hits[0].values["owner"], hits[0].values["name"]
    came = release_of(name, SETTINGS_CAME.get(owner, {}))
    went = release_of(name, SETTINGS_WENT.get(owner, {}))
    if came is not None:
        direction = f"TRL is older than the script: the setting came with {came}"
        return {"direction": direction, "remedy": f"$ pip install --upgrade 'trl>={came}'"}
    if went is not None:
        new = RENAMED.get(name)
        change = f"{new}=...    # in place of {name}" if new else f"# drop {name} from the script"
        direction = f"TRL is newer than the script: the setting is gone since {went}"
        return {"direction": direction, "remedy": f"{change}\n# or: pip install 'trl<{went}'"}
    return {"direction": "", "remedy": ""}
