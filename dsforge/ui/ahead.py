"""Run inside the runtime of the page by `ahead.mjs`: bytecode of what a first plan imports.

Asks the planner the page's first question and compiles each module that Python has loaded by
then. The archive holds `stdlib/` and `planner/` with a `.pyc` for each, which has the hash of its
source and is used without looking at it again.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

PLANNER, STDLIB, OUT = "/lib/planner/", "/lib/python314.zip/", "/tmp/bytecode.zip"  # noqa: S108 (in the runtime's own memory)
NO_DOCS = 2  # the planner keeps its docstrings: texts are made of them


def loaded(root: str) -> Iterator[str]:
    """Sources below a root, by path, of all modules that are loaded."""
    for module in list(sys.modules.values()):
        path = str(getattr(module, "__file__", None) or "")
        if path.startswith(root) and path.endswith(".py"):
            yield path.removeprefix(root)


def bytecode(source: bytes, path: str, optimize: int = 0) -> bytes:
    """A source as a `.pyc` whose hash is not checked (PEP 552)."""
    from importlib import _bootstrap_external

    code = compile(source, path, "exec", dont_inherit=True, optimize=optimize)
    return bytes(
        _bootstrap_external._code_to_hash_pyc(  # type: ignore[attr-defined]  # noqa: SLF001 (as py_compile does)
            code, importlib.util.source_hash(source), checked=False
        )
    )


def main() -> None:
    """Answer the first question, then compile."""
    sys.path.insert(0, PLANNER)
    from dsforge.ui import later
    from dsforge.ui.worker import FIRST_QUESTION, answered

    later.expect(())  # as the worker of the page does
    if "error" in json.loads(answered(json.dumps(FIRST_QUESTION))):
        raise SystemExit("the first question of the page has no answer")
    with (
        zipfile.ZipFile(STDLIB.rstrip("/")) as stdlib,
        zipfile.ZipFile(OUT, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in sorted(set(loaded(STDLIB))):
            archive.writestr(f"stdlib/{name}c", bytecode(stdlib.read(name), STDLIB + name, NO_DOCS))
        for name in sorted(set(loaded(PLANNER))):
            source = Path(PLANNER + name).read_bytes()
            archive.writestr(f"planner/{name}c", bytecode(source, PLANNER + name))


if __name__ == "__main__":
    main()
