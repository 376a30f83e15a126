"""Errors on each published source with the constants refitted without it.

    python benchmarks/leave_one_out.py             # both tables, hours of one core; prints Markdown
    python benchmarks/leave_one_out.py --write     # also into benchmarks/published/left_out.md
    python benchmarks/leave_one_out.py --jobs 4    # constants and sources shared by four processes

Fitted constants are few and shared by all rows, so a source that took no part in the fit should be
predicted nearly as well as one that did. Each source of `training.csv` and `figures.csv` is left
out in turn, and the constants are refitted on the others by the same rule as on all: sources weigh
the same, absolute errors (reweighted least squares), one Gauss-Newton step in the logarithms of the
constants, which are believed to a third before any row. Predictions are not linear in the
constants, so the step is taken as far as it lowers what it minimizes in the exact predictions of
the sources fitted on: whole, halved up to thrice, or not at all. A constant that almost only the
source tells of becomes neutral without it (a share of 1, a wait of 0): what the model would say had
nobody published that source. Then the source is predicted exactly, with these constants.

Rows of trust C take no part in the fit, as ever, but for `ds-azure`, which the waits of ZeRO-3 rest
on. What is counted or read in a source (kernels, bytes, launches) is no constant of the fit.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from fitted_constants import Fitted, constants, holding, scaled

from dsforge.api.figures import asker
from dsforge.validate import Figure, Row, compared, parse_figures, parse_table, validation

PUBLISHED = Path(__file__).parent / "published"
PAGE = PUBLISHED / "left_out.md"
NUDGE = 0.05  # logarithm of a constant, for its effect on each row
SMALLEST = 0.02  # errors below this weigh alike
ROUNDS = 30
STEPS = (1.0, 0.5, 0.25, 0.125, 0.0)  # shares of a refit's step that are tried
SPREAD = 0.3  # logarithm: what is believed of a constant before any row
BELIEF = 0.07 / 10  # a source is worth ten errors of 7 %
TELLING = 0.02  # least share of what is known of a constant that the others must tell
RISE = 4 / 3  # of a median error
ROUNDING = 5e-4
COLUMNS = ("committed", "refitted", "refitted without it", "rises to")
FITTED_BESIDE = ("ds-azure",)


class Seen(NamedTuple):
    """One published value beside its prediction."""

    table: str
    source: str
    quantity: str
    id: str
    error: float  # logarithm of predicted / published

    @property
    def group(self) -> tuple[str, str, str]:
        """What weighs as one source."""
        return self.table, self.source, self.quantity


class Tables(NamedTuple):
    """What is predicted."""

    rows: tuple[Row, ...]
    figures: tuple[Figure, ...]

    def of(self, table: str, source: str) -> Tables:
        """One source's."""
        if table == "training":
            return Tables(tuple(r for r in self.rows if r.source == source), ())
        return Tables((), tuple(f for f in self.figures if f.source == source))

    def seen(self) -> list[Seen]:
        """Every prediction at the present constants."""
        return [*self._of_rows(), *self._of_figures()]

    def _of_rows(self) -> Iterator[Seen]:
        sources = {row.id: row.source for row in self.rows}
        for row in validation(self.rows).rows if self.rows else ():
            error = math.log(row.predicted / row.measured)
            yield Seen("training", sources[row.id], row.quantity, row.id, error)

    def _of_figures(self) -> Iterator[Seen]:
        if not self.figures:
            return
        ask = asker(PUBLISHED / "figures.csv")
        for row in compared(self.figures, ask).rows:
            if row.quantity != "fits" and row.predicted > 0:
                error = math.log(row.predicted / row.published)
                yield Seen("figures", row.source, "all", row.id, error)


def tables() -> Tables:
    """Both published tables."""
    rows = parse_table((PUBLISHED / "training.csv").read_text(encoding="utf-8"), "training.csv")
    text = (PUBLISHED / "figures.csv").read_text(encoding="utf-8")
    return Tables(tuple(rows), tuple(parse_figures(text, "figures.csv")))


def trusted() -> set[tuple[str, str]]:
    """Sources and quantities of `training.csv` that the constants are fitted on."""
    with (PUBLISHED / "sources.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    column = {"memory": "trust_memory", "step_time": "trust_time"}
    good = {(r["id_prefix"], q) for r in rows for q, c in column.items() if r[c] in ("A", "B")}
    return good | {(name, "step_time") for name in FITTED_BESIDE}


def effects(asked: Tables, fitted: list[Fitted], now: list[Seen], jobs: int = 1) -> np.ndarray:
    """How the logarithm of each prediction moves with that of each constant."""

    def column(place: int) -> list[float]:
        constant = fitted[place]
        down = constant.is_share and constant.size * math.exp(NUDGE) > 1
        nudge = -NUDGE if down else NUDGE
        with holding({0: (constant.value, scaled(constant.value, math.exp(nudge)))}):
            moved = {(s.group, s.id): s.error for s in asked.seen()}
        print(f"{constant.name}: {place + 1} of {len(fitted)}", file=sys.stderr)
        return [(moved.get((s.group, s.id), s.error) - s.error) / nudge for s in now]

    return np.array(shared(column, len(fitted), jobs)).T


def shared(work: Callable[[int], Any], count: int, jobs: int) -> list[Any]:
    """The answers to 0 .. count - 1, worked out by so many copies of this process.

    They are forked, as constants are told apart by being the same object.
    """
    if jobs == 1:
        return [work(place) for place in range(count)]
    _WORK[:] = [work]
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        return pool.map(_do, range(count), chunksize=1)


_WORK: list[Callable[[int], Any]] = []


def _do(place: int) -> Any:
    return _WORK[0](place)


def weights_of(now: Iterable[Seen], kept: Iterable[bool]) -> np.ndarray:
    """1 for each source and quantity, shared by its rows; 0 for what is not fitted on."""
    pairs = list(zip(now, kept, strict=True))
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    for seen, _ in pairs:
        counts[seen.group] += 1
    return np.array([keep / counts[seen.group] for seen, keep in pairs])


def refit(
    errors: np.ndarray, moves: np.ndarray, weights: np.ndarray, *, spread: float = SPREAD
) -> np.ndarray:
    """Logarithms by which the constants change so that weighted absolute errors are least."""
    found = np.zeros(moves.shape[1])
    believed = BELIEF / spread**2 * np.eye(moves.shape[1])
    for _ in range(ROUNDS):
        left = np.abs(errors + moves @ found)
        each = weights / np.maximum(left, SMALLEST)
        weighted = moves * each[:, None]
        found = np.linalg.solve(moves.T @ weighted + believed, -weighted.T @ errors)
    return found


class LeftOut(NamedTuple):
    """Median errors of one source and quantity: as committed, refitted with it and without."""

    group: tuple[str, str, str]
    rows: int
    committed: float
    refitted: float
    left_out: float
    neutral: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the median rises by at most a third, to a tenth of a percent."""
        return self.left_out <= RISE * self.refitted + ROUNDING


Medians = dict[tuple[str, str, str], float]


class Fit(NamedTuple):
    """All that a refit needs."""

    asked: Tables
    fitted: list[Fitted]
    now: list[Seen]
    moves: np.ndarray
    good: set[tuple[str, str]]
    spread: float

    def counts(self, seen: Seen) -> bool:
        """Whether the constants are fitted on it."""
        return seen.table == "figures" or (seen.source, seen.quantity) in self.good

    @property
    def weights(self) -> np.ndarray:
        """Of each prediction."""
        return weights_of(self.now, (self.counts(seen) for seen in self.now))

    def on_all(self) -> Medians:
        """Medians with the constants refitted on every source."""
        silent = np.zeros(len(self.fitted), bool)
        with holding(self._changes(self._refitted(silent, self.weights), silent)):
            return medians(self.asked.seen())

    def without(self, table: str, source: str, refitted: Medians) -> list[LeftOut]:
        """The source predicted with constants that the others tell."""
        own = np.array([s.table == table and s.source == source for s in self.now])
        others = np.where(own, 0.0, self.weights)
        known = self.weights @ self.moves**2
        silent = (others @ self.moves**2 < TELLING * known) & (known > 0)
        with holding(self._changes(self._refitted(silent, others), silent)):
            found = self.asked.of(table, source).seen()
        names = tuple(c.name for c, quiet in zip(self.fitted, silent, strict=True) if quiet)
        before, after = medians(self.now), medians(found)
        return [
            LeftOut(group, len(seen), before[group], refitted[group], after[group], names)
            for group, seen in grouped(found).items()
        ]

    def _refitted(self, silent: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Logarithms by which the constants that are not silent change."""
        errors = np.array([seen.error for seen in self.now])
        step = np.zeros(len(self.fitted))
        step[~silent] = refit(errors, self.moves[:, ~silent], weights, spread=self.spread)
        return min((share * step for share in STEPS), key=lambda m: self._loss(m, silent, weights))

    def _loss(self, moved: np.ndarray, silent: np.ndarray, weights: np.ndarray) -> float:
        """What a refit minimizes, of exact predictions with the constants moved."""
        with holding(self._changes(moved, silent)):
            errors = {(s.group, s.id): s.error for s in self.asked.seen()}
        sizes = [abs(errors.get((s.group, s.id), s.error)) for s in self.now]
        return float(weights @ sizes + BELIEF / self.spread**2 * moved @ moved)

    def _changes(self, moved: np.ndarray, silent: np.ndarray) -> dict[int, tuple[Any, Any]]:
        """Each constant beside its new value."""
        return {
            place: (c.value, c.forgotten if silent[place] else c.times(math.exp(moved[place])))
            for place, c in enumerate(self.fitted)
        }


def medians(seen: Iterable[Seen]) -> Medians:
    """The median error of each source and quantity."""
    return {group: median(map(size, found)) for group, found in grouped(seen).items()}


def size(seen: Seen) -> float:
    """The absolute relative error."""
    return abs(math.exp(seen.error) - 1)


def grouped(seen: Iterable[Seen]) -> dict[tuple[str, str, str], list[Seen]]:
    """By source and quantity."""
    found: dict[tuple[str, str, str], list[Seen]] = defaultdict(list)
    for one in seen:
        found[one.group].append(one)
    return found


def page(found: list[LeftOut]) -> str:
    """The table in Markdown."""
    lines = [f"| table | source | quantity | values | {' | '.join(COLUMNS)} |"]
    lines.append("|---|---|---|---:|---:|---:|---:|---:|")
    lines += [
        f"| {' | '.join(one.group)} | {one.rows} | {figures((one,), one.holds)} |" for one in found
    ]
    for table, quantity in dict.fromkeys((one.group[0], one.group[2]) for one in found):
        part = [one for one in found if (one.group[0], one.group[2]) == (table, quantity)]
        rows = sum(one.rows for one in part)
        lines.append(
            f"| **{table}** | **median of sources** | {quantity} | {rows} | {figures(part)} |"
        )
    told = {one.group[1]: one.neutral for one in found if one.neutral}
    notes = [f"- {source}: {', '.join(f'`{n}`' for n in names)}" for source, names in told.items()]
    head = "\nNeutral without the only source that tells of them:\n\n"
    return "\n".join(lines) + "\n" + (head + "\n".join(notes) + "\n" if notes else "")


def figures(part: Sequence[LeftOut], holds: bool = True) -> str:
    """Median errors over sources, and by which factor they rise."""
    committed, refitted, left_out = (
        median(getattr(one, name) for one in part) for name in ("committed", "refitted", "left_out")
    )
    ratio = f"{left_out / max(refitted, ROUNDING):.2f}" + ("" if holds else " (more than a third)")
    return f"{committed:.1%} | {refitted:.1%} | {left_out:.1%} | {ratio}"


def main() -> int:
    """Leave out each source that is fitted on, and show what that costs."""
    reader = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    reader.add_argument("--write", action="store_true", help=f"write {PAGE.name} beside the tables")
    reader.add_argument(
        "--spread", type=float, default=SPREAD, help="logarithm: what is believed of a constant"
    )
    reader.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    told = reader.parse_args()
    asked, fitted = tables(), constants()
    now = asked.seen()
    moves = effects(asked, fitted, now, told.jobs)
    fit = Fit(asked, fitted, now, moves, trusted(), told.spread)
    sources = list(dict.fromkeys((s.table, s.source) for s in now if fit.counts(s)))
    refitted = fit.on_all()

    def without(place: int) -> list[LeftOut]:
        return fit.without(*sources[place], refitted)

    found = [one for part in shared(without, len(sources), told.jobs) for one in part]
    text = page([one for one in found if one.group[0] == "figures" or one.group[1:] in fit.good])
    print(text)
    if told.write:
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
