"""Precision and recall of lint on public files whose verdicts were written down beforehand.

    python tests/lint/lint_scoring.py            # the table, and what differs from the verdicts
    python tests/lint/lint_scoring.py --write    # the table into docs/lint-accuracy.md

`corpus/*.jsonl` has a file in each line: where it was published, when it was judged, the errors and
warnings that it should get (`expect`: severity, place, reason), and its text in a reduced form.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dsforge.findings import Finding
from dsforge.lint.files import Against, checked, release_named
from dsforge.lint.reading.kind import document_of

CORPUS = Path(__file__).parent / "corpus"
PAGE = Path(__file__).parents[2] / "docs" / "lint-accuracy.md"
OF_LINES = ("env", "hostfile")  # whose findings have a line and no key
SEVERITIES = ("error", "warning")
HEAD = """# Accuracy of `dsforge lint`

Made by `python tests/lint/lint_scoring.py --write` from {files} public files of {repositories}
repositories, kept in a reduced form in `tests/lint/corpus` (values without comments; secrets and
paths replaced; of files without a licence only what the verdicts are about) beside their verdicts,
each with the time when it was written down.

Errors are judged by the engines: a `ds_config` is read by `DeepSpeedConfig` of DeepSpeed 0.19.8,
its optimizer and schedule by their constructors, an accelerate file by accelerate's config classes,
the flags of a script by the argument parser of its repository. Warnings are judged by a person; for
the first half that person had seen what lint said. The rules were mended after the verdicts on the
first half were written; the second half was collected and judged after that, and the third part
after the mends that the second asked for. What no judge noted counts as no miss.

Right: the finding has a verdict of its severity at its place. Met: the verdict has such a finding.

"""


class Case(NamedTuple):
    """One public file, what it should get, and which half of the corpus it belongs to."""

    half: str
    row: dict[str, Any]

    @property
    def kind(self) -> str:
        """What the file is: a kind of lint, or `other`."""
        return str(self.row["kind"])

    @property
    def name(self) -> str:
        """The file as messages name it."""
        return f"{self.row['repository']}/{self.row['path']}"


class Score(NamedTuple):
    """Findings of one severity: how many there are and are right, expected and met."""

    found: int = 0
    right: int = 0
    expected: int = 0
    met: int = 0

    def __add__(self, other: Any) -> Score:
        """The sum of two scores."""
        return Score(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def precision(self) -> float:
        """Share of the findings that are right; 1 where there are none."""
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """Share of the verdicts that are met; 1 where there are none."""
        return self.met / self.expected if self.expected else 1.0


class Scored(NamedTuple):
    """A file with its scores by severity, its infos, and what differs from the verdicts."""

    case: Case
    scores: dict[str, Score]
    infos: int
    differences: tuple[str, ...]


def cases() -> Iterator[Case]:
    """Every file of the corpus."""
    for path in sorted(CORPUS.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield Case(path.stem, json.loads(line))


def findings_of(case: Case, against: Against) -> list[Finding]:
    """What lint says about a file of the corpus, as in a folder: files of others say nothing."""
    document = document_of(case.name, case.row["text"])
    return [f for f in checked(document, against) if f.rule != "kind-unknown"]


def place(case: Case, finding: Finding) -> str:
    """Where a finding is, as verdicts say it."""
    return f"line:{finding.line}" if case.kind in OF_LINES else finding.path


def is_near(place: str, other: str) -> bool:
    """Whether two places are the same, or one is a block that holds the other."""
    return place == other or place.startswith(other + ".") or other.startswith(place + ".")


def scored(case: Case, against: Against) -> Scored:
    """A file with its scores."""
    found = findings_of(case, against)
    scores: dict[str, Score] = {}
    differences: list[str] = []
    for severity in SEVERITIES:
        here = [f for f in found if f.severity == severity]
        places = [place(case, f) for f in here]
        wanted = [at for level, at, _ in case.row["expect"] if level == severity]
        wrong = [
            f"{severity} {f.rule} at {at!r}: {f.message}"
            for f, at in zip(here, places, strict=True)
            if not any(is_near(at, other) for other in wanted)
        ]
        missed = [at for at in wanted if not any(is_near(at, other) for other in places)]
        scores[severity] = Score(
            len(here), len(here) - len(wrong), len(wanted), len(wanted) - len(missed)
        )
        differences += [f"not expected: {text}" for text in wrong]
        differences += [f"missed: {severity} at {at!r}" for at in missed]
    infos = sum(f.severity == "info" for f in found)
    return Scored(case, scores, infos, tuple(differences))


def all_scored() -> list[Scored]:
    """The whole corpus, against the newest release."""
    against = Against(*release_named(None))
    return [scored(case, against) for case in cases()]


def total(results: Iterable[Scored], severity: str) -> Score:
    """The sum over files."""
    return sum((result.scores[severity] for result in results), Score())


def infos_per_file(results: list[Scored]) -> float:
    """Infos of a file, on average."""
    return sum(result.infos for result in results) / max(len(results), 1)


def table(results: list[Scored]) -> str:
    """The table of all kinds, and one line for both together."""
    heads = ("Files", "Number", "Errors right", "Errors met", "Warnings right", "Warnings met")
    lines = ["| " + " | ".join((*heads, "Infos")) + " |"]
    lines.append("|---|---|---|---|---|---|---|")
    kinds = Counter(result.case.kind for result in results)
    for kind in [*sorted(kinds), ""]:
        here = [result for result in results if kind in ("", result.case.kind)]
        error, warning = (total(here, severity) for severity in SEVERITIES)
        cells = (
            f"`{kind}`" if kind else "all",
            str(len(here)),
            *(_share(*pair) for pair in ((error.right, error.found), (error.met, error.expected))),
            _share(warning.right, warning.found),
            _share(warning.met, warning.expected),
            f"{infos_per_file(here):.2f} a file",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "none"


def page(results: list[Scored]) -> str:
    """The page of the documentation."""
    repositories = {result.case.row["repository"] for result in results}
    text = HEAD.format(files=len(results), repositories=len(repositories))
    for half in dict.fromkeys(result.case.half for result in results):
        here = [result for result in results if result.case.half == half]
        days = sorted({str(result.case.row["judged"]) for result in here})
        text += f"## {half.replace('_', ' ').capitalize()}, judged {days[0]}\n\n{table(here)}\n"
    return text + f"## All\n\n{table(results)}\n{BEFORE}"


BEFORE = (CORPUS / "before.md").read_text(encoding="utf-8")


def main() -> None:
    """Print or write the table; name what differs from the verdicts."""
    results = all_scored()
    if "--write" in sys.argv:
        PAGE.write_text(page(results), encoding="utf-8")
        return
    for result in results:
        for difference in result.differences:
            print(f"{result.case.name}: {difference}")
    print(table(results), end="")


if __name__ == "__main__":
    main()
