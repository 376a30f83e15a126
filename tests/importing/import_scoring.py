"""How often an imported setup is right, on public files whose setups were written down beforehand.

    python tests/importing/import_scoring.py            # the table, and what differs
    python tests/importing/import_scoring.py --write    # the table into docs/import-accuracy.md

`corpus/*.jsonl` has a file in each line: where it was published, under which licence, when a person
read it and wrote its setup down (`judged`, `expect`), and its text in a reduced form.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dsforge.errors import SpecError
from dsforge.importing.files import Files
from dsforge.importing.forms import Source
from dsforge.importing.read import ImportedSetup, read_setup

CORPUS = Path(__file__).parent / "corpus"
PAGE = Path(__file__).parents[2] / "docs" / "import-accuracy.md"
PARALLEL = ("tensor", "pipeline", "context", "expert")
QUANTITIES = {
    "ZeRO stage": ("zero_stage",),
    "offload": ("offload",),
    "parallel sizes": ("parallel",),
    "effective batch": ("samples_per_replica", "global_batch_size"),
    "precision": ("precision",),
    "adapters": ("adapter",),
}
HEAD = """# Accuracy of `dsforge import`

Made by `python tests/importing/import_scoring.py --write` from {files} public files of
{repositories} repositories, kept in a reduced form in `tests/importing/corpus` (without comments;
private paths and long texts replaced; of files without a licence only what the verdicts are about)
beside what a person wrote down on reading each: ZeRO stage (or what does the same), offload,
sizes of tensor, pipeline, context and expert parallelism, the effective batch (per
data-parallel rank, and of all where the ranks are known), precision, and adapters. "Not known" is a
value, too: where only the launch decides, the reader must say so.

A file is right where all six quantities are. Each part was collected and written down before the
readers saw it, scored, and then taught from: the tables show the readers of today, the first scores
stand under History.

"""


class Case(NamedTuple):
    """One public file, and the part of the corpus that it belongs to."""

    part: str
    row: dict[str, Any]

    @property
    def name(self) -> str:
        """The file as messages name it."""
        return f"{self.row['repository']}/{self.row['path']}"


class _Corpus(Files):
    """The files of one case: one is named, others lie beside it."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__({row["path"]: row["text"]})
        self._others = row.get("beside", {})

    def _looked_up(self, name: str) -> Source | None:
        base = name.rpartition("/")[2]
        found = (Source(key, text) for key, text in self._others.items())
        return next((source for source in found if source.base == base), None)


def cases() -> Iterator[Case]:
    """Every file of the corpus."""
    for path in sorted(CORPUS.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield Case(path.stem, json.loads(line))


def read_case(case: Case) -> ImportedSetup:
    """What the reader makes of a case. Raises SpecError."""
    return read_setup(_Corpus(case.row))


def values_of(found: ImportedSetup) -> dict[str, Any]:
    """The six quantities of a setup, as the corpus writes them."""
    setup = found.setup
    places = (setup.offload_optimizer != "none", setup.offload_parameters != "none")
    offload = {(False, False): "none", (True, False): "optimizer", (False, True): "parameters"}
    return {
        "zero_stage": setup.zero_stage,
        "offload": offload.get(places, "both"),
        "parallel": [getattr(setup, f"{axis}_parallel_size") for axis in PARALLEL],
        "samples_per_replica": found.samples_per_replica,
        "global_batch_size": setup.effective_batch_size,
        "precision": setup.precision,
        "adapter": setup.adapter,
    }


def differences(case: Case) -> dict[str, str]:
    """Quantities that differ from what was written down, with both values; all where none is."""
    try:
        found = values_of(read_case(case))
    except SpecError as error:
        return dict.fromkeys(QUANTITIES, str(error.problems[0]))
    wanted = case.row["expect"]
    return {
        name: f"{[wanted[key] for key in keys]} was read as {[found[key] for key in keys]}"
        for name, keys in QUANTITIES.items()
        if any(wanted[key] != found[key] for key in keys)
    }


def all_scored() -> list[tuple[Case, dict[str, str]]]:
    """Every case with its differences."""
    return [(case, differences(case)) for case in cases()]


def table(results: list[tuple[Case, dict[str, str]]]) -> str:
    """Files, files that are right, and each quantity, for each style."""
    styles = Counter(case.row["style"] for case, _ in results)
    lines = ["| Style | Files | Right | " + " | ".join(QUANTITIES) + " |", "|---" * 9 + "|"]
    for style in [*sorted(styles), ""]:
        here = [wrong for case, wrong in results if style in ("", case.row["style"])]
        right = [sum(name not in wrong for wrong in here) for name in QUANTITIES]
        whole = sum(not wrong for wrong in here)
        cells = [style or "all", str(len(here)), f"{whole} ({whole / len(here):.0%})"]
        lines.append("| " + " | ".join([*cells, *map(str, right)]) + " |")
    return "\n".join(lines) + "\n"


def page(results: list[tuple[Case, dict[str, str]]]) -> str:
    """The page of the documentation."""
    repositories = {case.row["repository"] for case, _ in results}
    text = HEAD.format(files=len(results), repositories=len(repositories))
    judged = {case.part: str(case.row["judged"]) for case, _ in reversed(results)}
    for part in sorted(judged, key=lambda each: judged[each]):
        here = [(case, wrong) for case, wrong in results if case.part == part]
        days = sorted({str(case.row["judged"])[:10] for case, _ in here})
        text += f"## {part.replace('_', ' ').capitalize()}, judged {days[0]}\n\n{table(here)}\n"
    return text + (CORPUS / "history.md").read_text(encoding="utf-8")


def main() -> None:
    """Print or write the table; name what differs."""
    results = all_scored()
    if "--write" in sys.argv:
        PAGE.write_text(page(results), encoding="utf-8")
        return
    print(table(results))
    for case, wrong in results:
        for name, text in wrong.items():
            print(f"{case.name}: {name}: {text}")


if __name__ == "__main__":
    main()
