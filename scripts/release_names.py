"""Which names, arguments and attributes of a package came or went with which release.

    python scripts/release_names.py PACKAGE SOURCE... >dsforge/diagnose/names/PACKAGE.json

SOURCE is a git checkout with the tags of the releases and, after a colon, the package's folder in
it (`trl:trl`), or folders of unpacked wheels, each named by its release. Read are the names that
modules define or import, the arguments of functions and of classes (fields of dataclasses, with
those of their bases), and the attributes that classes have or set. "always" are the names of the
package itself that all of them have. "came" is the first release of those read that has a name,
"went" the minor release after the last that has it.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

NOISE = re.compile(
    r"^(TF|Flax|load_tf_|XX|OPENAI)|^[A-Z0-9_]+_(DOCSTRING|ARCHIVE_LIST|ARCHIVE_MAP|FOR_DOC)$|^_[A-Z]|^__"
)
MODULES = {  # whose names other packages and scripts import, where not all
    "transformers": re.compile(
        r"(utils(\.generic|\.hub)?|trainer\w*|training_args|modeling_(\w+_)?utils|generation(\.utils|"
        r"\.logits_process)?|generation_utils|integrations|cache_utils|file_utils|processing_utils|"
        r"image_utils|tokenization_utils\w*|pytorch_utils|optimization|models\.auto\.modeling_auto|"
        r"models\.(llama|mistral|qwen2|qwen2_vl|mixtral)\.modeling_\w+|deepspeed|)$"
    )
}
SKIPPED = re.compile(
    r"(^|/)(tests?|testing|benchmarks?|commands|test_utils|kernels|csrc|scripts|sagemaker)(/|\.py$|_)|"
    r"models/(?!(auto|llama|mistral|mixtral|qwen2|qwen2_vl|qwen3|gemma2?|phi3|bert|gpt2)/)|"
    r"(^|/)(modeling_(tf|flax)_|convert_|dummy_)"
)
OWNERS = re.compile(  # classes whose attributes scripts and other packages use
    r"(\w{0,9}Trainer|(TrainingArgument|Trainer|GRPO|SFT|DPO|Lora|Peft|Generation|DeepSpeed)\w*|"
    r"PreTrainedModel|PreTrainedTokenizerBase|PreTrainedConfig|PretrainedConfig|(Dynamic|Static)?Cache|"
    r"(Llama|Mistral|Qwen2|Bert)(Attention|Model|Config)|Accelerator|AcceleratorState|\w*Plugin|PartialState|"
    r"ProcessorMixin|PipelineEngine|LightningModule|LightningDataModule|\w*Callback|"
    r"(Iterable)?Dataset(Dict)?|Features|DatasetInfo|Version|Download(Config|Manager)|DatasetBuilder)$"
)
PRIVATE = re.compile(  # classes whose private attributes scripts and models' own code use, too
    r"(Trainer|PreTrainedModel|PreTrainedTokenizerBase|(Dynamic|Static)?Cache)$"
)
RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)*$")


class Snapshot(NamedTuple):
    """What one release has: each as `owner:name`; and the owners themselves."""

    names: set[str]
    arguments: set[str]
    attributes: set[str]


class _Class(NamedTuple):
    bases: tuple[str, ...]
    arguments: set[str]
    attributes: set[str]
    open_ended: bool  # takes any keyword


def snapshot(package: str, files: Iterable[tuple[str, str]]) -> Snapshot:
    """The public surface of the sources, given as paths in the package and texts."""
    names: set[str] = set()
    arguments: set[str] = set()
    classes: dict[str, _Class] = {}
    for path, text in files:
        if path.startswith("models/"):  # exported by the package itself, through its lazy module
            names |= {f":{n}" for n in _listed(text) if not NOISE.search(n)}
        tree = None if SKIPPED.search(path) or not path.endswith(".py") else _parsed(text)
        if tree is None:
            continue
        module = path.removesuffix(".py").removesuffix("__init__").rstrip("/").replace("/", ".")
        if not MODULES.get(package) or MODULES[package].match(module):
            names |= {f"{module}:{n}" for n in _defined(tree.body) if not NOISE.search(n)}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.args.kwarg and node.name[0] != "_":
                arguments |= {f"{node.name}:{name}" for name in _parameters(node)}
            if isinstance(node, ast.ClassDef):
                classes[node.name] = _class(node)
    of_classes, attributes = _surface(classes)
    return Snapshot(names, arguments | of_classes, attributes)


def _parsed(text: str) -> ast.Module | None:
    """A module's syntax tree; None for another Python's."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _surface(classes: dict[str, _Class]) -> tuple[set[str], set[str]]:
    """The arguments and the attributes of classes, with those of their bases."""
    arguments: set[str] = set()
    attributes: set[str] = set()
    for name in classes:
        every = list(_lineage(name, classes))
        if not every[0].open_ended and name[0] != "_" and not NOISE.search(name):
            arguments |= {f"{name}:{one}" for each in every for one in each.arguments}
        if OWNERS.match(name):
            hidden = "__" if PRIVATE.match(name) else "_"
            used = (one for each in every for one in each.attributes if not one.startswith(hidden))
            attributes |= {f"{name}:{one}" for one in used}
    return arguments, attributes


def _listed(text: str) -> list[str]:
    """The names of a module's `__all__`."""
    found = re.search(r"^__all__ = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    return re.findall(r"\w+", found[1]) if found else []


def _defined(body: Iterable[ast.stmt]) -> Iterator[str]:
    """The names that statements bind, those of lazy `_import_structure` lists among them."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr):
            targets = node.targets if isinstance(node, ast.Assign) else []
            yield from (t.id for t in targets if isinstance(t, ast.Name))
            if "_import_structure" in ast.dump(node):
                yield from (c.value for c in ast.walk(node) if _is_name(c))
        elif isinstance(node, ast.If | ast.Try):
            rest = [h.body for h in node.handlers] if isinstance(node, ast.Try) else []
            for part in (node.body, node.orelse, *rest):
                yield from _defined(part)


def _is_name(node: ast.AST) -> bool:
    """Whether a node is a text that is an identifier."""
    return isinstance(node, ast.Constant) and str(node.value).isidentifier()


def _parameters(node: ast.FunctionDef) -> list[str]:
    """The names a function takes as keywords."""
    return [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _class(node: ast.ClassDef) -> _Class:
    """Bases, arguments and attributes of one class."""
    bases = tuple(
        b.attr if isinstance(b, ast.Attribute) else getattr(b, "id", "") for b in node.bases
    )
    is_data = any("dataclass" in ast.dump(each) for each in node.decorator_list)
    arguments: set[str] = set()
    attributes: set[str] = set()
    open_ended = False
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            attributes.add(item.name)
            if item.name == "__init__" and isinstance(item, ast.FunctionDef):
                arguments |= set(_parameters(item)) - {"self"}
                open_ended = item.args.kwarg is not None
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            attributes.add(item.target.id)
            if is_data:
                arguments.add(item.target.id)
        elif isinstance(item, ast.Assign):
            attributes |= {t.id for t in item.targets if isinstance(t, ast.Name)}
    attributes |= {
        n.attr
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute)
        and isinstance(n.ctx, ast.Store)
        and isinstance(n.value, ast.Name)
        and n.value.id == "self"
    }
    if is_data or not any(getattr(i, "name", "") == "__init__" for i in node.body):
        return _Class(bases, arguments, attributes, open_ended)
    return _Class(("=", *bases), arguments, attributes, open_ended)  # its own arguments only


def _lineage(name: str, classes: dict[str, _Class]) -> Iterator[_Class]:
    """A class and its bases in the package; arguments end where a class has its own `__init__`."""
    seen: set[str] = set()
    waiting = [(name, True)]
    while waiting:
        one, with_arguments = waiting.pop(0)
        if one in seen or one not in classes:
            continue
        seen.add(one)
        found = classes[one]
        yield found if with_arguments else found._replace(arguments=set())
        inherits = with_arguments and "=" not in found.bases
        waiting += [(base, inherits) for base in found.bases if base != "="]


def changes(history: list[tuple[str, set[str]]]) -> dict[str, dict[str, str]]:
    """By release, what came and what went: `owner:name name;owner:name`."""
    releases = [release for release, _ in history]
    first, last = releases[0], releases[-1]
    seen: dict[str, list[str]] = {}
    owners: dict[str, list[str]] = {}
    for release, have in history:
        for key in have:
            seen.setdefault(key, [release, release])[1] = release
            owners.setdefault(key.partition(":")[0], [release, release])[1] = release
    for key in [k for k in seen if k[0] == ":" and _of_family(k[1:], seen)]:
        del seen[key]
    came: dict[str, dict[str, list[str]]] = {}
    went: dict[str, dict[str, list[str]]] = {}
    for key, (start, end) in sorted(seen.items()):
        owner, _, name = key.partition(":")
        if start not in (first, owners[owner][0]):
            came.setdefault(start, {}).setdefault(owner, []).append(name)
        if end not in (last, owners[owner][1]):
            went.setdefault(_next(end, releases), {}).setdefault(owner, []).append(name)
    return {"came": _packed(came), "went": _packed(went)}


def _of_family(name: str, seen: dict[str, list[str]]) -> bool:
    """Whether a name (`Qwen3ForCausalLM`) came and went with the configuration of its family."""
    ends = (found.start() for found in re.finditer(r"(?<=[a-z0-9])(?=[A-Z])", name))
    families = (f":{name[:end]}Config" for end in sorted(ends, reverse=True))
    config = next((f for f in families if f in seen and f != f":{name}"), "")
    return bool(config) and seen[config] == seen[f":{name}"]


def _packed(table: dict[str, dict[str, list[str]]]) -> dict[str, str]:
    """The lists of names as one text for each release."""
    return {
        release: ";".join(f"{owner}:{' '.join(names)}" for owner, names in sorted(owners.items()))
        for release, owners in table.items()
    }


def _next(release: str, releases: list[str]) -> str:
    """The release after one: the first of a new series where that follows, else the next minor."""
    after = releases[releases.index(release) + 1]
    major, minor = release.split(".")
    return after if after == f"{int(major) + 1}.0" else f"{major}.{int(minor) + 1}"


def _from_git(package: str, checkout: str, folder: str) -> Iterator[tuple[str, Snapshot]]:
    """The last patch of each minor release that a repository has tags of, oldest first."""
    tags = _git(checkout, "tag", "--sort=v:refname").decode().split()
    minors = {f"{m[1]}.{m[2]}": tag for tag in tags if (m := RELEASE.match(tag))}
    for minor, tag in minors.items():
        archive = _git(checkout, "archive", tag, folder)
        if archive:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                yield minor, snapshot(package, _members(tar, folder))


def _git(checkout: str, *arguments: str) -> bytes:
    """What git prints; nothing where it fails (a tag without the folder)."""
    call = ("git", "-C", checkout, *arguments)
    return subprocess.run(call, check=False, capture_output=True).stdout


def _members(tar: tarfile.TarFile, folder: str) -> Iterator[tuple[str, str]]:
    """The Python files of an archive."""
    for member in tar:
        file = tar.extractfile(member) if member.name.endswith(".py") else None
        if file:
            yield member.name.removeprefix(f"{folder}/"), file.read().decode("utf-8", "replace")


def _from_wheel(root: Path, package: str) -> tuple[str, Snapshot]:
    """One unpacked wheel."""
    base = root / package
    files = (
        (str(p.relative_to(base)), p.read_text("utf-8", "replace")) for p in base.rglob("*.py")
    )
    found = RELEASE.match(root.name)
    if found is None:
        raise SystemExit(f"{root} is not named by a release")
    return f"{found[1]}.{found[2]}", snapshot(package, files)


def main(package: str, *sources: str) -> None:
    """Print the table of one package."""
    history: list[tuple[str, Snapshot]] = []
    for source in sources:
        checkout, colon, folder = source.partition(":")
        history += (
            _from_git(package, checkout, folder) if colon else [_from_wheel(Path(source), package)]
        )
    table = {
        field: changes([(release, getattr(each, field)) for release, each in history])
        for field in Snapshot._fields
    }
    everywhere = set.intersection(*(each.names for _, each in history))
    always = " ".join(sorted(name[1:] for name in everywhere if name[0] == ":"))
    read = [release for release, _ in history]
    json.dump({"read": read, "always": always, **table}, sys.stdout, indent=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
