"""Write dsforge/lint/schemas/megatron_flags.txt: every flag of Megatron-LM's arguments.py.

One flag a line.

    git clone https://github.com/NVIDIA/Megatron-LM /tmp/Megatron-LM
    python scripts/megatron_flags.py /tmp/Megatron-LM core_v0.12.0 core_v0.13.0 core_v0.14.0 HEAD

Newer versions make part of their flags from config classes, so that no single one holds them all.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "dsforge/lint/schemas/megatron_flags.txt"
SOURCE = "megatron/training/arguments.py"
FLAG = re.compile(r"""['"](--[a-z0-9][a-z0-9-]+)['"]""")


def main() -> None:
    """Read the file at each revision and write the union."""
    clone, *revisions = sys.argv[1:]
    flags: set[str] = set()
    for revision in revisions:
        command = ("git", "-C", clone, "show", f"{revision}:{SOURCE}")
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        flags |= set(FLAG.findall(done.stdout))
    TARGET.write_text("".join(f"{flag}\n" for flag in sorted(flags)), encoding="utf-8")


if __name__ == "__main__":
    main()
