"""What can be said of an error that no rule knows: whose line raised it, and what to search for.

The deepest frame of the user's own code is where to look first; the deepest package is whose
version matters; the message without its numbers and paths is what others have reported.
"""

from __future__ import annotations

import re

from dsforge.diagnose.known_packages import distribution_of, optional_module
from dsforge.diagnose.line_forms import exception_in
from dsforge.diagnose.rule import MatchedLine
from dsforge.diagnose.traceback_frames import Frame, begins_with_place, frames

_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\](?P<package>[A-Za-z_]\w{0,60})")
_FOREIGN = re.compile(
    r"[/\\]lib(?:64)?[/\\]python\d|[/\\]bin[/\\]|^<|transformers_modules|"
    r"(?i:\\(?:python\d{1,4}|(?:ana|mini)conda\d?|\.?v?env|envs\\[^\\\n]{1,60})\\(?:lib|scripts)\\)"
)
_VARIABLE = re.compile(r"'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"|`[^`\n]{0,200}`|\S*/\S*|\S*\d\S*")
_ASSERTED = re.compile(r"\bassert ([^\n,]{1,160}? % [^\n,]{1,80} == 0)")
_ADVICE = re.compile(  # a sentence of a message that says what to do
    r"(?:^|[.;!,:] +|\bso )(?P<advice>(?:[Pp]lease|[Tt]ry|[Cc]onsider|[Ii]nstead|[Mm]ake sure|"
    r"[Ee]nsure|[Ee]ither|[Yy]ou (?:should|need to|can|must|may)|Add|Call|Choose|Disable|Enable|"
    r"Increase|Install|Pass|Reduce|Remove|Re-?run|[Ss]et|Specify|Switch|Update|Upgrade|[Uu]se) "
    r"[^\n]{4,200})"
)
_WORDS = 8  # of a message that are searched for


def unknown_error(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The user's deepest frame, the last one, the package that raised, and search terms."""
    hit = hits[0]
    is_place = begins_with_place(hit.text)  # of a traceback that breaks off
    places = frames(f"{hit.before}\n{hit.text}" if is_place else hit.before)
    own = [f for f in places if not _INSTALLED.search(f.file) and not _FOREIGN.search(f.file)]
    package = _package(places)
    version = _version(hit.before, package)
    raised = f"{package} {version}".strip() if package else ""
    return {
        "frame": str(own[-1]) if own else "",
        "last": str(places[-1]) if places else "",
        "raised": raised,
        "package": distribution_of(package) if package else "",
        "search": search_terms(*_said(hit), package),
        "advice": _advice(message_of(hit)),
    }


def _advice(what: str) -> str:
    """What the message itself says to do; empty where it does not."""
    found = _ADVICE.search(what)
    return found["advice"].strip(" .") if found else ""


def message_of(hit: MatchedLine) -> str:
    """What an exception says after its name."""
    return _said(hit)[1] or hit.values.get("what", "")


def _said(hit: MatchedLine) -> tuple[str, str]:
    """The exception's name and its message."""
    found = exception_in(hit.text)
    if "kind" in hit.values or found is None:
        return hit.values.get("kind", ""), hit.values.get("what", "")
    return found["kind"], found["what"]


def calling_package(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The package whose frame called what another release has renamed."""
    values = unknown_error(hits)
    kind, _, what = hits[0].text.strip().partition(": ")
    raising = values["raised"].partition(" ")[0]
    return {**values, "search": search_terms(kind, what, raising)}


def undefined_name(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The module that an undefined name is imported from, beside what is known of any error."""
    module = optional_module(hits[0].values["name"])
    known = unknown_error(hits)
    return {**known, "module": module, "package": distribution_of(module) or known["package"]}


def unpicklable(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """What cannot be pickled, and the user's line that leads there."""
    values = unknown_error(hits)
    return {"frame": values["frame"]}


def assertion(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """What the last assertion before a bare AssertionError asks for, and where it stands."""
    asserted = _ASSERTED.findall(hits[0].before)
    return {"asserted": asserted[-1] if asserted else "", "frame": unknown_error(hits)["frame"]}


def missing_submodule(hits: tuple[MatchedLine, ...]) -> dict[str, str]:
    """The installed package that lacks a module, and who imports it."""
    values = unknown_error(hits)
    top = hits[0].values["module"].partition(".")[0]
    known = distribution_of(top)
    look, upgrade = f"$ pip show {known}", f"$ pip install --upgrade {known}"
    if not known:
        look = f"$ python -c 'import {top}; print({top}.__file__)'"
        upgrade = f"# upgrade what provides `{top}`"
    frame = values["frame"] or values["raised"]
    return {"package": known or top, "look": look, "upgrade": upgrade, "frame": frame}


def search_terms(kind: str, what: str, package: str) -> str:
    """The words of an error that others will have seen, too."""
    name = kind.rpartition(".")[2]
    words = _VARIABLE.sub(" ", what).split()[:_WORDS]
    text = " ".join([name, *words]).strip(" :,.;")
    return f"{text} {package}".strip()


def _package(places: list[Frame]) -> str:
    """The package of the deepest frame that belongs to one."""
    named = [found["package"] for f in places if (found := _INSTALLED.search(f.file))]
    return named[-1] if named else ""


def _version(before: str, package: str) -> str:
    """The version of a package, where the log says it."""
    if not package:
        return ""
    name = re.escape(package).replace("_", "[-_]")
    found = re.search(
        rf"\b{name}(?:==|[ :=]{{1,3}}(?:version[ :=]{{1,3}})?v?)(\d{{1,4}}\.\d[\w.+]{{0,20}})",
        before,
        re.IGNORECASE,
    )
    return found[1] if found else ""
