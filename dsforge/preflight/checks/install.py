"""Install: interpreter, packages and run folder are the same on every host."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from dsforge.findings import Hit
from dsforge.origin import MODULE
from dsforge.preflight.case import Case, by_value, check
from dsforge.preflight.host_facts import HostFacts, Interpreter

COMPARED = ("torch", "deepspeed", MODULE, "transformers")
DIRECTORY = "the launcher changes to the same absolute path on every host"


def _pythons(case: Case) -> dict[str, Interpreter]:
    """Interpreters that answered."""
    found = {host: facts.interpreter for host, facts in case.hosts.items()}
    return {h: python for h, python in found.items() if python.exists and not python.error}


def differing(values: dict[str, str]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Hosts whose value differs from the most common one: hosts, their value, the common value."""
    groups = by_value(values)
    usual = next(iter(groups), "")
    for value, hosts in groups.items():
        if value != usual:
            yield hosts, value or "none", usual or "none"


def _differing(case: Case, what: str, value: Callable[[HostFacts], str], fix: str) -> Iterator[Hit]:
    """A hit for each group of hosts that differ from the majority."""
    values = {h: value(case.hosts[h]) for h in _pythons(case)}
    for hosts, own, usual in differing(values):
        yield Hit(
            hosts, f"{what} is {own} here and {usual} on the other hosts", fix.format(usual=usual)
        )


@check(
    "interpreter-missing",
    "python",
    "error",
    why="The launcher calls the interpreter of the first host by its absolute path on all hosts.",
)
def interpreter_missing(case: Case) -> Iterator[Hit]:
    """A host without the interpreter at the launcher's path, or with a broken one."""
    for host, facts in case.hosts.items():
        python = facts.interpreter
        path = case.job.interpreter
        again = f"make the same environment there, at the same path: {path}"
        if not python.exists:
            yield Hit((host,), f"has no {path}, which the launcher will call", again)
        elif python.error:
            yield Hit((host,), f"{path} does not run: {python.error}", again)


@check(
    "python-differs",
    "python",
    "error",
    why="Ranks exchange pickled objects and compiled extensions, which other versions cannot read.",
)
def python_differs(case: Case) -> Iterator[Hit]:
    """Another Python at the same path."""
    fix = "make the environment there again with Python {usual}"
    yield from _differing(case, "Python", lambda f: f.interpreter.version, fix)


@check(
    "package-missing", "python", "error", why="The rank ends at its import; the others wait for it."
)
def package_missing(case: Case) -> Iterator[Hit]:
    """A package that the run imports and that a host lacks."""
    for host, python in _pythons(case).items():
        lacking = [name for name in case.job.packages if name not in python.packages]
        if not lacking:
            continue
        versions = {
            name: other.packages[name].version
            for name in lacking
            for other in _pythons(case).values()
            if name in other.packages
        }
        wanted = {n: f"{n}=={versions[n]}" if versions.get(n) else n for n in lacking}
        message = f"lacks {', '.join(lacking)} in {case.job.interpreter}"
        yield Hit((host,), message, f"on {host}: {_installed(case, wanted)}")


@check(
    "package-differs",
    "python",
    "error",
    why="Two versions of torch or DeepSpeed use different protocols: the run hangs or computes "
    "wrong numbers.",
)
def package_differs(case: Case) -> Iterator[Hit]:
    """Another version of a package that all ranks must share."""
    for name in COMPARED:
        versions = {
            host: python.packages[name].version
            for host, python in _pythons(case).items()
            if name in python.packages
        }
        for hosts, own, usual in differing(versions):
            fix = f"on {', '.join(hosts)}: {_installed(case, {name: f'{name}=={usual}'})}"
            yield Hit(hosts, f"{name} is {own} here and {usual} on the other hosts", fix)


def _installed(case: Case, wanted: dict[str, str]) -> str:
    """What to run for packages: those of the index by requirement, dsforge from where it is."""
    others = [shlex.quote(text) for name, text in wanted.items() if name != MODULE]
    pip = f"`{shlex.quote(case.job.interpreter)} -m pip install {' '.join(others)}`"
    steps = [pip] if others else []
    return "; ".join([*steps, *([case.job.own_install] if MODULE in wanted else [])])


@check(
    "package-namesake",
    "python",
    "error",
    why="On the public index `dsforge` is another project with the same module name: "
    "each overwrites files of the other, and the ranks import what is left.",
)
def package_namesake(case: Case) -> Iterator[Hit]:
    """Another project's package of the name of one of ours."""
    for host, python in _pythons(case).items():
        found = {name: package.namesake for name, package in python.packages.items()}
        for name, version in found.items():
            if version:
                path = shlex.quote(case.job.interpreter)
                fix = f"on {host}: `{path} -m pip uninstall {name}`; then {case.job.own_install}"
                message = f"another project's package `{name}` {version} is installed there"
                yield Hit((host,), message, fix)


@check(
    "package-elsewhere",
    "python",
    "warning",
    why="A package in another folder is often an old copy on PYTHONPATH.",
)
def package_elsewhere(case: Case) -> Iterator[Hit]:
    """A package of the same version from another path."""
    for name in COMPARED:
        having = {h: p.packages[name] for h, p in _pythons(case).items() if name in p.packages}
        if len({package.version for package in having.values()}) > 1:
            continue  # said already
        for hosts, own, usual in differing({h: p.origin for h, p in having.items()}):
            message = f"{name} is loaded from {own} here and from {usual} on the other hosts"
            yield Hit(hosts, message, "check PYTHONPATH and .pth files there")


@check(
    "cuda-differs",
    "python",
    "error",
    why="Ranks of one job must load the same CUDA and NCCL: NCCL refuses to mix versions.",
)
def cuda_differs(case: Case) -> Iterator[Hit]:
    """A torch for another CUDA release, or another NCCL."""
    fix = "install the same torch build everywhere (the one with {usual})"
    yield from _differing(case, "CUDA of torch", lambda f: f.interpreter.cuda, fix)
    yield from _differing(case, "NCCL", lambda f: f.interpreter.nccl, fix)


@check(
    "folder-missing", "folder", "error", why=DIRECTORY[0].upper() + DIRECTORY[1:] + ", and stops."
)
def folder_missing(case: Case) -> Iterator[Hit]:
    """A host without the run folder, or one that cannot be written."""
    path = case.job.folder
    for host, facts in case.hosts.items():
        if not facts.folder.exists:
            fix = f"share the folder, or copy it: `rsync -a {path}/ {host}:{path}/`"
            yield Hit((host,), f"has no {path}; {DIRECTORY}", fix)
        elif not facts.folder.is_writable:
            fix = f"on {host}: give the user write permission for {path}"
            yield Hit((host,), f"cannot write {path}, where every rank writes its output", fix)


@check(
    "files-differ",
    "folder",
    "error",
    why="Each host reads its own copy: ranks with different configs hang in collectives, or "
    "train with different settings.",
)
def files_differ(case: Case) -> Iterator[Hit]:
    """A file of the run that is missing on a host, or holds something else."""
    there = {h: f.folder for h, f in case.hosts.items() if f.folder.exists}
    usual = there.get(case.first)
    path = case.job.folder
    for host, folder in there.items():
        if usual is None or host == case.first:
            continue
        names = [n for n, digest in usual.files.items() if folder.files.get(n, "") != digest]
        if names:
            absent = [name for name in names if not folder.files.get(name)]
            state = "missing" if absent == names else "not the same"
            fix = f"copy the run folder again: `rsync -a {path}/ {host}:{path}/`"
            message = f"compared with {case.first}, {state}: {', '.join(names)}"
            yield Hit((host,), message, fix)
