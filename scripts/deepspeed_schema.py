"""Write dsforge/lint/schemas/deepspeed.json: which config keys each DeepSpeed release reads.

    git clone https://github.com/deepspeedai/DeepSpeed /tmp/DeepSpeed
    pip download --no-deps --no-binary :all: --no-build-isolation deepspeed==0.19.8
    python scripts/deepspeed_schema.py /tmp/DeepSpeed deepspeed-0.19.*.tar.gz

Every release tag from v0.14.0 on is read from the clone, without a checkout, and then the source
distributions of releases that the clone has no tag for. Nothing of them is executed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

from dsforge.lint.schemas.deepspeed_source import Schema, extracted, is_config_module
from dsforge.lint.schemas.releases import merged, number

TARGET = Path(__file__).resolve().parents[1] / "dsforge/lint/schemas/deepspeed.json"
FIRST = (0, 14, 0)


def git(clone: str, *arguments: str, text: str = "") -> str:
    """The output of a git command in the clone."""
    command = ("git", "-C", clone, *arguments)
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    return done.stdout.decode(errors="replace")


def tagged(clone: str, tag: str) -> Schema:
    """The schema of one release tag."""
    listing = git(clone, "ls-tree", "-r", "--name-only", tag, "deepspeed/").splitlines()
    names = [name for name in listing if is_config_module(name.removeprefix("deepspeed/"))]
    sources = {n.removeprefix("deepspeed/"): git(clone, "show", f"{tag}:{n}") for n in names}
    return extracted(sources)


def packed(archive: Path) -> Schema:
    """The schema of a source distribution."""
    sources = {}
    with tarfile.open(archive) as files:
        for member in files.getmembers():
            name = member.name.partition("/deepspeed/")[2]
            if member.isfile() and is_config_module(name):
                content = files.extractfile(member)
                sources[name] = content.read().decode() if content else ""
    return extracted(sources)


def main() -> None:
    """Read all releases and write the file."""
    clone = sys.argv[1]
    tags = [t for t in git(clone, "tag", "-l", "v0.*").split() if number(t[1:]) >= FIRST]
    found: dict[str, Schema] = {}
    for tag in sorted(tags, key=lambda t: number(t[1:])):
        found[tag[1:]] = tagged(clone, tag)
        print(tag, sum(len(keys) for keys in found[tag[1:]].keys.values()))
    for archive in map(Path, sys.argv[2:]):
        found[archive.name.removesuffix(".tar.gz").rpartition("-")[2]] = packed(archive)
    found = dict(sorted(found.items(), key=lambda item: number(item[0])))
    TARGET.write_text(json.dumps(merged(found), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
