"""Peak memory and step time on this machine's NVIDIA GPUs, beside what dsforge predicts.

  python benchmarks/gpu.py                    measure, at most 8 minutes; run again to go on
  python benchmarks/gpu.py --list             what would be measured, with the predictions
  python benchmarks/gpu.py --dry-run          the same way on CPU ranks, tiny models, a minute

On a machine without internet: `--pack DIR` on another one, copy DIR, `--wheels DIR` there.
Results go to benchmarks/results/, a record for each configuration and a table that `dsforge
validate` reads. Targets: memory within 3 % in the median and 8 % at worst.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from gpu import wheels  # noqa: E402 - this repository is found from here

RESULTS = HERE / "results"
LEAST_PYTHON = (3, 11)


def main() -> int:
    """The exit code: 0 when done, 1 after a mistake, 130 after Ctrl-C."""
    began = time.monotonic()
    given = _arguments()
    if given.pack:
        return _explained(lambda: _pack(given))
    if given.wheels:
        return _explained(lambda: _with_wheels(given))
    missing = [] if given.list else wheels.missing()
    if missing:
        print(f"error: not installed: {', '.join(missing)}", file=sys.stderr)
        print("  pip install -e '.[train]', or --wheels DIR made by --pack", file=sys.stderr)
        return 1
    return _explained(lambda: _list(given) if given.list else _measure(given, began))


def _arguments() -> argparse.Namespace:
    """The command line."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="gpu.py", description=__doc__, formatter_class=shape)
    add = parser.add_argument
    add("--minutes", type=_positive, default=8.0, help="time for everything (8)")
    add("--limit", type=_positive, default=75.0, help="seconds for one configuration (75)")
    add("--only", action="append", default=[], help="configurations with this in their name")
    add("--gpus", type=int, help="so many of this machine's GPUs (all); ranks of a dry run")
    add("--out", type=Path, help="result file (benchmarks/results/gpu_HARDWARE_YYYYMM.json)")
    add("--csv", type=Path, help="table for `dsforge validate` (beside the result file)")
    add("--dry-run", action="store_true", help="CPU ranks, tiny models")
    add("--list", action="store_true", help="print configurations and predictions, measure nothing")
    add("--gpu", help="for --list: a card of the catalog instead of this machine's")
    add("--own-adam", action="store_true", help="compile DeepSpeed's Adam (nvcc), not torch's")
    add("--start", choices=("fork", "spawn"), default="fork", help="how ranks start (fork)")
    add("--wheels", type=Path, metavar="DIR", help="take packages that are missing from here")
    add("--pack", type=Path, metavar="DIR", help="download packages for --wheels, then end")
    add("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="for --pack")
    return parser.parse_args()


def _positive(text: str) -> float:
    """A number above 0. Raises ValueError otherwise, which argparse explains."""
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError(text)
    return value


def _explained(act: object) -> int:
    """What `act` returns; a mistake of the user's is shown without a traceback."""
    try:
        return int(act())  # type: ignore[operator]
    except wheels.WheelError as error:
        print(f"error: {error}", file=sys.stderr)
    except Exception as error:
        if type(error).__module__ != "dsforge.errors":
            raise
        print(f"error: {error}", file=sys.stderr)
        lines = (*getattr(error, "problems", ()), getattr(error, "hint", ""))
        print("".join(f"  {line}\n" for line in lines if str(line)), end="", file=sys.stderr)
    return 1


def _pack(given: argparse.Namespace) -> int:
    """Fill a folder with wheels."""
    names = wheels.pack(given.pack, given.python)
    print("\n".join(names))
    print(f"{len(names)} wheels for Python {given.python} in {given.pack}")
    return 0


def _with_wheels(given: argparse.Namespace) -> int:
    """Run again with packages from a folder."""
    at = sys.argv.index(next(word for word in sys.argv if word.startswith("--wheels")))
    words = 1 if sys.argv[at].startswith("--wheels=") else 2
    arguments = [str(Path(__file__).resolve()), *sys.argv[1:at], *sys.argv[at + words :]]
    with tempfile.TemporaryDirectory(prefix="dsforge-gpu-") as target:
        return wheels.run_with(given.wheels, Path(target), arguments)


def _cases(given: argparse.Namespace, cluster: object) -> list:
    """The configurations asked for, on a cluster, in the order of a run. Raises DsforgeError."""
    from gpu.configurations import CONFIGURATIONS, DRY_RUN, case_of, ordered

    from dsforge.errors import DsforgeError

    listed = DRY_RUN if given.dry_run else CONFIGURATIONS
    chosen = [c for c in listed if not given.only or any(w in c.name for w in given.only)]
    if not chosen:
        raise DsforgeError(
            f"no configuration has {' or '.join(given.only)} in its name", "see --list"
        )
    return ordered([case_of(configuration, cluster) for configuration in chosen])


def _list(given: argparse.Namespace) -> int:
    """Print the configurations with their predictions."""
    from gpu import table
    from gpu.machine import cpu_ranks, named_cluster, this_machine

    if given.gpu:
        cluster = named_cluster(given.gpu, given.gpus)
    else:
        cluster = cpu_ranks(given.gpus) if given.dry_run else this_machine(given.gpus)
    cases = _cases(given, cluster)
    print(f"{len(cases)} configurations on {cluster.gpus} x {cluster.gpu.name}")
    print(table.planned(cases))
    return 0


def _measure(given: argparse.Namespace, began: float) -> int:
    """Measure on this machine."""
    from gpu.machine import cpu_ranks, slug, this_machine
    from gpu.session import Options, Session

    cluster = cpu_ranks(given.gpus) if given.dry_run else this_machine(given.gpus)
    folder = Path(tempfile.gettempdir()) if given.dry_run else RESULTS
    kind = "dry-run" if given.dry_run else slug(cluster)
    out = given.out or folder / f"gpu_{kind}_{datetime.now(UTC):%Y%m}.json"
    options = Options(
        out=out,
        csv=given.csv or out.with_suffix(".csv"),
        minutes=given.minutes,
        limit_s=given.limit,
        start=given.start,
        dry_run=given.dry_run,
        own_adam=given.own_adam,
        command=" ".join(("python benchmarks/gpu.py", *sys.argv[1:])),
    )
    cases = _cases(given, cluster)
    print(
        f"{len(cases)} configurations on {cluster.gpus} x {cluster.gpu.name}, {given.minutes} min"
    )
    return Session(options, cluster, cases, began + 60 * given.minutes).run()


if __name__ == "__main__":
    sys.exit(main())
