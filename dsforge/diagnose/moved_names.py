"""Which of two packages is too new, where a name or a setting is missing: see releases.py.

The names without a release were looked up in transformers 5.23, accelerate 1.15, peft 0.21, torch
2.13, deepspeed 0.19, datasets 5.2, pydantic 2.14 and packaging 26.3 (November 2026): what those
have is missing in older ones, what they lack is gone in newer ones.
"""

from __future__ import annotations

from dsforge.diagnose.known_packages import distribution_of
from dsforge.diagnose.releases import (
    CAME,
    RENAMED,
    SETTINGS_CAME,
    SETTINGS_WENT,
    WENT,
    release_of,
)
from dsforge.diagnose.rule import MatchedLine
from dsforge.diagnose.unknown_errors import unknown_error

MODEL_CLASSES = ("ForCausalLM", "ForConditionalGeneration", "Processor", "Config", "VisionModel")


def import_conflict(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The package that lacks a name, which way its version is off, and what to install."""
    values = hits[0].values
    top = values["module"].partition(".")[0]
    package = distribution_of(top) or top
    importer = unknown_error(hits)["raised"].partition(" ")[0]
    other = distribution_of(importer) if importer != top else ""
    came, went = (release_of(values["name"], names.get(top, {})) for names in (CAME, WENT))
    if came is not None:
        since = f" (`{values['name']}` came with {came})" if came else ""
        direction = f"{package} is too old for the code that uses it{since}"
        wanted = f"'{package}>={came}'" if came else package
        remedy = f"$ pip install --upgrade {wanted}   # on every node"
    elif went is not None:
        until = f" (`{values['name']}` is gone since {went})" if went else ""
        direction = f"{package} is too new for the code that uses it{until}"
        older = f"$ pip install '{package}<{went or 'the release that dropped it'}'"
        remedy = f"$ pip install --upgrade {other}\n# or: {older[2:]}" if other else older
    else:
        direction = _likely(package, values["name"])
        remedy = f"# then install the version of {package} that the importing package asks for"
    return {"package": package, "top": top, "direction": direction, "remedy": remedy}


def _likely(package: str, name: str) -> str:
    """The direction that the form of an unlisted name tells; empty where it tells none."""
    if name.startswith("_") and not name.startswith("__"):
        return f"most likely {package} is too new: it drops private names without notice"
    if package == "transformers" and name.startswith(("TF", "Flax")):
        return "most likely transformers is too new: 5.0 dropped TensorFlow and Flax"
    if package == "transformers" and name.endswith(MODEL_CLASSES):
        return "most likely transformers is too old: it is the class of a newer model"
    return ""


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
